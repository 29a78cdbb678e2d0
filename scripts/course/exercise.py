#!/usr/bin/env python3
"""Exercises that grade themselves.

    scripts/course/exercise.py make 01       writes student/exercise-01: this repository without the solutions of lesson 01
    scripts/course/exercise.py grade 01      takes what was written there, tests it and prints the points
    scripts/course/exercise.py grade 01.1    the same of one exercise
    scripts/course/exercise.py mutants 01    checks the judge and the tests: each wrong solution in tests/mutants/ must lose its
                                      points, each right one keep them, and each broken lesson be noticed
    scripts/course/exercise.py mutants --some
                                      the same in some minutes for all lessons: every one must fit its place, and the
                                      first wrong solution of each exercise and the first broken lesson are looked at

An exercise is a marked region of a .hpp or .cpp file in lessons/, gpt2/ or common/:

    // BEGIN EXERCISE 01.1
    ... the solution ...
    // END EXERCISE

Its points and its text, what to write in a sentence or more, stand in the table of that number in the lesson's exercises.toml; its
title is the text up to the first colon or full stop. Of a student's copy only the bodies of the regions are read. Each is
compiled and judged alone, in a sandbox, with the reference's other exercises (judge.py; mutants.py tells how mutants are written).
Students test themselves with the tests that carry the ctest label exercise-01.1.

Exit status: 0 all points (or all mutants caught), 1 not all, 2 asked for something impossible.
"""

import argparse
import json
import pathlib
import re

import catalogue
from exercise_tree import Refused, all_regions, read_tree, write_tree, write_whole
from grade_table import table_of
from pack import places, without_solutions
from documents import run_script


def lesson_regions(tree, lesson):
    """The regions of one lesson, in order; at least one."""
    regions = all_regions(tree, lesson)
    if not regions:
        raise Refused(f"lesson {lesson} has no exercises")
    return regions


# ---- make -------------------------------------------------------------------------------------------------------------

def student_tree(root, tree, lesson):
    """The tree that a student starts from: stubs for the solutions, no mutants (they would tell), and a page that lists what there is
    to write, in the order of starter repositories."""
    copy = without_solutions({path: content for path, content in tree.items() if not path.startswith("tests/mutants/")},
                             lesson_regions(tree, lesson))
    where = places(copy)
    page = [f"# Exercises of lesson {lesson}", "",
            "Write the bodies between `BEGIN EXERCISE` and `END EXERCISE`; leave these two lines as they are.", ""]
    page += [f"- **{entry['number']}** ({entry['points']} points), {where[entry['number']]}. {entry['text']}"
             for entry in catalogue.entries_of(tree, [lesson]) if entry["kind"] == "implement"]
    page += ["", "Build here as in the repository (`make build`), then run the tests of one exercise or of all:", "",
             f"    ctest --test-dir build --output-on-failure -L exercise-{lesson}", "",
             f"For the points: `make grade-{lesson}` in the repository that this copy was made from.", ""]
    if catalogue.is_answered(tree, lesson):
        sheet = catalogue.sheet_of(lesson)
        copy[sheet] = catalogue.answers_module().questions_file(root, lesson, "", "").encode()
        page += [f"There are questions, too: write your answers into `{sheet}`.", ""]
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

def student_files(regions, folder):
    """The files with regions as the student left them, by path; those that are missing cost their own points only."""
    if not folder.is_dir():
        raise Refused(f"there is no folder {folder}; name the student's copy with --from, or start with "
                      f"`scripts/course/exercise.py make {regions[0].exercise.split('.')[0]}`")
    return {region.path: (folder / region.path).read_bytes() for region in regions if (folder / region.path).is_file()}


def grade(root, name, folder, json_file, work, protected):
    """Grades what was written in a folder: a lesson, as 06, or one exercise, as 06.3."""
    from judge import Judge
    if (root / "EXERCISES.md").exists():
        raise Refused("this is a student's copy; grade it from the repository that it was made from, with --from")
    tree, lesson = read_tree(root), name[:2]
    regions = [region for region in lesson_regions(tree, lesson) if name in (lesson, region.exercise)]
    if not regions:
        raise Refused(f"there is no exercise {name}; lesson {lesson} has "
                      + ", ".join(region.exercise for region in lesson_regions(tree, lesson)))
    files, sheet = student_files(regions, folder), folder / catalogue.sheet_of(lesson)
    judge, rows = Judge(root, tree, work / "judge", protected), []
    print(f"Building the course's part of {name} in {work}: some minutes the first time, later only what has changed.", flush=True)
    judge.build([region.exercise for region in regions])
    for region in regions:
        rows += judge.rows([region], files, "", "")
        print(f"{region.exercise}: {rows[-1]['verdict']}", flush=True)
    if name == lesson and sheet.is_file() and catalogue.is_answered(tree, lesson):
        rows += catalogue.answers_module().grade_answers(root, root / "build", lesson, "", sheet.read_bytes(), "")

    print("\n" + "\n".join(table_of(rows)))
    points, of = (sum(row[key] for row in rows) for key in ("points", "of"))
    json_file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(json_file, json.dumps(dict(lesson=lesson, points=points, of=of, exercises=rows), indent=2) + "\n")
    print(f"\nThe same as JSON: {json_file}")
    return 0 if points == of else 1


# ---- command line -----------------------------------------------------------------------------------------------------

def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2],
                        help="the repository (default: the one of this script)")
    commands = parser.add_subparsers(dest="command", required=True)
    of = {name: commands.add_parser(name) for name in ("make", "grade", "mutants")}
    for name, command in of.items():
        command.add_argument("lesson", nargs="?" if name == "mutants" else None, help="two digits, as 01")
    of["mutants"].add_argument("--some", action="store_true", help="the first of each exercise and lesson")
    of["mutants"].add_argument("--only", choices=("exercises", "right", "lessons"), default="",
                               help="solutions, only those that must pass, or broken lessons")
    of["mutants"].add_argument("--repeats", type=int, default=1, help="how often each is judged, with other sizes")
    of["grade"].add_argument("--no-sandbox", action="store_true", help="run the student's code as yourself: code that you trust")
    of["make"].add_argument("--to", type=pathlib.Path, help="the new folder (default: student/exercise-NN)")
    of["grade"].add_argument("--from", dest="folder", type=pathlib.Path,
                             help="the student's copy (default: student/exercise-NN)")
    of["grade"].add_argument("--json", type=pathlib.Path,
                             help="where to write the points as JSON (default: build/grade/points-NN.json)")
    of["grade"].add_argument("--work", type=pathlib.Path, help="where to build (default: build/grade)")
    of["mutants"].add_argument("--work", type=pathlib.Path, help="where to build (default: build/mutants-NN)")
    options = parser.parse_args(arguments)
    root, some = options.root.resolve(), getattr(options, "some", False)
    lesson = options.lesson or ""
    one = r"(\.\d+)?" if options.command == "grade" else ""
    if not re.fullmatch(r"\d\d" + one, lesson) and not (some and options.lesson is None):
        raise Refused(f"'{lesson}' is not the number of a lesson; write two digits, as 01")
    copy = root / "student" / f"exercise-{lesson[:2]}"
    if options.command == "make":
        return make(root, lesson, options.to or copy)
    if options.command == "grade":
        work = (options.work or root / "build/grade").resolve()
        return grade(root, lesson, options.folder or copy, options.json or work / f"points-{lesson}.json", work,
                     not options.no_sandbox)
    work = (options.work or root / "build" / "-".join(filter(None, ["mutants", lesson]))).resolve()
    from mutants import check_mutants
    return check_mutants(root, lesson, work, some, options.repeats, options.only)


if __name__ == "__main__":
    run_script(main)
