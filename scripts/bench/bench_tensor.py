"""From what the reports of lessons 01 and 08 say of their time to a table: a model that two ranks divide beside one rank with two
threads. Nothing here measures."""

import statistics

from bench_pipeline import Way
from bench_sharding import STATES
from bench_tables import against, speed, speed_cells, text_table

FLOOR = 0.80
BATCH = ["--global-batch=4"]  # in one pass
WAYS = [
    Way("lesson 01, two threads", "01_single_device", 1, BATCH),
    Way("lesson 08, two threads", "08_tensor_parallel", 1, BATCH),
    Way("t = 2", "08_tensor_parallel", 2, BATCH, FLOOR),
    Way("t = 2, --sequence-parallel", "08_tensor_parallel", 2, [*BATCH, "--sequence-parallel"], FLOOR),
    Way("t = 2, and --regather", "08_tensor_parallel", 2, [*BATCH, "--sequence-parallel", "--regather"]),
]
ROUNDS = 5


def of_one_rank(turn):
    """Tokens/s of the faster of the ways with one rank."""
    return max(speed(turn[way.title]) for way in WAYS if way.ranks == 1)


def tensor_table(turns):
    """Speed of all ways, and what a rank has and sends; `turns` has the report of each way by its title for each round."""
    rows = [["two cores", "step", "speed", "to one rank", "floor", "model states", "activations", "sent in a step"],
            ["", "ms", "tokens/s", "ratio", "", "bytes a rank", "bytes a rank", "bytes a rank"]]
    for way in WAYS:
        reports = [turn[way.title] for turn in turns]
        ratio = statistics.median(speed(turn[way.title]) / of_one_rank(turn) for turn in turns)
        memory = reports[0]["memory"]
        sent = sum(group["bytes"] for group in reports[0].get("traffic", {}).values())
        rows.append([way.title, *speed_cells(reports), f"{ratio:.3f}", against(way.floor, ratio),
                     f"{sum(memory[category]['current'] for category in STATES):,}",
                     f"{memory['activations']['current']:,}", f"{sent:,}"])
    return text_table(rows)
