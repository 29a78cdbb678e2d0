"""From what the reports of lessons 03 to 06 say of their time to a table: the price of holding less. Nothing here measures."""

import dataclasses
import statistics

from bench_tables import against, speed, speed_cells, text_table


@dataclasses.dataclass(frozen=True)
class Stage:
    """One lesson, and what its speed is held to."""

    title: str
    lesson: str
    options: list
    floor: float = 0  # least tokens/s over those of the first stage; 0: none

    def command(self, build, text):
        """Command of one run: 2 ranks, 4 sequences of 64 tokens each."""
        return ["mpirun", "-np", 2, build / "lessons" / self.lesson, "--model=gpt2", "--global-batch=8", "--sequence=64",
                "--steps=6", f"--data={text}", *self.options]


WAYS = [
    Stage("DDP", "03_ddp", ["--bucket=25MB"]),
    Stage("ZeRO-1", "04_zero1", ["--bucket=25MB"], floor=1.0),
    Stage("ZeRO-2", "05_zero2", ["--bucket=25MB"], floor=1.0),
    Stage("ZeRO-3", "06_zero3", ["--prefetch=1"], floor=0.85),
]
STATES = ["parameters", "gradients", "optimizer"]
ROUNDS = 5
TEXT = "The lessons validate after the last step. With a short text that takes no time. " * 160


def sharding_table(turns):
    """Speed of all stages, and what a rank keeps of the model from step to step; `turns` has the report of each stage by its title for each round."""
    first = WAYS[0].title
    rows = [["stage", "step", "speed", "to DDP", "floor", "model states"], ["", "ms", "tokens/s", "ratio", "", "bytes a rank"]]
    for stage in WAYS:
        reports = [turn[stage.title] for turn in turns]
        ratio = statistics.median(speed(turn[stage.title]) / speed(turn[first]) for turn in turns)
        states = sum(reports[0]["memory"][category]["current"] for category in STATES)
        rows.append([stage.title, *speed_cells(reports), f"{ratio:.3f}", against(stage.floor, ratio),
                     f"{states:,}"])
    return text_table(rows)
