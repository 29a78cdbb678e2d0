#!/usr/bin/env python3
"""The budget of each folder: code lines, files, and seconds of tests.

    scripts/check/budgets.py [BUILD]          prints them beside scripts/check/budgets.txt, from the last run of the tests in that build
    scripts/check/budgets.py times [BUILD]    prints what each test took, the longest first

Code lines are those of C++, Python, bash, JavaScript and CSS that are neither empty nor a comment. Seconds of tests are those of
processors, user's and kernel's, which depend little on what else the machine does, and much on the machine: beyond their budget they
are a note, no failure. A budget has room for the work of some weeks; a change that needs more of it pays by deleting, or says in
scripts/check/budgets.txt why not.

Exit status: 0; 1 if a folder has more code lines or files than its budget; 2 asked for something impossible.
"""

import collections
import pathlib
import re
import signal
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "scripts/lib"))
from documents import plain_words, run_script  # noqa: E402

CODE = re.compile(r"\.(cpp|hpp|cu|cuh|c|h|py|sh|js|css)$")
NO_CODE = re.compile(r"\s*((//|#(?!include|pragma|if|else|end|define|undef)).*)?$")


def code_lines(path):
    with open(ROOT / path, encoding="utf-8") as file:
        return sum(not NO_CODE.match(line) for line in file)


def read_times(build):
    """Seconds of each test by folder/name: elapsed, user's, kernel's."""
    folder = build / "times"
    times = {}
    for path in folder.rglob("*") if folder.is_dir() else ():
        if path.is_file() and len(words := path.read_text(encoding="utf-8").split()) == 3:
            times[path.relative_to(folder).as_posix()] = tuple(map(float, words))
    return times


def print_times(build):
    times = read_times(build)
    if not times:
        print(f"error: no test has run in {build}.\n       scripts/test.sh builds and runs them.", file=sys.stderr)
        return 2
    total = sum(user + kernel for _, user, kernel in times.values())
    print(f"{'elapsed':>8} {'user':>8} {'kernel':>8} {'share':>6}  test")
    for name, (elapsed, user, kernel) in sorted(times.items(), key=lambda row: -sum(row[1][1:])):
        print(f"{elapsed:8.1f} {user:8.1f} {kernel:8.1f} {100 * (user + kernel) / total:5.1f}%  {name}")
    print(f"{len(times)} tests took {total:.0f} s of processors.")
    return 0


def print_budgets(build):
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    times = read_times(build)
    beyond = []
    print(f"\n{'folder':<17} {'code lines':>10} {'budget':>7}   {'files':>5} {'budget':>6}   {'tests, s':>8} {'budget':>6}")
    with open(ROOT / "scripts/check/budgets.txt", encoding="utf-8") as budgets:
        rows = [line.split() for line in budgets if line.strip() and not line.startswith("#")]
    owners = {folder for folder, *_ in rows}
    seconds_of = collections.Counter()
    for name, (_, user, kernel) in times.items():  # those of the tests' own programs, as the emulated GPUs, are of tests/
        owner = name.split("/")[0]
        seconds_of[owner if owner in owners else "tests"] += user + kernel
    for folder, *budget in rows:
        inside = [path for path in files if path.startswith(folder + "/") and (ROOT / path).is_file()]
        measured = (sum(code_lines(path) for path in inside if CODE.search(path)), len(inside),
                    round(seconds_of[folder]))
        limits = [None if word == "-" else int(word) for word in budget]
        (lines, number, seconds), shown = measured, ["-" if limit is None else f"{limit:,}" for limit in limits]
        print(f"{folder:<17} {lines:10,} {shown[0]:>7}   {number:5,} {shown[1]:>6}   {seconds:8,} {shown[2]:>6}")
        beyond += [(kind, f"{folder} has {value:,} {what}, {value - limit:,} beyond its budget")
                   for value, limit, kind, what in zip(measured, limits, ("error", "error", "note"),
                                                       ("code lines", "files", "seconds of tests"))
                   if limit is not None and value > limit]
    for kind, sentence in beyond:
        print(f"{kind}: {sentence} (scripts/check/budgets.txt).", file=sys.stderr)
    return 1 if any(kind == "error" for kind, _ in beyond) else 0


def main(words):
    show = print_budgets
    if words[:1] == ["times"]:
        show, words = print_times, words[1:]
    plain_words(__doc__, words, 1)
    return show(pathlib.Path(words[0]) if words else ROOT / "build")


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # "| head" ends it without a word
    run_script(main)
