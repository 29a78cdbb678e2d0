#!/usr/bin/env python3
"""Runs the commands that the READMEs show the output of, and puts what they print in its place.

    scripts/check/update_output.py [FILE.md]...       (default: all of the project)

A block looks like this; the command runs in the root of the project, after scripts/mpi_environment.sh:

    <!-- output of: build/lessons/01_single_device --steps=3 | head -5 -->
    ```
    ...
    ```

or so, where the command prints a part of the page itself, a table for instance:

    <!-- text of: scripts/course/answers.py table 06 -->
    ...
    <!-- end of text -->

A command that fails leaves its block as it is; the status is then 1.
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "scripts/lib"))
from documents import Refused, plain_words, run_script  # noqa: E402
from whole_file import write_whole  # noqa: E402

BLOCK = re.compile(r"(<!-- output of: (?P<command>.*?) -->\n```\n)(?P<old>.*?)(```\n)", re.DOTALL)
TEXT = re.compile(r"(<!-- text of: (?P<command>.*?) -->\n)(?P<old>.*?)(<!-- end of text -->\n)", re.DOTALL)


def output_of(command):
    """Runs a command and returns its output, without blanks at line ends; None when it fails."""
    shell = f"source scripts/mpi_environment.sh; set -o pipefail; {command}"
    done = subprocess.run(["bash", "-c", shell], cwd=ROOT, stdout=subprocess.PIPE, text=True, errors="replace")
    if done.returncode != 0:
        print(f"failed with status {done.returncode}: {command}", file=sys.stderr)
        return None
    return "".join(line.rstrip() + "\n" for line in done.stdout.splitlines())


def update(path):
    """Rewrites one file; whether all its commands succeeded."""
    failed = []

    def renewed(block):
        text = output_of(block["command"])
        if text is None:
            failed.append(block["command"])
        return block[1] + (block["old"] if text is None else text) + block[4]

    old = path.read_text(encoding="utf-8")
    write_whole(path, TEXT.sub(renewed, BLOCK.sub(renewed, old)))
    return not failed


def main(names):
    if not plain_words(__doc__, names, len(names)):
        listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
        names = [str(ROOT / name) for name in listed.stdout.split()]
    if missing := [name for name in names if not pathlib.Path(name).is_file()]:
        raise Refused(f"there is no file {missing[0]}.\n       Name pages of the project, or none for all.")
    return 0 if all([update(pathlib.Path(name)) for name in names]) else 1


if __name__ == "__main__":
    run_script(main)
