"""Data parallelism on two ranks beside PyTorch's, over gloo: what is measured, and from reports to a table. Nothing here
measures."""

import dataclasses
import os
import pathlib
import statistics

from bench_peers import ALLOCATOR
from bench_tables import against, text_table, torch_config

ROUNDS = 3
STEPS = 6  # of a turn; the first is not counted


@dataclasses.dataclass(frozen=True)
class Model:
    """A model with its batch, and how many times as fast as PyTorch each lesson is to be."""

    name: str
    sizes: dict  # as training_step prints them
    batch: list
    goals: dict


GPT2 = {"vocabulary": 50257, "context": 1024, "channels": 768, "layers": 12, "heads": 12}
MINI = {"vocabulary": 256, "context": 256, "channels": 384, "layers": 6, "heads": 6}
MODELS = [Model("gpt2", GPT2, ["--global-batch=8", "--sequence=64"], {"DDP": 1.6, "ZeRO-3": 2.5}),
          Model("mini", MINI, ["--global-batch=8", "--sequence=256"], {"DDP": 1.3, "ZeRO-3": 1.6})]
LESSONS = {"DDP": ["03_ddp", "--bucket=25MB"], "ZeRO-3": ["06_zero3", "--prefetch=1"]}
PYTORCH = {"DDP": "ddp", "ZeRO-3": "fsdp2"}
TITLES = {"ddp": "DDP", "fsdp2": "FSDP2"}


def environment():
    """One thread a rank, and an allocator that keeps its memory."""
    return {**os.environ, **ALLOCATOR, "OMP_NUM_THREADS": "1"}


def config_of(model):
    """The config.json that torch_ranks.py reads."""
    return torch_config(model.sizes)


def commands(build, python, model, tokens, config):
    """Commands of each sharding, here and in PyTorch, by (sharding, where)."""
    ranks, steps = ["mpirun", "-np", 2], f"--steps={STEPS}"
    program = pathlib.Path(__file__).resolve().parents[1] / "pytorch/torch_ranks.py"
    started = {}
    for sharding, [lesson, *options] in LESSONS.items():
        started[sharding, "here"] = [*ranks, build / "lessons" / lesson, f"--model={model.name}", *model.batch, steps,
                                     f"--data={tokens}", *options]
        started[sharding, "PyTorch"] = [*ranks, python, program, PYTORCH[sharding], config, *model.batch, steps]
    return started


def peer_ranks_table(measured):
    """Tokens/s of all models and shardings. `measured`: by the model's name, the reports of each round by (sharding, where)."""
    rows = [["model", "here", "PyTorch", "here", "PyTorch", "ratio", "goal"], ["", "", "", "tokens/s", "tokens/s", "", ""]]
    for model in MODELS:
        turns = measured[model.name]
        for sharding in LESSONS:
            here, there = ([turn[sharding, where]["time"]["tokens_per_s"] for turn in turns] for where in ("here", "PyTorch"))
            ratio = statistics.median(a / b for a, b in zip(here, there))
            rows.append([f"{model.name} {' '.join(model.batch)}", sharding, TITLES[PYTORCH[sharding]],
                         f"{statistics.median(here):,.0f}", f"{statistics.median(there):,.0f}", f"{ratio:.2f}",
                         against(model.goals[sharding], ratio)])
    return text_table(rows, left=3)
