"""Checks the judge and the tests: each wrong solution must lose its points, each right one keep them, and each lesson that is
broken elsewhere be noticed.

A wrong solution is tests/mutants/01/01.1_name.patch: one line that says what is wrong, then a unified diff (-p1) that changes
nothing but the body of exercise 01.1. A right one, other in style, is tests/mutants/01/right/01.1_name.patch. A broken lesson
is tests/mutants/01/01_name.patch, which changes something outside of all exercises; one of the tests with the ctest label
lesson-01 must fail then.
"""

import concurrent.futures
import dataclasses
import functools
import os
import pathlib
import re

from exercise_bench import Bench, first_error
from exercise_tree import Refused, all_regions, apply_patch, outside, read_tree, stubbed_files
from judge import Judge
from sandbox_walls import bubblewrap_works

NAME = re.compile(r"tests/mutants/\d\d/(right/)?(\d\d(?:\.\d+)?)_\w+\.patch$")


class Tally:
    """Prints a line for each thing that holds or does not, and counts them."""

    def __init__(self):
        self.count = {True: 0, False: 0}

    def report(self, holds, name, text):
        self.count[holds] += 1
        print(f"{'PASS' if holds else 'FAIL'}  {name}: {text}", flush=True)

    def status(self):
        """Prints the counts; the exit status."""
        print(f"{self.count[True]} passed, {self.count[False]} failed")
        return 0 if self.count[False] == 0 else 1


@dataclasses.dataclass
class Mutant:
    """A patch that fits its place."""

    name: str
    broken: str    # an exercise, or a lesson
    what: str      # what is wrong, or how it differs, in a line
    changed: dict  # path -> bytes
    right: bool


def mutant_paths(tree, lesson):
    """The patches of a lesson; of all where it is empty. What is known of them (scripts/locate_mutants.py) is none."""
    return [path for path in sorted(tree) if path.startswith(f"tests/mutants/{lesson}") and not path.endswith("/located.json")]


def misplaced(tree, changed, regions, broken):
    """The misplaced changes of a patch, as a sentence; empty if there are none. `broken` is an exercise, or a lesson;
    `regions` are those of its lesson."""
    def without(text, path, exercises):
        return functools.reduce(lambda rest, exercise: outside(path, rest, exercise), exercises, text.decode())

    exercises = [region.exercise for region in regions]
    if broken not in exercises and "." in broken:
        return f"there is no exercise {broken}"
    mine = [broken] if broken in exercises else exercises
    same = [without(content, path, mine) == without(tree[path], path, mine) for path, content in changed.items()]
    if broken in exercises:
        return "" if all(same) else f"changes more than the body of exercise {broken}"
    return "" if not any(same) else f"breaks an exercise of lesson {broken}: its name should say which"


def read_mutant(tree, regions, path):
    """The mutant of one patch; Refused says why it is none."""
    match = NAME.match(path)
    if not match:
        raise Refused("is not named as 01.1_what_is_wrong.patch or 01_what_is_wrong.patch")
    patch, broken = tree[path].decode(), match[2]
    of_lesson = [region for region in regions if region.exercise.split(".")[0] == broken.split(".")[0]]
    if not of_lesson:
        raise Refused(f"there is no lesson with exercises {broken}")
    changed = apply_patch(tree, patch, path)
    if wrong_place := misplaced(tree, changed, of_lesson, broken):
        raise Refused(wrong_place)
    return Mutant(pathlib.PurePosixPath(path).stem, broken, patch.split("\n")[0], changed, bool(match[1]))


def read_mutants(tree, regions, lesson, tally):
    """All mutants of a lesson, or of all. What is none, and an exercise that has none, is reported."""
    found = []
    for path in mutant_paths(tree, lesson):
        try:
            found.append(read_mutant(tree, regions, path))
        except Refused as refusal:
            tally.report(False, pathlib.PurePosixPath(path).stem, str(refusal))
    for region in regions:
        if not any(mutant.broken == region.exercise and not mutant.right for mutant in found):
            tally.report(False, region.exercise, "has no wrong solution in tests/mutants/")
    tally.report(bool(found), "patches", f"{len(found)} of {len(mutant_paths(tree, lesson))} fit their places")
    return found


# ---- Exercises, by the judge ------------------------------------------------------------------------------------------

def bodies_of(tree, region, mutants):
    """(name, text, expected verdicts, file) of what is judged in an exercise."""
    path = region.path
    bodies = [(f"{region.exercise} solution", "", ("passed",), tree[path]),
              (f"{region.exercise} stub", "", ("not implemented",), stubbed_files(tree, [region])[path])]
    for mutant in mutants:
        if mutant.broken == region.exercise:
            expected = ("passed",) if mutant.right else ("failed", "timed out")
            bodies.append((mutant.name, mutant.what, expected, mutant.changed[path]))
    return bodies


def report_bodies(judge, bodies, tally, repeats=1):
    """Judges bodies, side by side, each as often as asked with other sizes, and reports whether all verdicts are as expected."""
    def verdict_of(body):
        name, what, expected, file = body
        exercise = name.split()[0].split("_")[0]
        verdicts = judge.grade_often(exercise, file, [("mutants", str(number)) for number in range(repeats)])
        others = [(verdict, detail) for verdict, detail in verdicts if verdict not in expected]
        verdict, detail = (others or verdicts)[0]
        often = f"{len(others or verdicts)} of {len(verdicts)} times" if repeats > 1 else ""
        return not others, name, " ".join(filter(None, [what, f"[{verdict}]", often, detail.replace("\n", " | ")]))

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for holds, name, text in pool.map(verdict_of, bodies):
            tally.report(holds, name, text)


def judge_exercises(root, tree, regions, found, work, tally, some=False, repeats=1, right=False):
    """Judges the solution, the stub, the wrong and the right solutions of each exercise; of `some` the first wrong one, of
    `right` those that must pass. The patches are the course's own, so they are judged where there is no sandbox, too."""
    judge = Judge(root, tree, work / "judge", bubblewrap_works() is True)
    without = [region.exercise for region in regions if region.exercise not in judge.judged]
    for exercise in without:
        tally.report(False, exercise, "has no cases in tests/judge/")
    regions = [region for region in regions if region.exercise not in without]
    judge.build([region.exercise for region in regions])
    bodies = []
    for region in regions:
        mine = bodies_of(tree, region, found)
        wrong = [body for body in mine if body[2] == ("failed", "timed out")]
        passing = [body for body in mine if body[2] == ("passed",)]
        bodies += passing if right else [*mine[:2], *wrong[:1]] if some else mine
    report_bodies(judge, bodies, tally, repeats)


# ---- Broken lessons, by the project's tests ---------------------------------------------------------------------------

def report_lesson(bench, tree, mutant, tally):
    """Reports whether what one patch breaks is noticed by a test."""
    built, output = bench.build({**tree, **mutant.changed}, [mutant.broken])
    if not built:
        tally.report(False, mutant.name, "does not compile: " + first_error(output, bench.source))
        return
    verdict, detail = bench.run([mutant.broken], until_failure=True)[mutant.broken]
    if verdict == "failed":
        tally.report(True, mutant.name, f"{mutant.what}  [{detail}]")
    else:
        tally.report(False, mutant.name, f"is not noticed ({verdict}): {mutant.what}")


def break_lessons(root, tree, found, work, tally, some=False):
    """Each broken lesson, or of `some` the first of each; in full the lesson itself must pass, too."""
    bench = Bench(root, work / "lessons")
    lessons = {}
    for mutant in found:
        if "." not in mutant.broken:
            lessons.setdefault(mutant.broken, []).append(mutant)
    for lesson, mutants in lessons.items():
        if not some:
            built, output = bench.build(tree, [lesson])
            verdict, detail = bench.run([lesson])[lesson] if built else ("does not compile", first_error(output, bench.source))
            tally.report(verdict == "passed", f"{lesson} itself", f"{verdict} {detail}".strip())
        for mutant in mutants[:1] if some else mutants:
            report_lesson(bench, tree, mutant, tally)


def check_mutants(root, lesson, work, some=False, repeats=1, only=""):
    """All of a lesson; of all lessons where it is empty. `only` is "exercises", "right" (those of them that
    must pass) or "lessons", or empty for all."""
    tree = read_tree(root)
    regions = [region for region in all_regions(tree) if region.exercise.startswith(f"{lesson}." if lesson else "")]
    if not regions:
        raise Refused(f"lesson {lesson} has no exercises")
    tally = Tally()
    found = read_mutants(tree, regions, lesson, tally)
    if only != "lessons":
        judge_exercises(root, tree, regions, found, work, tally, some, repeats, only == "right")
    if only in ("", "lessons"):
        break_lessons(root, tree, found, work, tally, some)
    return tally.status()
