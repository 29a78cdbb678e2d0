"""Two threads and two ranks beside processes that keep the cores busy: from the reports of lessons 01 and 03 to a table of
how the policies of waits compare. Nothing here measures."""

import dataclasses
import statistics

from bench_tables import text_table

POLICY = "brief"                 # what every program does
OTHERS = ["active", "passive"]   # what it is held to the better of
LIMIT = 1.2                      # longest step, over that of the better policy
ROUNDS = 3
MODEL = ["--layers=4", "--heads=4", "--channels=128", "--context=64", "--global-batch=12"]  # shakespeare.conf of lesson 01


@dataclasses.dataclass(frozen=True)
class Situation:
    """Other load on the machine."""

    title: str
    processes: int  # that compute without end
    steps: int      # of a run


SITUATIONS = [Situation("idle", 0, 40), Situation("one busy process", 1, 30), Situation("four busy processes", 4, 15)]


@dataclasses.dataclass(frozen=True)
class Way:
    """One way to give two cores to a model."""

    title: str
    launcher: list
    lesson: str
    threads: int

    def command(self, build, text, situation):
        """Command of one run."""
        return [*self.launcher, build / "lessons" / self.lesson, *MODEL, f"--threads={self.threads}", f"--data={text}",
                f"--steps={situation.steps}"]


WAYS = [Way("two threads", [], "01_single_device", 2), Way("two ranks", ["mpirun", "-np", 2], "03_ddp", 1)]


def environment(policy):
    """With which programs wait by a policy."""
    return {"RANKWISE_WAITS": policy}


def busy_table(turns):
    """Steps of all policies in all situations; `turns` has seconds of a step by situation, way and policy for each round."""
    rows = [["two cores", *OTHERS, POLICY, "to the better", "limit"], ["", *["ms"] * (1 + len(OTHERS)), "ratio", ""]]
    for way in WAYS:
        for situation in SITUATIONS:
            steps = [turn[situation.title][way.title] for turn in turns]
            step_s = {policy: statistics.median(step[policy] for step in steps) for policy in [*OTHERS, POLICY]}
            better = min(OTHERS, key=step_s.get)
            ratio = statistics.median(step[POLICY] / step[better] for step in steps)
            rows.append([f"{way.title}, {situation.title}", *(f"{1e3 * step_s[policy]:.1f}" for policy in [*OTHERS, POLICY]),
                         f"{ratio:.2f}", f"{LIMIT:.2f} {'met' if ratio <= LIMIT else 'above'}"])
    return text_table(rows)
