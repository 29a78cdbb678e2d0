#!/usr/bin/env python3
"""The course, for instructors. docs/instructor/guide.md says when to use what.

    scripts/course.py doctor                                looks whether this machine has all that grading needs
    scripts/course.py pack --lessons=03,06 --to=FOLDER      writes a starter repository without the solutions of these lessons
                      --student=NAME --secret-file=FILE     and with this student's own figures in the exercises that are answered
    scripts/course.py leaks [--lessons=03,06]               looks for solutions that stand elsewhere in such a pack; of all lessons,
                                                            each packed alone, where none is named
    scripts/course.py grade SUBMISSION --lessons=03,06      grades one folder or archive; prints the points
    scripts/course.py grade [--lessons=06.3]                in a starter repository: with the tests that students have; all
                                                            exercises, or the lessons or exercises that are named
    scripts/course.py grade-all FOLDER --lessons=03,06      grades each sub-folder, archive and file of a folder; what is
                                                            graded already is not graded again
    scripts/course.py regrade FOLDER --lessons=03,06        after a change of the course: grades all again, and lists the
                                                            verdicts that have changed
    scripts/course.py export FORMAT GRADE.json... [--to=FILE]
                                                            writes grades as csv, junit, gradescope, prairielearn or classroom
    scripts/course.py similarity FOLDER --lessons=03,06     compares what students wrote, pair by pair

Exit status: 0 all points, or nothing found; 1 not all, leaks found, a submission that could not be graded; 2 asked for
something impossible.
"""

import argparse
import os
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "course"))
sys.dont_write_bytecode = True

from exercise_tree import Refused, read_tree, write_whole  # noqa: E402
from documents import run_script  # noqa: E402


def lessons_of(options):
    """The lessons that were named, sorted."""
    lessons = sorted(set(options.lessons.split(",")))
    for lesson in lessons:
        if not re.fullmatch(r"\d\d", lesson):
            raise Refused(f"--lessons={options.lessons}: '{lesson}' is not the number of a lesson. Write two digits each, as "
                          "--lessons=03,06")
    return lessons


def secret_of(options):
    """The secret of the course; empty where no file is named."""
    if options.secret_file is None:
        return ""
    try:
        secret = options.secret_file.read_text(encoding="utf-8").strip()
    except UnicodeDecodeError:
        secret = ""
    if not secret:
        raise Refused(f"--secret-file={options.secret_file}: there is no text in it. Write a line that students cannot guess, as with "
                      f"openssl rand -hex 16 >{options.secret_file}")
    return secret


def doctor(options):
    import doctor as doctors
    return doctors.examine(options.root)


def pack(options):
    import pack as packs
    lessons = lessons_of(options)
    packs.pack(options.root, lessons, options.to, options.student, secret_of(options))
    print(f"Wrote {options.to}: the exercises of the lessons {', '.join(lessons)}. No solution stands elsewhere in it.")
    return 0


def leaks(options):
    import pack as packs
    tree = read_tree(options.root)
    chosen = [lessons_of(options)] if options.lessons else [[lesson] for lesson in packs.lessons_of(tree)]
    found = set()
    for lessons in chosen:
        packs.check_lessons(tree, lessons)
        found |= {str(leak) for leak in packs.leaks_of(tree, lessons)}
    print("\n".join(sorted(found)) or "No solution stands elsewhere.")
    return 1 if found else 0


def grade(options):
    if options.submission is None:
        import visible
        return visible.grade_visible(options.root, options.json, options.lessons)
    import grade_all
    return grade_all.grade_submission(options.root, lessons_of(options), options.submission, options.student,
                                      secret_of(options), options.json, not options.no_sandbox)


def grade_all_of(options):
    import grade_all
    return grade_all.grade_all(options.root, lessons_of(options), options.folder, secret_of(options), options.jobs,
                               not options.no_sandbox)


def regrade(options):
    import grade_all
    return grade_all.regrade(options.root, lessons_of(options), options.folder, secret_of(options), options.jobs,
                             not options.no_sandbox)


def export(options):
    import exports
    text = exports.export(options.format, [exports.read_grade(path) for path in options.grades])
    if options.to:
        write_whole(options.to, text)
    elif sys.stdout.isatty():  # it gets control characters shown
        sys.stdout.write(text.replace("\r\n", "\n"))
    else:
        sys.stdout.buffer.write(text.encode("utf-8", "replace"))
    return 0


def similarity(options):
    import similarity as similarities
    return similarities.report(options.root, lessons_of(options), options.folder, options.at_least)


def parser_of():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[1],
                        help="the repository (default: the one of this script)")
    commands = parser.add_subparsers(dest="command", required=True)
    runs = {"doctor": doctor, "pack": pack, "leaks": leaks, "grade": grade, "grade-all": grade_all_of, "regrade": regrade, "export": export,
            "similarity": similarity}
    of = {name: commands.add_parser(name) for name in runs}
    for name, run in runs.items():
        of[name].set_defaults(run=run)
        if name not in ("doctor", "export"):
            of[name].add_argument("--lessons", required=name not in ("leaks", "grade"), default="", metavar="NN,NN")
    of["pack"].add_argument("--to", type=pathlib.Path, required=True, metavar="FOLDER")
    for name in ("pack", "grade"):
        of[name].add_argument("--student", default="", metavar="NAME", help="whose figures the answers are about")
    of["grade"].add_argument("submission", type=pathlib.Path, nargs="?")
    of["grade"].add_argument("--json", type=pathlib.Path, metavar="FILE", help="where to write grade.json")
    for name in ("pack", "grade", "grade-all", "regrade"):
        of[name].add_argument("--secret-file", type=pathlib.Path, metavar="FILE", help="holds the secret of the course")
    for name in ("grade", "grade-all", "regrade"):
        of[name].add_argument("--no-sandbox", action="store_true", help="run the code as yourself (SECURITY.md)")
    for name in ("grade-all", "regrade", "similarity"):
        of[name].add_argument("folder", type=pathlib.Path)
    for name in ("grade-all", "regrade"):
        of[name].add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N",
                              help="submissions that are graded at the same time (default: one a core)")
    of["similarity"].add_argument("--at-least", type=float, default=0.5, metavar="SHARE",
                                  help="the share in common from which a pair is listed (default: 0.5)")
    of["export"].add_argument("format")
    of["export"].add_argument("grades", type=pathlib.Path, nargs="+", metavar="GRADE.json")
    of["export"].add_argument("--to", type=pathlib.Path, metavar="FILE")
    return parser


def main(arguments):
    options = parser_of().parse_args(arguments)
    options.root = options.root.resolve()
    try:
        return options.run(options)
    except ModuleNotFoundError as missing:
        if not (options.root / "course.json").is_file():
            raise
        print(f"error: this is a starter repository, which has no {missing.name}. Use the course's own repository", file=sys.stderr)
        return 2


if __name__ == "__main__":
    run_script(main)
