#!/usr/bin/env python3
"""First difference of the record of a wrong program from that of the right one: all wrong solutions of exercises and all broken
lessons (tests/mutants), each planted in a lesson that trains a small model for three steps in exact arithmetic.

    scripts/museum/locate_mutants.py run [01 03.2 ...]      plants all (or those whose names begin so), and writes tests/mutants/located.json
    scripts/museum/locate_mutants.py check [01 03.2 ...]    plants them, and fails if one is no longer located that the file has as located
    scripts/museum/locate_mutants.py judge                  judges what the file has once more, after a change of scripts/course/made_by.py
    scripts/museum/locate_mutants.py table                  prints the table of docs/records.md, for scripts/check/update_output.py

The right programs are built first, in build/planted: some minutes. A mutant takes some 5 seconds on an idle machine.

Exit status: 0; 1 if one is no longer located; 2 asked for something impossible.
"""

import collections
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts/course"))

from exercise_tree import Refused, read_tree, write_whole  # noqa: E402
from located import Locator, all_mutants, made_by  # noqa: E402
import planted  # noqa: E402
from planted import Bench  # noqa: E402

LOCATED = ROOT / "tests/mutants/located.json"
ENDS = ("ends with an error", "stands still", "does not compile")


def read_located():
    return json.loads(LOCATED.read_text(encoding="utf-8")) if LOCATED.exists() else {}


def write_located(known):
    write_whole(LOCATED, json.dumps(dict(sorted(known.items())), indent=1) + "\n")


def look_at_all(command, names, build):
    """Looks at mutants, and writes what becomes of them, or compares it with what is known."""
    work, known, mutants, status = build / "located", read_located(), all_mutants(read_tree(ROOT), names), 0
    if not mutants:
        raise Refused(f"the name of no mutant begins with {' or '.join(names)}. scripts/museum/locate_mutants.py table shows the lessons")
    work.mkdir(parents=True, exist_ok=True)
    locator = Locator(Bench(build, work))
    for mutant in mutants:
        found, before = locator.look_at(mutant), known.get(mutant.name, {})
        if command == "run":
            known[mutant.name] = found
            write_located(known)
        lost = before.get("located", False) and not found.get("located", False)
        status |= lost
        print(f"{'FAIL' if lost else 'PASS'}  {mutant.name}: {found}", flush=True)
    return status


def judge():
    """Judges anew whether the sentences of the file name what the broken function makes."""
    known = read_located()
    for mutant in all_mutants(read_tree(ROOT)):
        found = known.get(mutant.name, {})
        if "first" in found:
            found["located"] = made_by(mutant.name, mutant.broken, found["first"])
    write_located(known)


def table():
    """A row for each lesson, and their sum in a sentence."""
    rows = collections.defaultdict(collections.Counter)
    for name, found in read_located().items():
        of = rows[name[:2]]
        of["all"] += 1
        of[found["outcome"]] += 1
        of["ends"] += found["outcome"] in ENDS
        of["located"] += found.get("located", False)
    columns = ("all", "no model is trained with it", "ends", "no number changes", "changes a number", "located")
    print("\n| lesson | mutants | no model is trained with them | end with an error | no number changes | a number changes | located |\n"
          + "|---:|" + "---:|" * len(columns))
    for lesson, of in sorted(rows.items()):
        print(f"| {lesson} | " + " | ".join(str(of[name]) for name in columns) + " |")
    total = sum(rows.values(), collections.Counter())
    print("| all | " + " | ".join(str(total[name]) for name in columns) + " |")
    share = 100 * total["located"] / max(total["changes a number"], 1)
    print(f"\nOf {total['changes a number']} that change a number, {total['located']} are located, {share:.1f} %.\n")


if __name__ == "__main__":
    planted.run_script(lambda words: planted.main(words, __doc__, "beginnings of names, as 01 or 03.2", look_at_all, {"judge": judge, "table": table}))
