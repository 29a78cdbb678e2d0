"""Checks the judge and the tests: each wrong solution must lose its points, each right one keep them, and each lesson that is
broken elsewhere be noticed.

Solutions of exercise 01.1 stand in tests/mutants/01/01.1.bodies, each as a line `// WRONG name` (or RIGHT, where only the style differs),
a line `// sentence` that says what is wrong, or how it differs, and the body of the region. Broken lessons stand in tests/mutants/01/01.patches,
each as `// BROKEN name`, `// sentence`, and a unified diff (-p1) that changes something outside of all exercises; one of the tests with the
ctest label lesson-01 must fail then.
"""

import concurrent.futures
import dataclasses
import os
import pathlib
import re

from exercise_bench import Bench, first_error
from exercise_tree import Refused, all_regions, apply_patch, read_tree, replace_bodies, stubbed_files, without_bodies
from judge import Judge
from sandbox_walls import bubblewrap_works

NAME = re.compile(r"tests/mutants/(\d\d)/(?:\1\.\d+\.bodies|\1\.patches)$")
KINDS = {".bodies": ("WRONG", "RIGHT"), ".patches": ("BROKEN",)}


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


# ---- Files of bodies and patches --------------------------------------------------------------------------------------

@dataclasses.dataclass
class Entry:
    """A body or a patch in a file of them."""

    kind: str
    name: str    # "01.1_adds_two"
    broken: str  # the file's name: an exercise, or a lesson
    path: str
    line: int    # of its first line
    what: str = ""  # what is wrong, or how it differs, in a line
    lines: list = dataclasses.field(default_factory=list)
    changed: dict = dataclasses.field(default_factory=dict)  # path -> bytes


def read_entries(path, text, kinds):
    """The entries of a file: each is a line `// KIND name`, a line `// sentence`, and further lines, none of which begins with
    two slashes. Refused names file and line of what is none."""
    entries, stem = [], pathlib.PurePosixPath(path).stem

    def refuse(line, why):
        raise Refused(f"{path}:{line}: {why}")

    for line, words in enumerate(text.removesuffix("\n").split("\n"), 1):
        if entries and line == entries[-1].line + 1:
            if not words.startswith("// "):
                refuse(line, f"expected: // a sentence about {entries[-1].name}")
            entries[-1].what = words[3:]
        elif entries and not words.startswith("//"):
            entries[-1].lines.append(words)
        elif match := re.fullmatch(rf"// ({'|'.join(kinds)}) (\w+)", words):
            entries.append(Entry(match[1], f"{stem}_{match[2]}", stem, path, line))
        else:
            refuse(line, "expected: " + ", or ".join(f"// {kind} name" for kind in kinds))
    for number, entry in enumerate(entries):
        if not entry.lines:
            refuse(entry.line, f"{entry.name} has a sentence or its lines missing")
        if entry.name in (other.name for other in entries[:number]):
            refuse(entry.line, f"{entry.name} stands already above")
    return entries


def all_entries(tree, lesson=""):
    """The entries of tests/mutants of a lesson; of all where it is empty. What is known of them (scripts/museum/locate_mutants.py) is none."""
    found = []
    for path in sorted(path for path in tree if path.startswith(f"tests/mutants/{lesson}") and not path.endswith("/located.json")):
        if not NAME.match(path):
            raise Refused(f"{path} is not named as tests/mutants/01/01.1.bodies or tests/mutants/01/01.patches")
        found += read_entries(path, tree[path].decode(), KINDS[pathlib.PurePosixPath(path).suffix])
    return found


def plant(tree, regions, entry):
    """The entry with the files that it changes; Refused says why it does not fit."""
    mine = [region for region in regions if entry.broken in (region.exercise, region.lesson)]
    if not mine:
        raise Refused(f"there is no {'exercise' if '.' in entry.broken else 'lesson with exercises'} {entry.broken}")
    if entry.kind == "BROKEN":  # its lines are counted in its file
        entry.changed = apply_patch(tree, "\n" * (entry.line + 1) + "\n".join(entry.lines), entry.path)
        if any(without_bodies(path, content) == without_bodies(path, tree[path]) for path, content in entry.changed.items()):
            raise Refused(f"breaks an exercise of lesson {entry.broken}: its name should say which")
    else:
        path = mine[0].path
        entry.changed = {path: replace_bodies(tree[path].decode(), mine, lambda region: entry.lines).encode()}
    return entry


def read_mutants(tree, regions, lesson, tally):
    """All mutants of a lesson, or of all. What is none, and an exercise that has none, is reported."""
    found, entries = [], all_entries(tree, lesson)
    for entry in entries:
        try:
            found.append(plant(tree, regions, entry))
        except Refused as refusal:
            tally.report(False, entry.name, str(refusal))
    for region in regions:
        if not any(mutant.broken == region.exercise and mutant.kind == "WRONG" for mutant in found):
            tally.report(False, region.exercise, "has no wrong solution in tests/mutants/")
    tally.report(bool(found), "patches", f"{len(found)} of {len(entries)} fit their places")
    return found


# ---- Exercises, by the judge ------------------------------------------------------------------------------------------

def bodies_of(tree, region, mutants):
    """(name, text, expected verdicts, file) of what is judged in an exercise."""
    path = region.path
    bodies = [(f"{region.exercise} solution", "", ("passed",), tree[path]),
              (f"{region.exercise} stub", "", ("not implemented",), stubbed_files(tree, [region])[path])]
    for mutant in mutants:
        if mutant.broken == region.exercise:
            expected = ("failed", "timed out") if mutant.kind == "WRONG" else ("passed",)
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
    `right` those that must pass. The bodies are the course's own, so they are judged where there is no sandbox, too."""
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
    regions = all_regions(tree, lesson)
    if not regions:
        raise Refused(f"lesson {lesson} has no exercises")
    tally = Tally()
    found = read_mutants(tree, regions, lesson, tally)
    if only != "lessons":
        judge_exercises(root, tree, regions, found, work, tally, some, repeats, only == "right")
    if only in ("", "lessons"):
        break_lessons(root, tree, found, work, tally, some)
    return tally.status()
