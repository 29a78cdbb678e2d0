#!/usr/bin/env python3
"""Turns the log of a run into what other programs show.

    scripts/page/metrics.py run.jsonl --to=csv           run.jsonl.csv: a row for each step
    scripts/page/metrics.py run.jsonl --to=tensorboard   run.jsonl.tensorboard/, for tensorboard --logdir
    scripts/page/metrics.py run.jsonl --to=wandb         Weights & Biases; WANDB_MODE=offline keeps everything here
    scripts/page/metrics.py run.jsonl --to=mlflow        MLflow; MLFLOW_TRACKING_URI says where it keeps them

The log is that of --log. With --follow all but the table go on with the steps as they come. They need libraries from PyPI:
tensorboardX, or else PyTorch and tensorboard; wandb; mlflow.
"""

import contextlib
import csv
import importlib
import io
import json
import pathlib
import sys
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
from documents import Refused, option_parser, parse_json, run_script  # noqa: E402
from whole_file import write_whole  # noqa: E402


def lines_of(path, follow):
    """Each whole line as a dictionary: one with `run`, then those with `step`."""
    with open(path, encoding="utf-8") as log:
        line = ""
        while True:
            line += log.readline()
            if line.endswith("\n"):
                yield parse_json(line)
                line = ""
            elif not follow:
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


def library(to, *modules):
    """The first of these modules that is installed."""
    for module in modules:
        with contextlib.suppress(ImportError):
            return importlib.import_module(module)
    raise Refused(f"--to={to} needs a library that is not installed.", f"Install one: pip install {modules[0]}. Or use --to=csv.")


def to_csv(lines, path):
    """A row for each step with its validation, if it has one; a column for each number."""
    rows = {}
    for line in lines:
        if line.get("step") is not None:
            rows.setdefault(line["step"], {}).update(numbers_of(line))
    if not rows:
        raise Refused(f"{path.stem} has no steps.", "Name the log of a run that has made some.")
    columns = list(dict.fromkeys(name for row in rows.values() for name in row))
    table = io.StringIO()
    writer = csv.DictWriter(table, ["step", *columns])
    writer.writeheader()
    writer.writerows({"step": step, **row} for step, row in sorted(rows.items()))
    write_whole(path, table.getvalue())


def give(lines, take_run, take_step):
    """Gives the run's description to one function, and each step with {name: number} to another, until Ctrl-C."""
    with contextlib.suppress(KeyboardInterrupt):
        for line in lines:
            if "run" in line:
                take_run(line["run"])
            else:
                take_step(line["step"], dict(numbers_of(line)))


def to_tensorboard(lines, path):
    def take_step(step, numbers):
        for name, value in numbers.items():
            writer.add_scalar(name, value, step)

    with library("tensorboard", "tensorboardX", "torch.utils.tensorboard").SummaryWriter(str(path)) as writer:
        give(lines, lambda run: writer.add_text("run", f"    {json.dumps(run)}"), take_step)


def to_wandb(lines, _):
    with library("wandb", "wandb").init(project="rankwise") as there:
        give(lines, lambda run: there.config.update(run, allow_val_change=True),
             lambda step, numbers: there.log(numbers, step=step))


def to_mlflow(lines, _):
    mlflow = library("mlflow", "mlflow")
    with mlflow.start_run():
        give(lines, lambda run: mlflow.log_dict(run, "run.json"), lambda step, numbers: mlflow.log_metrics(numbers, step=step))


WAYS = {"csv": to_csv, "tensorboard": to_tensorboard, "wandb": to_wandb, "mlflow": to_mlflow}


def main(arguments):
    parser = option_parser(__file__, "Turns the log of a run into what other programs show.")
    parser.add_argument("log", type=pathlib.Path, help="what a lesson writes with --log")
    parser.add_argument("--to", choices=WAYS, required=True, help="what shows it; csv and tensorboard are files beside the log")
    parser.add_argument("--follow", action="store_true", help="go on with the steps as they come, but for csv; Ctrl-C ends it")
    options = parser.parse_args(arguments)
    path = options.log.with_name(f"{options.log.name}.{options.to}")
    if options.follow and options.to == "csv":
        raise Refused("--follow with --to=csv: a table has all its columns only at the end.", "Leave --follow out.")
    try:
        WAYS[options.to](lines_of(options.log, options.follow), path)
    except OSError as error:
        raise Refused(f"{error.filename or options.log}: {error.strerror}." if error.strerror else error) from None
    except (AttributeError, TypeError, ValueError):
        raise Refused(f"{options.log} is not a log of a lesson.", "Name a file of --log.") from None
    if options.to in ("csv", "tensorboard"):
        print(path)


if __name__ == "__main__":
    run_script(main)
