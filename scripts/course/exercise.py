#!/usr/bin/env python3
"""Exercises that grade themselves.

    scripts/course/exercise.py make 01       writes student/exercise-01: this repository without the solutions of lesson 01
    scripts/course/exercise.py grade 01      takes what was written there, tests it and prints the points
    scripts/course/exercise.py mutants 01    checks the tests: each wrong solution in tests/mutants/ must lose its points, and
                                      each broken lesson there must be noticed
    scripts/course/exercise.py mutants --some
                                      the same in some minutes for all lessons: every patch must fit its place, and of
                                      each lesson the first wrong solution and the first broken lesson are judged; for
                                      one lesson, mutants --some 01, the first of each exercise

An exercise is a marked region of a .hpp or .cpp file in lessons/, gpt2/ or common/:

    // BEGIN EXERCISE 01.1 points=10 "Norm backward: what to write, in a sentence or more. "
    //     "The text may go on in further strings."
    ... the solution ...
    // END EXERCISE

Its title is the text up to the first colon or full stop. Its tests are those that carry the ctest label
exercise-01.1; the points are given only if all of them pass. Of a student's copy only the files with regions of that
lesson are read; they are compiled and tested in a clean copy of this repository.

A wrong solution is tests/mutants/01/01.1_name.patch: one line that says what is wrong, then a unified diff (-p1) that
changes nothing but the body of exercise 01.1. A broken lesson is tests/mutants/01/01_name.patch, which changes something
outside of all exercises; one of the tests with the ctest label lesson-01 must fail then.

Exit status: 0 all points (or all mutants caught), 1 not all, 2 asked for something impossible.
"""

import argparse
import dataclasses
import functools
import json
import pathlib
import re
import sys

from exercise_bench import Bench
from exercise_tree import (Refused, all_regions, apply_patch, find_regions, markers, outside, read_tree,
                           stubbed_files, write_tree)

MUTANT = re.compile(r"tests/mutants/\d\d/(\d\d(?:\.\d+)?)_\w+\.patch$")
PROGRAM = re.compile(r"lessons/(\w+)/\1\.cpp$")
STUB = r"not implemented|failed .* needs exercise .*"  # what a test may say of stubs
WARNINGS_OPTION = re.compile(r"(option\(RANKWISE_WARNINGS_AS_ERRORS .*) ON\)")


def lesson_regions(tree, lesson):
    """The regions of one lesson, in order; at least one."""
    regions = [region for region in all_regions(tree) if region.exercise.startswith(lesson + ".")]
    if not regions:
        raise Refused(f"lesson {lesson} has no exercises")
    return regions


def command_line(root, name, lesson):
    return f"make {name}-{lesson}" if (root / "Makefile").exists() else f"scripts/course/exercise.py {name} {lesson}"


# ---- make -------------------------------------------------------------------------------------------------------------

def student_tree(root, tree, lesson):
    """The tree that a student starts from: stubs for the solutions, warnings that do not end the build (a stub leaves
    variables unused), no mutants (they would tell), and a page that lists what there is to write."""
    regions = lesson_regions(tree, lesson)
    copy = {path: content for path, content in tree.items() if not path.startswith("tests/mutants/")}
    copy.update(stubbed_files(tree, regions))
    if "CMakeLists.txt" in copy:
        text, count = WARNINGS_OPTION.subn(r"\1 OFF)", copy["CMakeLists.txt"].decode())
        if count != 1:
            raise Refused("CMakeLists.txt: expected one line option(RANKWISE_WARNINGS_AS_ERRORS \"...\" ON)")
        copy["CMakeLists.txt"] = text.encode()
    page = [f"# Exercises of lesson {lesson}", "",
            "Write the bodies between `BEGIN EXERCISE` and `END EXERCISE`; leave these two lines as they are.", ""]
    for region in regions:
        text = copy[region.path].decode()
        line = next(stubbed.begin for stubbed in find_regions(region.path, text)
                    if stubbed.exercise == region.exercise)
        page.append(f"- **{region.exercise}** ({region.points} points), {region.path}:{line + 1}. {region.text}")
    page += ["", "Build here as in the repository (`make build`), then run the tests of one exercise or of all:", "",
             f"    ctest --test-dir build --output-on-failure -L exercise-{lesson}", "",
             f"For the points: `{command_line(root, 'grade', lesson)}` in the repository that this copy was made from.", ""]
    copy["EXERCISES.md"] = "\n".join(page).encode()
    return copy


def make(root, lesson, folder):
    if folder.exists():
        raise Refused(f"{folder} exists and may hold your work; move it away, or choose another folder with --to")
    copy = student_tree(root, read_tree(root), lesson)
    write_tree(folder, copy, root)
    print(f"Wrote {folder}\n\n" + copy["EXERCISES.md"].decode(), end="")
    return 0


# ---- grade ------------------------------------------------------------------------------------------------------------

def student_files(tree, regions, folder):
    """The files with regions as the student left them, by path. Changed or missing markers are refused."""
    if not folder.is_dir():
        raise Refused(f"there is no folder {folder}; name the student's copy with --from, or start with "
                      f"`scripts/course/exercise.py make {regions[0].exercise.split('.')[0]}`")
    files = {}
    for path in sorted({region.path for region in regions}):
        if not (folder / path).is_file():
            raise Refused(f"{folder / path} is missing")
        files[path] = (folder / path).read_bytes()
        text = files[path].decode(errors="replace")
        if markers(path, text) != markers(path, tree[path].decode()):
            raise Refused(f"{folder / path}: the lines BEGIN EXERCISE and END EXERCISE must be those of the "
                          "repository; restore them and write only between them")
    return files


def judge(bench, tree, regions, files):
    """Tests the student's files in the clean tree; a list of {exercise, points, of, verdict, detail}."""
    stubs, exercises = stubbed_files(tree, regions), [region.exercise for region in regions]
    built, output = bench.build({**tree, **files}, exercises)
    broken = {}
    if not built:  # each file beside stubs of the others: which one is it?
        for path in files:
            alone, output_alone = bench.build({**tree, **stubs, path: files[path]}, exercises)
            if not alone:
                broken[path] = bench.first_error(output_alone)
        good = {path: content for path, content in files.items() if path not in broken}
        built, output = bench.build({**tree, **stubs, **good}, exercises)
    outcomes = bench.run(exercises) if built else {}
    verdicts = []
    for region in regions:
        if not built or region.path in broken:
            verdict, detail = "does not compile", broken.get(region.path) or bench.first_error(output)
        else:
            verdict, detail = outcomes[region.exercise]
        points = region.points if verdict == "passed" else 0
        verdicts.append(dict(exercise=region.exercise, points=points, of=region.points, verdict=verdict, detail=detail))
    return verdicts


def grade(root, lesson, folder, json_file, work):
    if (root / "EXERCISES.md").exists():
        raise Refused("this is a student's copy; grade it from the repository that it was made from, with --from")
    tree = read_tree(root)
    regions = lesson_regions(tree, lesson)
    files = student_files(tree, regions, folder)
    bench = Bench(root, work)
    verdicts = judge(bench, tree, regions, files)

    width = max(len(region.title) for region in regions)
    print(f"{'exercise':8}  {'title':{width}}  {'points':>7}  verdict")
    for region, row in zip(regions, verdicts):
        points = f"{row['points']}/{row['of']}"
        verdict = row["verdict"] + (f": {row['detail']}" if row["detail"] else "")
        print(f"{row['exercise']:8}  {region.title:{width}}  {points:>7}  {verdict}")
    points, of = (sum(row[key] for row in verdicts) for key in ("points", "of"))
    total = f"{points}/{of}"
    print(f"{'total':8}  {'':{width}}  {total:>7}")
    document = dict(lesson=lesson, points=points, of=of, exercises=verdicts)
    json_file.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    print(f"\nThe same as JSON:        {json_file}")
    if points < of:
        print(f"All that the tests said: {bench.log}")
    return 0 if points == of else 1


# ---- mutants ----------------------------------------------------------------------------------------------------------

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
    wrong: str     # what is wrong, in a line
    changed: dict  # path -> bytes

    @property
    def program(self):
        """The lesson's program that is all it changes, as a target; None where it changes anything else."""
        match = PROGRAM.match(" ".join(self.changed))
        return match and match[1]


def mutant_paths(tree, lesson):
    """The patches of a lesson; of all where it is empty."""
    return [path for path in sorted(tree) if path.startswith(f"tests/mutants/{lesson}")]


def misplaced(tree, changed, regions, broken):
    """What a patch changes that it should not, as a sentence; empty if there is nothing. `broken` is an exercise, or a
    lesson; `regions` are those of its lesson."""
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
    match = MUTANT.match(path)
    if not match:
        raise Refused("is not named as 01.1_what_is_wrong.patch or 01_what_is_wrong.patch")
    patch, broken = tree[path].decode(), match[1]
    of_lesson = [region for region in regions if region.exercise.split(".")[0] == broken.split(".")[0]]
    if not of_lesson:
        raise Refused(f"there is no lesson with exercises {broken}")
    changed = apply_patch(tree, patch, path)
    if wrong_place := misplaced(tree, changed, of_lesson, broken):
        raise Refused(wrong_place)
    return Mutant(pathlib.PurePosixPath(path).stem, broken, patch.split("\n")[0], changed)


def read_mutants(tree, regions, lesson, tally):
    """All mutants of a lesson, or of all. What is none, and an exercise that has none, is reported."""
    found = []
    for path in mutant_paths(tree, lesson):
        try:
            found.append(read_mutant(tree, regions, path))
        except Refused as refusal:
            tally.report(False, pathlib.PurePosixPath(path).stem, str(refusal))
    for region in regions:
        if not any(mutant.broken == region.exercise for mutant in found):
            tally.report(False, region.exercise, "has no wrong solution in tests/mutants/")
    return found


def report_bodies(bench, tree, regions, files, name, expected, tally):
    """Judges files, and reports whether the verdicts are what is expected of bodies that are called so."""
    for row in judge(bench, tree, regions, files):
        text = f"{row['verdict']} {row['detail']}".strip()
        tally.report(re.fullmatch(expected, text) is not None, f"{row['exercise']} {name}", text)


def report_mutant(bench, mutant, built, output, tally):
    """Reports whether what one patch breaks, in the tree that was built last, is noticed by a test."""
    if not built:
        tally.report(False, mutant.name, "does not compile: " + bench.first_error(output))
        return
    verdict, detail = bench.run([mutant.broken], until_failure=True)[mutant.broken]
    if verdict == "failed":
        tally.report(True, mutant.name, f"{mutant.wrong}  [{detail}]")
    else:
        tally.report(False, mutant.name, f"keeps its points ({verdict}): {mutant.wrong}")


def report_group(bench, tree, group, tally):
    """Reports on mutants that may stand in the same tree; each alone if that does not compile."""
    changed = {path: content for mutant in group for path, content in mutant.changed.items()}
    built, output = bench.build({**tree, **changed}, [mutant.broken for mutant in group])
    if not built and len(group) > 1:
        for mutant in group:
            report_group(bench, tree, [mutant], tally)
        return
    for mutant in group:
        report_mutant(bench, mutant, built, output, tally)


def mutants(root, lesson, work):
    tree = read_tree(root)
    regions = lesson_regions(tree, lesson)
    bench, tally = Bench(root, work), Tally()
    solutions = {region.path: tree[region.path] for region in regions}
    report_bodies(bench, tree, regions, solutions, "solution", r"passed", tally)
    report_bodies(bench, tree, regions, stubbed_files(tree, regions), "stub", STUB, tally)
    found = read_mutants(tree, regions, lesson, tally)
    if any(mutant.broken == lesson for mutant in found):
        built, output = bench.build(tree, [lesson])
        verdict, detail = bench.run([lesson])[lesson] if built else ("does not compile", bench.first_error(output))
        tally.report(verdict == "passed", f"{lesson} itself", f"{verdict} {detail}".strip())
    for mutant in found:
        report_group(bench, tree, [mutant], tally)
    return tally.status()


def apart(bench, one, other):
    """Whether two mutants in one tree are noticed as each alone would be. A lesson's program is part of nothing else: only
    the tests that start it see what it has become."""
    return all(mine.program and mine.program not in bench.targets([others.broken])
               for mine, others in ((one, other), (other, one)))


def groups(bench, chosen):
    """The mutants, together with those that may stand in the same tree."""
    found = []
    for mutant in chosen:
        group = next((group for group in found if all(apart(bench, mutant, other) for other in group)), None)
        if group is None:
            found.append([mutant])
        else:
            group.append(mutant)
    return found


def some_mutants(root, lesson, work):
    """Every patch must fit its place, and the first broken lesson and the first wrong solution be noticed, of each exercise
    or, where all lessons are looked at, of each lesson. Stubs stand in one tree, so that a test may find another exercise
    missing than its own. The project's tests run the solutions."""
    tree = read_tree(root)
    regions = lesson_regions(tree, lesson) if lesson else all_regions(tree)
    bench, tally = Bench(root, work), Tally()
    found = read_mutants(tree, regions, lesson, tally)
    tally.report(bool(found), "patches", f"{len(found)} of {len(mutant_paths(tree, lesson))} fit their places")
    report_bodies(bench, tree, regions, stubbed_files(tree, regions), "stub", STUB, tally)
    first = {mutant.broken if lesson else (mutant.broken[:2], "." in mutant.broken): mutant for mutant in reversed(found)}
    for group in groups(bench, [mutant for _, mutant in sorted(first.items())]):
        report_group(bench, tree, group, tally)
    return tally.status()


# ---- command line -----------------------------------------------------------------------------------------------------

def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2],
                        help="the repository (default: the one of this script)")
    commands = parser.add_subparsers(dest="command", required=True)
    of = {name: commands.add_parser(name) for name in ("make", "grade", "mutants")}
    for name, command in of.items():
        command.add_argument("lesson", nargs="?" if name == "mutants" else None, help="two digits, as 01")
    of["mutants"].add_argument("--some", action="store_true",
                               help="judge one mutant of each exercise; without a lesson, one or two of each lesson")
    of["make"].add_argument("--to", type=pathlib.Path, help="the new folder (default: student/exercise-NN)")
    of["grade"].add_argument("--from", dest="folder", type=pathlib.Path,
                             help="the student's copy (default: student/exercise-NN)")
    of["grade"].add_argument("--json", type=pathlib.Path,
                             help="where to write the points as JSON (default: build/grade-NN/points.json)")
    for name in ("grade", "mutants"):
        of[name].add_argument("--work", type=pathlib.Path, help=f"where to build (default: build/{name}-NN)")
    options = parser.parse_args()
    root, some = options.root.resolve(), getattr(options, "some", False)
    lesson = options.lesson or ""
    try:
        if not re.fullmatch(r"\d\d", lesson) and not (some and options.lesson is None):
            raise Refused(f"'{lesson}' is not the number of a lesson; write two digits, as 01")
        copy = root / "student" / f"exercise-{lesson}"
        default_work = root / "build" / "-".join(filter(None, [options.command, lesson]))
        work = (getattr(options, "work", None) or default_work).resolve()
        if options.command == "make":
            return make(root, lesson, options.to or copy)
        if options.command == "grade":
            return grade(root, lesson, options.folder or copy, options.json or work / "points.json", work)
        return (some_mutants if some else mutants)(root, lesson, work)
    except (Refused, OSError) as refusal:
        print(f"error: {refusal}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
