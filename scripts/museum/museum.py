#!/usr/bin/env python3
"""The museum of real bugs: published mistakes, each planted in a lesson, and which instrument catches which.

    scripts/museum/museum.py run [01 02 ...]      plants each (or these), runs it, and writes tests/museum/caught.json
    scripts/museum/museum.py check [01 02 ...]    does the same, and compares with that file instead
    scripts/museum/museum.py table | texts        prints a part of docs/museum.md, for scripts/check/update_output.py

The right programs are built first, in build/planted: some minutes. An exhibit takes some 20 seconds.

Exit status: 0; 1 if an exhibit is caught otherwise than the file says; 2 asked for something impossible.
"""

import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts/course"))

from exercise_tree import Refused, write_whole  # noqa: E402
import planted  # noqa: E402
from planted import INSTRUMENTS, Bench, look_at, read_exhibit  # noqa: E402

FOLDER = ROOT / "tests/museum"
CAUGHT = FOLDER / "caught.json"


def exhibits(numbers=()):
    """All exhibits, or those with these numbers."""
    found = [read_exhibit(path) for path in sorted(FOLDER.glob("*.patch"))]
    unknown = set(numbers) - {exhibit.number for exhibit in found}
    if unknown:
        raise Refused(f"there is no exhibit {min(unknown)} in {FOLDER.relative_to(ROOT)}")
    return [exhibit for exhibit in found if not numbers or exhibit.number in numbers]


def read_caught():
    return json.loads(CAUGHT.read_text(encoding="utf-8")) if CAUGHT.exists() else {}


def steps_until(caught):
    """After how many steps the first instrument catches it."""
    if "compiler" in caught:
        return "0"
    if step := re.match(r"step (\d+)", caught.get("digest", "")):
        return step[1]
    if set(caught) & {"bytes", "memory", "error", "chaos", "poison", "watchdog"}:
        return "1"
    return "at the end" if set(caught) & set(INSTRUMENTS) else "never"


def table():
    """One row for each exhibit, one column for each instrument."""
    columns, caught = [*INSTRUMENTS, "after steps", "first wrong number"], read_caught()
    print("\n| | exhibit | " + " | ".join(columns) + " |\n|---:|---|" + "---|" * len(columns))
    for exhibit in exhibits():
        row = {**caught[exhibit.number], "after steps": steps_until(caught[exhibit.number])}
        print(f"| {exhibit.number} | {exhibit.title} | " + " | ".join(row.get(name, "") for name in columns) + " |")
    print()


def texts():
    """The paragraph of each exhibit, with its source, its patch and its run."""
    for exhibit in exhibits():
        where = re.search(r"github\.com/([^/]+/[^/]+)/\w+/(\d+)", exhibit.source)
        run = " ".join(["-np", exhibit.ranks, *exhibit.options]) + (", stopped and resumed" if exhibit.resumes else "")
        print(f"\n### {exhibit.number}. {exhibit.title}\n\n{exhibit.text}\n\n"
              f"[{where[1]} #{where[2]}]({exhibit.source}); [the patch](../{exhibit.path}) of "
              f"[{exhibit.lesson}](../lessons/{exhibit.lesson}/{exhibit.lesson}.cpp); `{run}`.")
    print()


def always(exhibit, caught):
    """The findings that are the same in each run of an exhibit."""
    return {what: text for what, text in caught.items() if not (exhibit.races and what == "first wrong number")}


def look_at_all(command, numbers, build):
    """Looks at exhibits, and writes what catches them, or compares it with what is known."""
    work, known, chosen, status = build / "museum", read_caught(), exhibits(numbers), 0
    work.mkdir(parents=True, exist_ok=True)
    bench = Bench(build, work)
    for exhibit in chosen:
        caught = look_at(bench, exhibit)
        if command == "run":
            known[exhibit.number] = caught
            write_whole(CAUGHT, json.dumps(dict(sorted(known.items())), indent=1) + "\n")
        same = always(exhibit, caught) == always(exhibit, known.get(exhibit.number, {}))
        status |= not same
        print(f"{'PASS' if same else 'FAIL'}  {exhibit.number} {exhibit.title}: {caught}", flush=True)
    return status


if __name__ == "__main__":
    planted.run_script(lambda words: planted.main(words, __doc__, "of exhibits, as 01", look_at_all, {"table": table, "texts": texts}))
