"""Changes of a lesson to the one that it builds on: the lines that are new in a file, and those that are gone.

The comparison is the one that scripts/course/diff.sh prints: section by section, each compared by git."""

import collections
import pathlib
import re
import subprocess
import tempfile

Changes = collections.namedtuple("Changes", "parent new gone")  # numbers of lines; number of a line -> lines before it

HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


def sections(text):
    """Name of each section -> its lines with their numbers. A section begins with a ruler, or with the lesson's class."""
    found = {"Beginning": []}
    name, in_class = "Beginning", False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("class "):
            name, in_class = "The step", True
        elif line.startswith("};"):
            in_class = False
        shown = line.removeprefix("  ") if in_class else line
        if shown.startswith("// ---- "):
            name = re.sub(r" -*$", "", shown.removeprefix("// ---- "))
        found.setdefault(name, []).append((number, shown, line))
    return found


def hunks(old, new):
    """Changes between two lists of lines: first line and number of lines in the old one, and in the new one."""
    with tempfile.TemporaryDirectory() as folder:
        names = []
        for name, lines in (("old", old), ("new", new)):
            names.append(pathlib.Path(folder, name))
            names[-1].write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        result = subprocess.run(["git", "diff", "--no-index", "--no-ext-diff", "--no-color", "--histogram",
                                 "--ignore-space-change", "-U0", *names], capture_output=True, text=True, check=False)
    if result.returncode not in (0, 1):
        raise SystemExit(f"error: git diff failed: {result.stderr.strip()}")
    for line in result.stdout.splitlines():
        if found := HUNK.match(line):
            first, count, new_first, new_count = (int(x) if x is not None else 1 for x in found.groups())
            yield first, count, new_first, new_count


def changes(parent, before, after):
    """The changes of the text `after` against the text `before`, which is from the lesson `parent`."""
    old, new = sections(before), sections(after)
    added, gone = set(), collections.defaultdict(list)
    for name, lines in new.items():
        if name not in old:
            added.update(number for number, _, _ in lines)
            continue
        numbers = [number for number, _, _ in lines]
        for first, count, new_first, new_count in hunks([x[1] for x in old[name]], [x[1] for x in lines]):
            added.update(numbers[new_first - 1:new_first - 1 + new_count])
            place = new_first - 1 if new_count else new_first  # git names the line after which lines are gone
            before_line = numbers[place] if place < len(numbers) else numbers[-1] + 1
            if count:
                gone[before_line] += [x[2] for x in old[name][first - 1:first - 1 + count]]
    last = len(after.splitlines()) + 1
    for name, lines in old.items():
        if name not in new:
            gone[last] += [line for _, _, line in lines]
    return Changes(parent, added, dict(gone))
