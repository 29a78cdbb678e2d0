"""Each lesson shows one idea: its program differs in few lines from the one it builds on, is short, and begins with its step.

    test_differences.py
"""

import difflib
import pathlib
import re
import sys

LESSONS = pathlib.Path(__file__).resolve().parents[2] / "lessons"
BESIDE = ("options.hpp", "options.cpp", "costs.hpp", "costs.cpp")
# The most code lines that are new or changed: of the program, and of it with its options and costs. scripts/course/diff.sh shows
# those of the program.
NEW = {"03": (90, 135), "04": (30, 56), "05": (45, 65), "06": (45, 85), "07": (90, 140), "08": (130, 190),
       "09": (180, 240), "10": (200, 260), "11": (130, 200), "12": (110, 190), "13": (100, 340),
       "15": (160, 380), "16": (220, 460)}
LONGEST = {"07": 240, "09": 240, "10": 240, "13": 240, "14": 210, "15": 240, "16": 250}  # the most code lines of a program; of the others 200
STEP_WITHIN = 60  # lines of the file, its header among them, within which train_step() begins


def folder(lesson):
    return next(LESSONS.glob(f"{lesson}_*"))


def code(path):
    """The lines of a file without comments, indentation and empty lines; none where there is no file."""
    if not path.exists():
        return []
    lines = (re.sub(r"//.*", "", line).strip() for line in path.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line]


def program(lesson):
    return folder(lesson) / f"{folder(lesson).name}.cpp"


def parent(lesson):
    return re.search(r"^// Builds on: *lesson (\d\d)", program(lesson).read_text(encoding="utf-8"), re.MULTILINE).group(1)


def new_lines(before, after):
    return sum(line.startswith("+ ") for line in difflib.ndiff(code(before), code(after), None, None))


class Verdicts:
    """Prints a line for each thing that holds or does not."""

    def __init__(self):
        self.status = 0

    def at_most(self, what, number, most):
        self.status |= number > most
        print(f"{'PASS' if number <= most else 'FAIL'}  {what}: {number}, at most {most}")


def look_at_size(lesson, verdicts):
    lines = program(lesson).read_text(encoding="utf-8").splitlines()
    verdicts.at_most(f"{lesson}, code lines of the program", len(code(program(lesson))), LONGEST.get(lesson, 200))
    first = next((number for number, line in enumerate(lines, 1) if "StepReport train_step(" in line), len(lines))
    verdicts.at_most(f"{lesson}, line where train_step() begins", first, STEP_WITHIN)
    sources = [path for path in folder(lesson).iterdir() if path.suffix in (".cpp", ".hpp")]
    print(f"      {lesson}, code lines of the folder: {sum(len(code(path)) for path in sources)}")


def look_at_difference(lesson, verdicts):
    before = parent(lesson)
    if not (folder(before) / "costs.hpp").exists():
        print(f"SKIP  from {before} to {lesson}: lesson {before} is not in the frame")
        return
    of_program = new_lines(program(before), program(lesson))
    of_all = of_program + sum(new_lines(folder(before) / name, folder(lesson) / name) for name in BESIDE)
    verdicts.at_most(f"from {before} to {lesson}, new or changed lines of the program", of_program, NEW[lesson][0])
    verdicts.at_most(f"from {before} to {lesson}, and of its options and costs", of_all, NEW[lesson][1])


def main():
    verdicts = Verdicts()
    for lesson in (path.name[:2] for path in sorted(LESSONS.glob("[0-9][0-9]_*"))):
        if lesson == "02":  # measures messages, and trains nothing
            continue
        if not (folder(lesson) / "costs.hpp").exists():
            print(f"SKIP  {lesson}: not in the frame")
            continue
        look_at_size(lesson, verdicts)
        if lesson in NEW:
            look_at_difference(lesson, verdicts)
    return verdicts.status


if __name__ == "__main__":
    sys.exit(main())
