"""From what the reports of lessons 01, 09 and 11 say of their time to a table: a model in two stages beside one rank with two threads.
Nothing here measures."""

import dataclasses
import statistics

from bench_tables import against, speed, speed_cells, text_table

RANKS, MICRO_BATCHES = 2, 8
FAST_LINK = ["--link=1us,100GB/s"]  # on which messages take next to no time of the virtual clock


@dataclasses.dataclass(frozen=True)
class Way:
    """One way to give two cores to a model, and what its speed is held to."""

    title: str
    lesson: str
    ranks: int
    options: list
    floor: float = 0  # least tokens/s over those of one rank; 0: none

    def command(self, build, text):
        """The command that trains on sequences of 256 tokens, one thread for each of two cores."""
        launcher = ["mpirun", "-np", self.ranks] if self.ranks > 1 else []
        return [*launcher, build / "lessons" / self.lesson, "--model=gpt2", "--sequence=256", "--steps=4",
                f"--threads={2 // self.ranks}", f"--data={text}", *self.options]


BATCH = [f"--global-batch={MICRO_BATCHES}", "--micro-batch=1"]
FLOOR = 0.85 * MICRO_BATCHES / (MICRO_BATCHES + RANKS - 1)
WAYS = [
    Way("lesson 01, two threads", "01_single_device", 1, BATCH),
    Way("p = 2, 1f1b", "09_pipeline_parallel", RANKS, BATCH + FAST_LINK, FLOOR),
    Way("p = 2, zero bubble", "11_zero_bubble", RANKS, BATCH + FAST_LINK),
]
LIMITS = {"virtual": 0.01, "wall": 0.05}  # how far the idle share of a clock may be from the plan
HELD = "p = 2, 1f1b"                      # the way whose idle share is held to them
ROUNDS = 3


def idle_cells(way, reports):
    """The idle share by formula, as planned, and on both clocks with the limit of each."""
    if way.ranks == 1:
        return ["-"] * 6
    shares = {name: statistics.median(report["schedule"]["idle"][name] for report in reports)
              for name in ("formula", "planned", *LIMITS)}
    cells = [f"{100 * shares['formula']:.1f}", f"{100 * shares['planned']:.1f}"]
    for name, limit in LIMITS.items():
        within = "within" if abs(shares[name] - shares["planned"]) <= limit else "beyond"
        cells += [f"{100 * shares[name]:.1f}", f"{100 * limit:.0f} {within}" if way.title == HELD else "-"]
    return cells


def pipeline_table(turns):
    """Speed and idle share of all ways; `turns` has the report of each way by its title for each round."""
    rows = [["two cores", "step", "speed", "to one rank", "floor", "activations", "idle", "planned", "virtual", "limit", "wall",
             "limit"],
            ["", "ms", "tokens/s", "ratio", "", "bytes, most", "formula, %", "%", "%", "points", "%", "points"]]
    for way in WAYS:
        reports = [turn[way.title] for turn in turns]
        ratio = statistics.median(speed(turn[way.title]) / speed(turn[WAYS[0].title]) for turn in turns)
        rows.append([way.title, *speed_cells(reports), f"{ratio:.3f}", against(way.floor, ratio),
                     f"{reports[0]['memory']['activations']['current']:,}", *idle_cells(way, reports)])
    return text_table(rows)
