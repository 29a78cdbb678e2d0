"""Lessons in several ways beside each other, each way once a round: what is started, and from what the reports say to tables. Nothing
here measures."""

import dataclasses
import statistics
from collections.abc import Callable

from bench_tables import against, below, speed, speed_cells, text_table

TEXT = "The lessons validate after the last step. With a short text that takes no time. " * 160
TWO_RANKS = ["mpirun", "-np", 2]
STATES = ["parameters", "gradients", "optimizer"]


@dataclasses.dataclass(frozen=True)
class Way:
    """One lesson with GPT-2 on some ranks, and what its speed is held to."""

    title: str
    lesson: str
    ranks: int
    options: list
    floor: float = 0  # least tokens/s over those of what it is compared with; 0: none

    def command(self, build, text):
        """Command of one run."""
        launcher = ["mpirun", "-np", self.ranks] if self.ranks > 1 else []
        return [*launcher, build / "lessons" / self.lesson, "--model=gpt2", *self.options, f"--data={text}"]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Ways beside each other, and the columns of their table behind their speeds."""

    ways: list
    rounds: int
    what: str            # the ways are
    to: str              # what speeds are compared with, and
    reference: Callable  # reference(turn): its tokens/s
    columns: list        # (title, unit)
    cells: Callable      # cells(way, reports): what is in them

    def table(self, turns):
        """Speed of all ways, and what else is shown of them; `turns` has the report of each way by its title for each round."""
        titles, units = zip(*self.columns)
        rows = [[self.what, "step", "speed", self.to, "floor", *titles], ["", "ms", "tokens/s", "ratio", "", *units]]
        for way in self.ways:
            reports = [turn[way.title] for turn in turns]
            ratio = statistics.median(speed(turn[way.title]) / self.reference(turn) for turn in turns)
            rows.append([way.title, *speed_cells(reports), f"{ratio:.3f}", against(way.floor, ratio), *self.cells(way, reports)])
        return text_table(rows)


def states_cell(report):
    """Bytes that a rank keeps of the model from step to step."""
    return f"{sum(report['memory'][category]['current'] for category in STATES):,}"


def activations_cell(report):
    return f"{report['memory']['activations']['current']:,}"


# ---- Lessons 03 to 06: the price of holding less -----------------------------------------------------------------------

BATCH_OF_RANKS = ["--global-batch=8", "--sequence=64", "--steps=6"]
SHARDING = Comparison([
    Way("DDP", "03_ddp", 2, [*BATCH_OF_RANKS, "--bucket=25MB"]),
    Way("ZeRO-1", "04_zero1", 2, [*BATCH_OF_RANKS, "--bucket=25MB"], floor=1.0),
    Way("ZeRO-2", "05_zero2", 2, [*BATCH_OF_RANKS, "--bucket=25MB"], floor=1.0),
    Way("ZeRO-3", "06_zero3", 2, [*BATCH_OF_RANKS, "--prefetch=1"], floor=0.85),
], rounds=5, what="stage", to="to DDP", reference=lambda turn: speed(turn["DDP"]), columns=[("model states", "bytes a rank")],
    cells=lambda _, reports: [states_cell(reports[0])])


# ---- A model that two ranks divide beside one rank with two threads ----------------------------------------------------


def on_two_cores(title, lesson, ranks, options, floor=0):
    """A way that trains on sequences of 256 tokens, one thread for each of two cores."""
    return Way(title, lesson, ranks, ["--sequence=256", "--steps=4", f"--threads={2 // ranks}", *options], floor)


def tensor_cells(_, reports):
    """What a rank has and sends."""
    sent = sum(group["bytes"] for group in reports[0].get("traffic", {}).values())
    return [states_cell(reports[0]), activations_cell(reports[0]), f"{sent:,}"]


BATCH, FLOOR = ["--global-batch=4"], 0.80  # in one pass
ONE_RANK = [on_two_cores(f"lesson {number}, two threads", lesson, 1, BATCH)
            for number, lesson in (("01", "01_single_device"), ("08", "08_tensor_parallel"))]
TENSOR = Comparison([
    *ONE_RANK,
    on_two_cores("t = 2", "08_tensor_parallel", 2, BATCH, FLOOR),
    on_two_cores("t = 2, --sequence-parallel", "08_tensor_parallel", 2, [*BATCH, "--sequence-parallel"], FLOOR),
    on_two_cores("t = 2, and --regather", "08_tensor_parallel", 2, [*BATCH, "--sequence-parallel", "--regather"]),
], rounds=5, what="two cores", to="to one rank", reference=lambda turn: max(speed(turn[way.title]) for way in ONE_RANK),
    columns=[("model states", "bytes a rank"), ("activations", "bytes a rank"), ("sent in a step", "bytes a rank")], cells=tensor_cells)

STAGES, MICRO_BATCHES = 2, 8
PIPELINE_FLOOR = 0.85 * MICRO_BATCHES / (MICRO_BATCHES + STAGES - 1)
IN_MICRO_BATCHES = [f"--global-batch={MICRO_BATCHES}", "--micro-batch=1"]
FAST_LINK = "--link=1us,100GB/s"          # on which messages take next to no time of the virtual clock
LIMITS = {"virtual": 0.01, "wall": 0.05}  # how far the idle share of a clock may be from the plan
HELD = "p = 2, 1f1b"                      # the way whose idle share is held to them


def pipeline_cells(way, reports):
    """Activations, then the idle share by formula, as planned, and on both clocks with the limit of each."""
    if way.ranks == 1:
        return [activations_cell(reports[0]), *["-"] * 6]
    shares = {name: statistics.median(report["schedule"]["idle"][name] for report in reports)
              for name in ("formula", "planned", *LIMITS)}
    cells = [activations_cell(reports[0]), f"{100 * shares['formula']:.1f}", f"{100 * shares['planned']:.1f}"]
    for name, limit in LIMITS.items():
        within = "within" if abs(shares[name] - shares["planned"]) <= limit else "beyond"
        cells += [f"{100 * shares[name]:.1f}", f"{100 * limit:.0f} {within}" if way.title == HELD else "-"]
    return cells


PIPELINE = Comparison([
    on_two_cores("lesson 01, two threads", "01_single_device", 1, IN_MICRO_BATCHES),
    on_two_cores(HELD, "09_pipeline_parallel", STAGES, [*IN_MICRO_BATCHES, FAST_LINK], PIPELINE_FLOOR),
    on_two_cores("p = 2, zero bubble", "11_zero_bubble", STAGES, [*IN_MICRO_BATCHES, FAST_LINK]),
], rounds=3, what="two cores", to="to one rank", reference=lambda turn: speed(turn["lesson 01, two threads"]),
    columns=[("activations", "bytes, most"), ("idle", "formula, %"), ("planned", "%"), ("virtual", "%"), ("limit", "points"), ("wall", "%"),
     ("limit", "points")], cells=pipeline_cells)


# ---- Lessons 06 and 07: the price of a model state that lies elsewhere -------------------------------------------------

SEQUENCES = [1, 4, 16]  # a rank; of 64 tokens
PLACES = ["ZeRO-3", "host", "disk", "clipping"]  # the last one: on disk, where the update waits for the gradients' norm
OFFLOAD_FLOOR = 0.90  # least tokens/s with everything on the host, over those of lesson 06
OFFLOAD_LIMIT = 1.25  # longest step with everything on disk and --clip=0, over the longer of its arithmetic and its transfers
OFFLOAD_ROUNDS = 3


def offload_commands(build, text, folder):
    """Commands by (sequences, place): 2 ranks, four steps."""
    disk = f"--tier=disk:{folder}"
    offloaded = {"ZeRO-3": ["06_zero3", "--clip=0"], "host": ["07_offload", "--tier=host", "--clip=0"],
                 "disk": ["07_offload", disk, "--clip=0"], "clipping": ["07_offload", disk]}
    return {(sequences, place): [*TWO_RANKS, build / "lessons" / offloaded[place][0], "--model=gpt2",
                                 f"--global-batch={2 * sequences}", "--sequence=64", "--steps=4", f"--data={text}",
                                 *offloaded[place][1:]]
            for sequences in SEQUENCES for place in PLACES}


def transfer_s(report):
    """Seconds that the disk by itself, reading and writing at the same time, would need for the bytes of a step."""
    links = report["links"]
    return 1e-9 * (links["disk to host"]["bytes"] + links["host to disk"]["bytes"]) / links["disk"]["GBps"]


def step_s(report):
    return report["time"]["step_s"]


def to_bound(turn, sequences, place):
    """A step on disk over the longer of arithmetic and transfers: a step on the host, and the disk by itself."""
    report = turn[sequences, place]
    return step_s(report) / max(step_s(turn[sequences, "host"]), transfer_s(report))


def offload_table(turns):
    """Steps of each place, for each batch; `turns` has the reports by (sequences, place) for each round."""
    rows = [["sequences", "ZeRO-3", "host", "to ZeRO-3", "floor", "disk", "disk alone", "to the longer", "limit", "clipping",
             "disk alone", "to the longer"],
            ["a rank", "ms", "ms", "speed", "", "ms", "ms", "time", "", "ms", "ms", "time"]]
    for n in SEQUENCES:
        def ms(of, place, n=n):
            return f"{1e3 * statistics.median(of(turn[n, place]) for turn in turns):.0f}"

        host = statistics.median(step_s(turn[n, "ZeRO-3"]) / step_s(turn[n, "host"]) for turn in turns)
        time, clipping = (statistics.median(to_bound(turn, n, place) for turn in turns) for place in ("disk", "clipping"))
        rows.append([str(n), ms(step_s, "ZeRO-3"), ms(step_s, "host"), f"{host:.3f}", against(OFFLOAD_FLOOR, host),
                     ms(step_s, "disk"), ms(transfer_s, "disk"), f"{time:.2f}", below(OFFLOAD_LIMIT, time),
                     ms(step_s, "clipping"), ms(transfer_s, "clipping"), f"{clipping:.2f}"])
    return text_table(rows)


# ---- The start of lesson 01 beside that of a program that only starts MPI ----------------------------------------------

LAUNCHES = {"no launcher": [], "mpirun -np 1": ["mpirun", "-np", 1]}
FIRST_LINE = r"started"
FIRST_STEP = r" +0 .* ([\d.]+)$"  # the line of the first step ends with its milliseconds
MOST_MORE_S = 0.05
STARTUP_ROUNDS = 15


def startup_commands(build, text):
    """Commands by launch: a program that only starts MPI, and lesson 01."""
    return {launch: ([*words, build / "tests/empty_program"], [*words, build / "lessons/01_single_device", "--steps=1", f"--data={text}"])
            for launch, words in LAUNCHES.items()}


def startup_table(turns):
    """The medians of (seconds of the empty program, seconds to the first step of lesson 01) by launch over the rounds."""
    rows = [["launch", "empty program", "lesson 01", "more", "limit"], ["", "s", "s to its first step", "s", "s"]]
    for launch in LAUNCHES:
        empty, lesson = (statistics.median(seconds) for seconds in zip(*(turn[launch] for turn in turns)))
        more = statistics.median(turn[launch][1] - turn[launch][0] for turn in turns)
        rows.append([launch, f"{empty:.3f}", f"{lesson:.3f}", f"{more:.3f}", below(MOST_MORE_S, more)])
    return text_table(rows)


# ---- Two threads and two ranks beside processes that keep the cores busy: policies of waits ----------------------------

POLICY = "brief"                        # what every program does
OTHER_POLICIES = ["active", "passive"]  # what it is held to the better of
BUSY_LIMIT = 1.2                        # longest step, over that of the better policy
BUSY_ROUNDS = 3
BUSY_MODEL = ["--layers=4", "--heads=4", "--channels=128", "--context=64", "--global-batch=12"]  # shakespeare.conf of lesson 01


@dataclasses.dataclass(frozen=True)
class Situation:
    """Other load on the machine."""

    title: str
    processes: int  # that compute without end
    steps: int      # of a run


SITUATIONS = [Situation("idle", 0, 40), Situation("one busy process", 1, 30), Situation("four busy processes", 4, 15)]
BUSY_WAYS = {"two threads": ([], "01_single_device", 2), "two ranks": (TWO_RANKS, "03_ddp", 1)}  # launcher, lesson, threads


def busy_command(way, build, text, situation):
    """Command of one run."""
    launcher, lesson, threads = BUSY_WAYS[way]
    return [*launcher, build / "lessons" / lesson, *BUSY_MODEL, f"--threads={threads}", f"--data={text}", f"--steps={situation.steps}"]


def waits(policy):
    """Environment in which programs wait by a policy."""
    return {"RANKWISE_WAITS": policy}


def busy_table(turns):
    """Steps of all policies in all situations; `turns` has seconds of a step by situation, way and policy for each round."""
    policies = [*OTHER_POLICIES, POLICY]
    rows = [["two cores", *policies, "to the better", "limit"], ["", *["ms"] * len(policies), "ratio", ""]]
    for way in BUSY_WAYS:
        for situation in SITUATIONS:
            steps = [turn[situation.title][way] for turn in turns]
            medians = {policy: statistics.median(step[policy] for step in steps) for policy in policies}
            better = min(OTHER_POLICIES, key=medians.get)
            ratio = statistics.median(step[POLICY] / step[better] for step in steps)
            rows.append([f"{way}, {situation.title}", *(f"{1e3 * medians[policy]:.1f}" for policy in policies), f"{ratio:.2f}",
                         below(BUSY_LIMIT, ratio)])
    return text_table(rows)
