#!/usr/bin/env python3
"""Gives the steps of a run to TensorBoard, as they come.

    scripts/follow/to_tensorboard.py run.jsonl &        (needs tensorboardX from PyPI)
    tensorboard --logdir=run.jsonl.tensorboard
"""

import contextlib
import json

import log_lines
from tensorboardX import SummaryWriter


def main():
    options = log_lines.options_of("to_tensorboard", "TensorBoard")
    with SummaryWriter(f"{options.log}.tensorboard") as writer, contextlib.suppress(KeyboardInterrupt):
        for line in log_lines.lines_of(options):
            if "run" in line:
                writer.add_text("run", f"    {json.dumps(line['run'])}")
            else:
                for name, value in log_lines.numbers_of(line):
                    writer.add_scalar(name, value, line["step"])


if __name__ == "__main__":
    main()
