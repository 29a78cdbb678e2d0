"""Reads what a lesson writes with --log, line by line."""

import argparse
import json
import pathlib
import time


def options_of(name, what):
    """The command line of a script that gives the lines to another program."""
    parser = argparse.ArgumentParser(prog=f"scripts/follow/{name}.py", allow_abbrev=False,
                                     description=f"Gives the steps of a run to {what}, as they come; Ctrl-C ends it.")
    parser.add_argument("log", type=pathlib.Path, help="what a lesson writes with --log")
    parser.add_argument("--once", action="store_true", help="give what is there, and end")
    return parser.parse_args()


def lines_of(options):
    """Each whole line as a dictionary: one with `run`, then those with `step`."""
    with open(options.log, encoding="utf-8") as log:
        line = ""
        while True:
            line += log.readline()
            if line.endswith("\n"):
                yield json.loads(line)
                line = ""
            elif options.once:
                return
            else:
                time.sleep(0.5)


def numbers_of(line, prefix=""):
    """(name, number) of all numbers in a line but the step, as "memory/gradients"."""
    for name, value in line.items():
        if isinstance(value, dict):
            yield from numbers_of(value, f"{prefix}{name}/")
        elif name != "step" and value is not None:
            yield prefix + name, value
