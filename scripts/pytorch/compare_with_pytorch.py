#!/usr/bin/env python3
"""The same training run in PyTorch, in PyTorch Lightning and here: losses, time and memory in one table and one picture.

    scripts/pytorch/compare_with_pytorch.py [--ranks=2] [--threads=1] [--rows=NAME,...] [--rounds=1] [--text=FILE]
                                    [--picture=FILE.svg] [--report=FILE.json] [OPTION OF THE LESSONS]...

All rows start from the weights that lesson 01 initialises, read the same windows of the same text in the same order, and have
the hyper-parameters of lesson 01's report. The script ends with status 1 when a loss differs from lesson 01's by more than 1e-6
of it. PyTorch has its fused AdamW, flushes denormals, and allocates with jemalloc or tcmalloc, if one is installed, else with a
malloc that keeps the memory it was given (MALLOC_MMAP_MAX_=0).
"""

import ctypes.util
import dataclasses
import importlib.metadata
import importlib.util
import json
import math
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[1:1] = [str(ROOT / "scripts" / folder) for folder in ("bench", "plot", "lib")]

import plot_baselines  # noqa: E402
from bench_collectives import WARM  # noqa: E402
from bench_tables import text_table  # noqa: E402
from training_rules import philox  # noqa: E402
from documents import Failed, Refused, option_parser, refusing, run_script  # noqa: E402
from whole_file import write_whole  # noqa: E402
from with_mpi import with_mpi  # noqa: E402

LIMIT = 1e-6  # largest relative difference of a loss
LESSON_OPTIONS = ["model", "layers", "heads", "channels", "context", "vocabulary", "global-batch", "micro-batch", "sequence",
                  "seed", "learning-rate", "min-learning-rate", "learning-rate-schedule", "warmup", "beta1", "beta2", "epsilon",
                  "weight-decay", "clip"]
DEFAULTS = {"model": "mini", "global-batch": 4, "learning-rate": "3e-4", "learning-rate-schedule": "cosine"}
LEAST = {"ranks": 1, "threads": 1, "rounds": 1, "steps": 2}  # the first step is not timed
# Runs a program and adds the most memory that it had resident, in KiB, to a file.
RESIDENT = ("import resource, subprocess, sys; done = subprocess.run(sys.argv[2:]); "
            "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=open(sys.argv[1], 'a')); "
            "sys.exit(done.returncode)")
WORDS = "the a my owls hen bee emu crow ants bears pigs runs feeds naps digs by near and well field 12 67 old young lazy".split()


@dataclasses.dataclass
class Row:
    """One way to train, and what it gave."""

    title: str
    kind: str            # program of a lesson, or kind of torch_training.py
    ours: bool
    processes: int = 0   # 0: --ranks
    losses: list = dataclasses.field(default_factory=list)
    seconds: list = dataclasses.field(default_factory=list)   # of each step but the first, over all rounds
    memory: int = 0      # bytes: ours as the ledger counts, PyTorch's as a process has grown since its imports
    resident: int = 0    # bytes of a process, at most
    unavailable: str = ""

    def step_s(self):
        """The median of all steps."""
        return statistics.median(self.seconds)


def all_rows():
    """By the names that --rows takes."""
    return {"01": Row("ours, lesson 01", "01_single_device", True, 1), "torch": Row("PyTorch", "single", False, 1),
            "03": Row("ours, lesson 03 (DDP)", "03_ddp", True), "ddp": Row("PyTorch DDP", "ddp", False),
            "lightning-ddp": Row("Lightning DDPStrategy", "lightning-ddp", False),
            "06": Row("ours, lesson 06 (ZeRO-3)", "06_zero3", True), "fsdp2": Row("PyTorch FSDP2", "fsdp2", False),
            "lightning-fsdp": Row("Lightning FSDPStrategy", "lightning-fsdp", False)}


# ---- Runs --------------------------------------------------------------------------------------------------------------


def run(commands, folder, environment=None):
    """Runs programs side by side; when one fails the others are ended.
    @throws Refused, Failed  with the messages of the one that failed."""
    logs = [folder / f"messages{i}.txt" for i in range(len(commands))]
    processes = []
    for log, command in zip(logs, commands):
        with open(log, "wb") as messages:
            processes.append(subprocess.Popen(with_mpi(*command), stdout=subprocess.DEVNULL, stderr=messages,
                                              env={**os.environ, **(environment or {})}))
    while any(process.poll() is None for process in processes) and not any(process.returncode for process in processes):
        time.sleep(0.02)
    failed = next((i for i, process in enumerate(processes) if process.returncode), None)
    for process in processes:
        if failed is not None:
            process.terminate()
        process.wait()
    if failed is not None:
        message = logs[failed].read_text(encoding="utf-8", errors="replace").split("\n---")[0].strip()  # mpirun's own follows
        ended = f"{commands[failed]} has ended with status {processes[failed].returncode}."
        raise (Refused if processes[failed].returncode == 2 else Failed)(message[-2000:].removeprefix("error: ") or ended)


class Comparison:
    """Options that all rows share, and the runs."""

    def __init__(self, known, folder):
        self.known, self.folder = known, pathlib.Path(folder)
        given = {name: getattr(known, name.replace("-", "_")) for name in LESSON_OPTIONS}
        sizes = [f"--{name}={value}" for name, value in given.items() if value is not None]
        self.options = [*sizes, f"--steps={known.steps}"]
        # Refuses what N ranks cannot run, before anything is trained.
        run([[self.lesson("03_ddp"), "--dry-run", f"--ranks={known.ranks}", *self.options]], self.folder)
        self.prepare(known.text.read_bytes() if known.text else words(), [size for size in sizes if not re.match("--(.*learning-rate|warmup)", size)])

    def lesson(self, name):
        """Path of a lesson's program."""
        return self.known.build / "lessons" / name

    def prepare(self, text, sizes):
        """Leaves the tokens, and the weights that lesson 01 begins with: those of a step with learning rate 0."""
        (self.folder / "text.txt").write_bytes(text)
        with refusing(f"--text={self.known.text}", "Use a text in UTF-8.", UnicodeDecodeError):
            characters = text.decode("utf-8")
        (self.folder / "train.txt").write_text(characters[:len(characters) * 9 // 10], encoding="utf-8", newline="")
        tokens, start = self.folder / "text.h5", self.folder / "start.h5"
        self.options.append(f"--data={tokens}")
        run([[self.known.build / "data/prepare", "--tokenizer=byte", self.folder / "text.txt", tokens]], self.folder)
        run([[self.lesson("01_single_device"), *sizes, f"--data={tokens}", "--steps=1", "--learning-rate=0",
              f"--checkpoint={start}"]], self.folder)
        run([[self.known.build / "data/weights", "export", start, self.folder / "start"]], self.folder)

    def train(self, row):
        """Adds one run to a row."""
        row.processes = row.processes or self.known.ranks
        losses, seconds, row.memory, row.resident = (self.train_here if row.ours else self.train_in_pytorch)(row)
        row.losses = losses
        row.seconds += seconds[1:]

    def train_here(self, row):
        """Losses, seconds of each step, bytes in the ledger, resident bytes."""
        report, log, most = (self.folder / name for name in ("report.json", "log.jsonl", "most.txt"))
        most.unlink(missing_ok=True)
        launcher = ["mpirun", "-np", row.processes] if row.processes > 1 else []
        run([[*launcher, sys.executable, "-c", RESIDENT, most, self.lesson(row.kind), *self.options,
              f"--threads={self.known.threads}", f"--report={report}", f"--log={log}"]], self.folder)
        document = json.loads(report.read_text(encoding="utf-8"))
        if row.kind == "01_single_device":
            self.report = document
        steps = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
        memory = sum(category["peak"] for category in document["memory"].values())
        resident = 1024 * max(map(int, most.read_text(encoding="ascii").split()))
        return document["loss"], [step["seconds"] for step in steps if "loss" in step], memory, resident

    def train_in_pytorch(self, row):
        """Trains a row in PyTorch, by the options in the report of lesson 01."""
        job = {"options": self.report["options"], "threads": self.known.threads, "text": str(self.folder / "train.txt"),
               "config": json.loads((self.folder / "start/config.json").read_text(encoding="utf-8")),
               "weights": str(self.folder / "start/model.safetensors"),
               "meeting": (self.folder / f"meeting{time.time_ns()}").as_uri()}
        (self.folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        results = [self.folder / f"result{rank}.json" for rank in range(row.processes)]
        program = [sys.executable, ROOT / "scripts/pytorch/torch_training.py", self.folder / "job.json", row.kind]
        run([[*program, rank, row.processes, result] for rank, result in enumerate(results)], self.folder,
            {**allocator()[1], "OMP_NUM_THREADS": str(self.known.threads)})
        first, *_ = found = [json.loads(result.read_text(encoding="utf-8")) for result in results]
        row.unavailable = first.get("unavailable", "")
        if row.unavailable:
            return [], [], 0, 0
        return first["losses"], first["seconds"], max(one["grown"] for one in found), max(one["resident"] for one in found)


def words():
    """A text of 6000 words, the same everywhere."""
    return " ".join(WORDS[philox((i, 0, 0, 0), (1, 0)) % len(WORDS)] for i in range(6000)).encode("ascii")


def allocator():
    """Name and environment of the allocator for PyTorch."""
    library = ctypes.util.find_library("jemalloc") or ctypes.util.find_library("tcmalloc_minimal")
    return (library, {"LD_PRELOAD": library}) if library else ("malloc with MALLOC_MMAP_MAX_=0", WARM)


# ---- What is shown -----------------------------------------------------------------------------------------------------


def difference(losses, others):
    """The largest relative difference of two runs' losses."""
    apart = [abs(loss - other) / abs(loss) for loss, other in zip(losses, others, strict=True)]
    return max(math.inf if math.isnan(one) else one for one in apart)


def table(rows, tokens):
    """All rows beside each other; `tokens` are those of a step, and the first row is what losses are compared with."""
    cells = [["", "processes", "first loss", "last loss", "off by", "step", "speed", "memory", "process"],
             ["", "", "nats/token", "nats/token", "ratio", "ms", "tokens/s", "MB", "MB, most"]]
    for row in rows:
        shown = ["-"] * 7 if row.unavailable else [
            f"{row.losses[0]:.6f}", f"{row.losses[-1]:.6f}", f"{difference(rows[0].losses, row.losses):.1e}",
            f"{1e3 * row.step_s():.1f}", f"{tokens / row.step_s():,.0f}", f"{row.memory / 1e6:.1f}", f"{row.resident / 1e6:.1f}"]
        cells.append([row.title, str(row.processes), *shown])
    return text_table(cells) + "".join(f"# {row.title}: {row.unavailable}\n" for row in rows if row.unavailable)


def curves(rows):
    """The losses of all rows, a line for each step."""
    rows = [row for row in rows if not row.unavailable]
    titles = [row.title.removeprefix("ours, ") for row in rows]
    lines = [[str(step), *(f"{row.losses[step]:.7f}" for row in rows)] for step in range(len(rows[0].losses))]
    return text_table([["step", *titles], *lines], left=0)


def judge(rows):
    """(True if all losses agree, the line that says so)."""
    worst = max(difference(rows[0].losses, row.losses) for row in rows if not row.unavailable)
    passed = worst <= LIMIT
    return passed, f"{'PASS' if passed else 'FAIL'}  losses off by {worst:.1e}  expected at most {LIMIT:.0e} of {rows[0].title}"


def parse(arguments):
    """The options; Refused for those that cannot be."""
    parser = option_parser(__file__, __doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, default=2, help="processes of a row that is not alone (default: 2)")
    parser.add_argument("--threads", type=int, default=1, help="of each process (default: 1)")
    parser.add_argument("--rows", default=",".join(all_rows()), help="which ways to train, lesson 01 always (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each row, in turns; times are medians over all (default: 1)")
    parser.add_argument("--steps", type=int, default=20, help="of each run (default: 20)")
    parser.add_argument("--text", type=pathlib.Path, help="a text in UTF-8 to train on, byte by byte (default: 6000 words)")
    parser.add_argument("--picture", type=pathlib.Path, help="a file for the picture, as SVG")
    parser.add_argument("--report", type=pathlib.Path, help="a file for all figures, as JSON")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build", help="the folder of the build (default: build)")
    for name in LESSON_OPTIONS:
        parser.add_argument(f"--{name}", default=DEFAULTS.get(name), help="as in the lessons (default: %(default)s)")
    known = parser.parse_args(arguments)
    for name, least in LEAST.items():
        if getattr(known, name) < least:
            raise Refused(f"--{name}={getattr(known, name)} is too small.", f"Use {least} or more.")
    unknown = set(known.rows.split(",")) - set(all_rows())
    if unknown:
        raise Refused(f"--rows has no {sorted(unknown)[0]!r}.", f"Choose from {','.join(all_rows())}.")
    for file in filter(None, (known.picture, known.report)):
        if not file.resolve().parent.is_dir():
            raise Refused(f"there is no folder for {file}.", "Make it, or name another file.")
    if not (known.build / "lessons/01_single_device").exists():
        raise Refused(f"{known.build} has no lessons.", "Run scripts/build.sh, or name another folder with --build.")
    if not importlib.util.find_spec("torch"):
        raise Refused("this Python has no PyTorch, which is half of the comparison.", "Run the script with one that has: python3 -m venv FOLDER "
                      "&& FOLDER/bin/pip install torch numpy lightning && FOLDER/bin/python scripts/pytorch/compare_with_pytorch.py")
    return known


def main(arguments):
    known = parse(arguments)
    rows = [row for name, row in all_rows().items() if name == "01" or name in known.rows.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        comparison = Comparison(known, folder)
        for _ in range(known.rounds):
            for row in rows:
                comparison.train(row)
        config = json.loads((comparison.folder / "start/config.json").read_text(encoding="utf-8"))
    options = comparison.report["options"]
    tokens = options["global-batch"] * (options["sequence"] or config["n_positions"])
    model = comparison.report["model"]
    print(f"# {model['name']}, {model['parameters']:,} parameters, {tokens:,} tokens a step; --threads={known.threads} in each process; "
          f"PyTorch {importlib.metadata.version('torch')} with {allocator()[0]}")
    passed, verdict = judge(rows)
    print(table(rows, tokens), verdict, "", curves(rows), sep="\n", end="")
    if known.picture:
        write_whole(known.picture, plot_baselines.draw(rows, LIMIT))
    if known.report:
        document = {"report": comparison.report, "tokens": tokens, "rows": [dataclasses.asdict(row) for row in rows]}
        write_whole(known.report, json.dumps(document))
    return 0 if passed else 1


if __name__ == "__main__":
    run_script(main)
