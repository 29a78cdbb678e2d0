#!/usr/bin/env python3
"""Gives the steps of a run to Weights & Biases, as they come.

    scripts/follow/to_wandb.py run.jsonl        (needs wandb from PyPI; WANDB_MODE=offline keeps everything here)
"""

import contextlib

import log_lines
import wandb


def main():
    options = log_lines.options_of("to_wandb", "Weights & Biases")
    with wandb.init(project="rankwise") as run, contextlib.suppress(KeyboardInterrupt):
        for line in log_lines.lines_of(options):
            if "run" in line:
                run.config.update(line["run"], allow_val_change=True)
            else:
                run.log(dict(log_lines.numbers_of(line)), step=line["step"])


if __name__ == "__main__":
    main()
