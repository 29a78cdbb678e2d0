#!/usr/bin/env python3
"""Turns the log of a run into what other programs show.

    scripts/metrics.py run.jsonl --to=csv                      run.jsonl.csv: a row for each step
    scripts/metrics.py run.jsonl --to=tensorboard [--follow]   run.jsonl.tensorboard/, for tensorboard --logdir

The log is that of --log. TensorBoard's files are written by tensorboardX, or else by PyTorch and tensorboard, from PyPI.
"""

import argparse
import contextlib
import csv
import importlib
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "follow"))
import log_lines  # noqa: E402


class CannotTurn(Exception):
    """What cannot be done, and what to do."""


def to_csv(lines, path):
    """A row for each step with its validation, if it has one; a column for each number."""
    rows = {}
    for line in lines:
        if line.get("step") is not None:
            rows.setdefault(line["step"], {}).update(log_lines.numbers_of(line))
    if not rows:
        raise ValueError("it has no steps")
    columns = list(dict.fromkeys(name for row in rows.values() for name in row))
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["step", *columns])
        writer.writeheader()
        writer.writerows({"step": step, **row} for step, row in sorted(rows.items()))


def to_tensorboard(lines, path):
    for module in ("tensorboardX", "torch.utils.tensorboard"):
        with contextlib.suppress(ImportError):
            maker = importlib.import_module(module).SummaryWriter
            break
    else:
        raise CannotTurn("--to=tensorboard needs a library that is not installed.\n"
                         "       Install one: pip install tensorboardX. Or use --to=csv")
    with maker(str(path)) as writer, contextlib.suppress(KeyboardInterrupt):
        for line in lines:
            if "run" in line:
                writer.add_text("run", f"    {json.dumps(line['run'])}")
            else:
                for name, value in log_lines.numbers_of(line):
                    writer.add_scalar(name, value, line["step"])


def main(arguments):
    parser = argparse.ArgumentParser(prog="scripts/metrics.py", allow_abbrev=False,
                                     description="Turns the log of a run into what other programs show.")
    parser.add_argument("log", type=pathlib.Path, help="what a lesson writes with --log")
    parser.add_argument("--to", choices=["tensorboard", "csv"], required=True, help="what to write beside the log")
    parser.add_argument("--follow", action="store_true", help="with --to=tensorboard: go on with the steps as they come; Ctrl-C ends it")
    options = parser.parse_args(arguments)
    options.once = not options.follow
    path = options.log.with_name(f"{options.log.name}.{options.to}")
    try:
        if options.follow and options.to == "csv":
            raise CannotTurn("--follow with --to=csv: a table has all its columns only at the end.\n       Leave --follow out")
        (to_csv if options.to == "csv" else to_tensorboard)(log_lines.lines_of(options), path)
    except (OSError, CannotTurn) as error:
        print(f"error: {error}.", file=sys.stderr)
        return 2
    except (AttributeError, TypeError, ValueError) as error:
        print(f"error: {options.log} is not a log of a lesson ({error}).\n       Name a file of --log.", file=sys.stderr)
        return 2
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
