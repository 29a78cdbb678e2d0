"""Each lesson shows one idea: its program differs in few lines from the one it builds on.

    test_differences.py
"""

import difflib
import pathlib
import re
import sys

LESSONS = pathlib.Path(__file__).resolve().parents[2] / "lessons"
# There are fewer code lines of a program that are new or changed; scripts/diff.sh shows them.
LIMITS = {"04": 60, "05": 60, "06": 110, "07": 150, "08": 280, "09": 480, "10": 520}


def code(lesson):
    """The lines of a lesson's program without comments, indentation and empty lines."""
    program = next(LESSONS.glob(f"{lesson}_*/{lesson}_*.cpp"))
    lines = (re.sub(r"//.*", "", line).strip() for line in program.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line]


def parent(lesson):
    program = next(LESSONS.glob(f"{lesson}_*/{lesson}_*.cpp"))
    return re.search(r"^// Builds on: *lesson (\d\d)", program.read_text(encoding="utf-8"), re.MULTILINE).group(1)


def main():
    status = 0
    for lesson, most in LIMITS.items():
        if not any(LESSONS.glob(f"{lesson}_*")):
            continue
        before = parent(lesson)
        new = sum(line.startswith("+ ") for line in difflib.ndiff(code(before), code(lesson), None, None))
        verdict = "PASS" if new < most else "FAIL"
        status |= new >= most
        print(f"{verdict}  from {before} to {lesson}: {new} lines are new or changed, under {most}")
    return status


if __name__ == "__main__":
    sys.exit(main())
