"""From what the reports of lessons 01 and 08 say of their time to a table: a model that two ranks divide beside one rank with two
threads. Nothing here measures."""

import dataclasses
import statistics

from bench_tables import against, text_table


@dataclasses.dataclass(frozen=True)
class Way:
    """One way to give two cores to a model, and what its speed is held to."""

    title: str
    lesson: str
    ranks: int
    options: list
    floor: float = 0  # least tokens/s over those of one rank; 0: none

    def command(self, build, text):
        """What to start: 4 sequences of 256 tokens in one pass, one thread for each of two cores."""
        launcher = ["mpirun", "-np", self.ranks] if self.ranks > 1 else []
        return [*launcher, build / "lessons" / self.lesson, "--model=gpt2", "--global-batch=4", "--sequence=256", "--steps=4",
                f"--threads={2 // self.ranks}", f"--data={text}", *self.options]


FLOOR = 0.80
WAYS = [
    Way("lesson 01, two threads", "01_single_device", 1, []),
    Way("lesson 08, two threads", "08_tensor_parallel", 1, []),
    Way("t = 2", "08_tensor_parallel", 2, [], FLOOR),
    Way("t = 2, --sequence-parallel", "08_tensor_parallel", 2, ["--sequence-parallel"], FLOOR),
    Way("t = 2, and --regather", "08_tensor_parallel", 2, ["--sequence-parallel", "--regather"]),
]
STATES = ["parameters", "gradients", "optimizer"]
ROUNDS = 5


def speed(report):
    return report["time"]["tokens_per_s"]


def of_one_rank(turn):
    """Tokens/s of the faster of the ways with one rank."""
    return max(speed(turn[way.title]) for way in WAYS if way.ranks == 1)


def tensor_table(turns):
    """Speed of all ways, and what a rank has and sends; `turns` has the report of each way by its title for each round."""
    rows = [["two cores", "step", "speed", "to one rank", "floor", "model states", "activations", "sent in a step"],
            ["", "ms", "tokens/s", "ratio", "", "bytes a rank", "bytes a rank", "bytes a rank"]]
    for way in WAYS:
        reports = [turn[way.title] for turn in turns]
        step_s, tokens_per_s = (statistics.median(report["time"][name] for report in reports)
                                for name in ("step_s", "tokens_per_s"))
        ratio = statistics.median(speed(turn[way.title]) / of_one_rank(turn) for turn in turns)
        memory = reports[0]["memory"]
        sent = sum(group["bytes"] for group in reports[0].get("traffic", {}).values())
        rows.append([way.title, f"{1e3 * step_s:.1f}", f"{tokens_per_s:,.0f}", f"{ratio:.3f}", against(way.floor, ratio),
                     f"{sum(memory[category]['current'] for category in STATES):,}",
                     f"{memory['activations']['current']:,}", f"{sent:,}"])
    return text_table(rows)
