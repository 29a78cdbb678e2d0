#!/usr/bin/env python3
"""Gives the steps of a run to MLflow, as they come.

    scripts/follow/to_mlflow.py run.jsonl        (needs mlflow from PyPI; MLFLOW_TRACKING_URI says where it keeps them)
"""

import contextlib

import log_lines
import mlflow


def main():
    options = log_lines.options_of("to_mlflow", "MLflow")
    with mlflow.start_run(), contextlib.suppress(KeyboardInterrupt):
        for line in log_lines.lines_of(options):
            if "run" in line:
                mlflow.log_dict(line["run"], "run.json")
            else:
                mlflow.log_metrics(dict(log_lines.numbers_of(line)), step=line["step"])


if __name__ == "__main__":
    main()
