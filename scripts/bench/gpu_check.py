#!/usr/bin/env python3
"""Runs tests and lessons on the GPU of this machine and writes one table, and figures of its speed:

    gpu_check.py BUILD [--quick | --speed] [--llmc=PROGRAM] [--write] [-- OPTION...]

Tests of kernels and collectives; every lesson on one rank, and on 2 and 4 ranks that share the GPU over MPI; the small
tests once more under compute-sanitizer, where that is installed; and build/tests/gpu_speed, with PyTorch's attention in
turns where there is PyTorch, and with steps of llm.c where --llmc names its train_gpt2cu. OPTIONs go to lessons 01 and 03;
with --speed, which measures the speed alone, to gpu_speed. --figures=FILE takes figures that were measured before, as on another machine, and --write keeps their tables in
docs/performance.md. "below" in a table says that a floor is not met. Ends with status 1 if anything fails.
"""

import argparse
import datetime
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from bench_peers import gpu_steps
from bench_tables import text_table, torch_config, write_page
from documents import Refused, read_json, run_script
from gpu_speed_tables import NO_TORCH, gpu_blocks
from whole_file import write_whole

HERE = os.path.dirname(os.path.abspath(__file__))
COLUMNS = ["check", "ranks", "result", "ms a step", "tokens/s", "counted bytes", "in use", "digest"]
LIMIT_S = 600
EXACT = ["--arithmetic=exact", "--steps=5", "--dropout=0.1"]
FAST = ["--steps=20", "--compare=10"]
PAGE = os.path.join(os.path.dirname(os.path.dirname(HERE)), "docs/performance.md")
TORCH_SPEED = os.path.join(HERE, "../pytorch/torch_speed.py")
TORCH_TURNS, TORCH_TURN_S = 5, 0.2
LLMC_TURNS = 3


class Checks:
    """The checks that were run so far, and those that failed."""

    def __init__(self, build, training):
        self.build, self.training, self.rows, self.failures = build, training, [], []

    def run(self, command, ranks=None, environment=None, lines=""):
        launcher = ["mpirun", "-np", str(ranks)] if ranks else []
        try:
            return subprocess.run(launcher + command, input=lines, capture_output=True, text=True, errors="replace",
                                  timeout=LIMIT_S, env=environment)
        except subprocess.TimeoutExpired as stuck:
            return subprocess.CompletedProcess(command, 124, "", f"{stuck}\n")

    def add(self, name, done, ranks=None, **figures):
        held = done.returncode == 0
        row = {"check": name, "ranks": ranks or 1, "result": "PASS" if held else f"FAIL ({done.returncode})", **figures}
        self.rows.append(row)
        print(f"{row['result']:<10} {name}, {row['ranks']} rank(s)", flush=True)
        if not held:
            self.failures.append(f"{name}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")

    def test(self, name, ranks=None, wrapper=()):
        program = os.path.join(self.build, "tests", name)
        label = f"{os.path.basename(wrapper[0])} {wrapper[1].split()[-1]} {name}" if wrapper else name
        self.add(label, self.run([*wrapper, program], ranks), ranks)

    def lesson(self, name, title, *options, ranks=None):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "report.json")
            program = os.path.join(self.build, "lessons", name)
            options = [*options, *([] if name.startswith(("00", "02")) else self.training)]
            done = self.run([program, "--device=cuda", f"--report={path}", *options], ranks)
            report = read_json(path) if os.path.exists(path) else {}
        time, memory = report.get("time", {}), report.get("gpu_memory", {})
        figures = {"digest": report.get("digest", "")[:12]}
        if "step_s" in time:
            figures["ms a step"] = f"{1e3 * time['step_s']:.2f}"
            figures["tokens/s"] = f"{time['tokens_per_s']:,.0f}"
        if memory:
            figures["counted bytes"], figures["in use"] = f"{memory['counted']:,}", f"{memory['in_use']:,}"
        self.add(f"{name} {title}", done, ranks, **figures)
        return figures["digest"]


def machine():
    """Date, commit and machine of the tables."""
    lines = {"date": f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC"}
    if shutil.which("git"):
        done = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=HERE, stdout=subprocess.PIPE, text=True,
                              check=False)  # git itself says why the commit is unknown
        lines["commit"] = done.stdout.strip() or "unknown"
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    if shutil.which("nvidia-smi"):
        gpus = subprocess.run(query, capture_output=True, text=True, check=False).stdout.splitlines()
        lines["GPUs"] = "; ".join(gpus)
    return lines


def table(rows):
    """A row for each check."""
    left = [COLUMNS.index(column) for column in ("check", "result", "digest")]
    return text_table([COLUMNS, *([str(row.get(column, "")) for column in COLUMNS] for row in rows)], left)


def check_lessons(checks, quick):
    checks.lesson("01_single_device", "nano fast", *FAST)
    exact = {checks.lesson("01_single_device", "nano exact", *EXACT),
             checks.lesson("01_single_device", "nano exact, micro-batch 2", *EXACT, "--micro-batch=2")}
    if not quick:
        checks.lesson("01_single_device", "mini fast", "--model=mini", "--steps=20")
        checks.lesson("01_single_device", "gpt2 fast, 4 x 1024", "--model=gpt2", "--vocabulary=50257", "--steps=4",
                      "--global-batch=4")
    checks.lesson("02_collectives", "", "--count=1000003", ranks=2)
    checks.lesson("02_collectives", "", "--count=1000003", ranks=4)
    for ranks in (1, 2, 4):
        checks.lesson("03_ddp", "nano fast", *FAST, ranks=ranks)
        exact.add(checks.lesson("03_ddp", "nano exact", *EXACT, ranks=ranks))
    checks.lesson("03_ddp", "nano fast over NCCL", *FAST, "--transport=nccl", ranks=1)
    if not quick:
        checks.lesson("03_ddp", "mini fast", "--model=mini", "--steps=20", ranks=4)
    same = subprocess.CompletedProcess([], 0 if len(exact) == 1 else 1, f"digests {exact}\n", "")
    checks.add("one digest in exact arithmetic", same)


# ---- Speed ------------------------------------------------------------------------------------------------------------


def document_of(done):
    """The document that a program printed; {} when it failed."""
    return json.loads(done.stdout) if done.returncode == 0 else {}


def outside():
    """The environment of a program that is not of this folder, and has libraries of its own."""
    libraries = os.environ.get("OUTSIDE_LD_LIBRARY_PATH", os.environ.get("LD_LIBRARY_PATH", ""))
    return {**os.environ, "LD_LIBRARY_PATH": libraries}


def run_torch(checks, what, *arguments, turns=1):
    """The documents that torch_speed.py printed: {} where there is no PyTorch; none where it failed."""
    done = checks.run([sys.executable, TORCH_SPEED, what, str(TORCH_TURN_S), *arguments],
                      environment=outside(), lines="\n" * turns)
    if done.returncode != 0:
        checks.add(f"{what} of PyTorch", done)
        return []
    return [json.loads(line) for line in done.stdout.splitlines()]


def torch_turns(checks, attention, options):
    """Attention here and in PyTorch, in turns; no turns where there is no PyTorch."""
    shape = [str(attention[extent]) for extent in "BHTD"]
    sizes = [option for option in options if option.split("=")[0] not in ("--rounds", "--part")]
    turns, name = [], ""
    for _ in range(TORCH_TURNS):
        theirs = next(iter(run_torch(checks, "attention", *shape)), {})
        if not theirs:
            break
        name = theirs.pop("name")
        own = checks.run([os.path.join(checks.build, "tests/gpu_speed"), "--part=attention", "--rounds=1", *sizes])
        if own.returncode != 0:
            checks.add("gpu_speed --part=attention", own)
            break
        turns.append({"own": document_of(own)["attention"]["rounds"][0], "torch": theirs})
    print(name or NO_TORCH, flush=True)
    return {"name": name, "turns": turns}


def torch_step(checks, document):
    """PyTorch's step of the same model, with as many sequences as here where they fit; {} where there is no PyTorch."""
    job = {"device": "cuda", "threads": 1, "precision": "bf16", "compiled": True, "T": document["sequence"],
           "B": document["training"]["micro_batch"], "config": torch_config(document["model"])}
    said, *turns = run_torch(checks, "step", json.dumps(job), turns=TORCH_TURNS) or [{}]
    return {"name": said["name"], "micro_batch": said["B"], "rounds": [turn["step_s"] for turn in turns]} if said else {}


def llmc_step(checks, program, document):
    """llm.c's step of its 124M model, with as many sequences as PyTorch's."""
    with tempfile.TemporaryDirectory() as folder:
        most = document["torch"]["step"].get("micro_batch") or document["training"]["micro_batch"]
        sequences, rounds = gpu_steps(program, folder, most, document["sequence"], LLMC_TURNS, outside())
    failed = None in rounds
    checks.add("llm.c", subprocess.CompletedProcess([], int(failed), "", f"{program} made no steps\n"))
    return {} if failed else {"micro_batch": sequences, "rounds": rounds}


def measure_speed(checks, options, llmc):
    """The document of gpu_speed with the turns of PyTorch and llm.c, and the machine; {} when it failed."""
    done = checks.run([os.path.join(checks.build, "tests/gpu_speed"), *options])
    checks.add("gpu_speed", done)
    document = document_of(done)
    if document:
        if document["precision"] == "bf16":
            document["torch"] = torch_turns(checks, document["attention"], options)
            if "training" in document:
                document["torch"]["step"] = torch_step(checks, document)
                if llmc:
                    document["llmc"] = llmc_step(checks, llmc, document)
        document["machine"] = machine()
        write_whole(os.path.join(checks.build, "gpu_speed.json"), json.dumps(document, indent=1))
    return document


def report_speed(checks, options, more):
    """The tables of the speed as text; in the page too, where that was asked for."""
    if options.figures:
        document = read_json(options.figures)
    else:
        document = measure_speed(checks, more, options.llmc)
    if not document:
        return ""
    blocks = gpu_blocks(document)
    if options.write:
        write_page(pathlib.Path(PAGE), blocks)
    return "\n".join(blocks.values())


# ---- All of it --------------------------------------------------------------------------------------------------------


def parse(arguments):
    """The options, and those that go on to a program."""
    own, more = arguments, []
    if "--" in own:
        own, more = own[:own.index("--")], own[own.index("--") + 1:]
    parser = argparse.ArgumentParser(prog="gpu_check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--quick", action="store_true", help="the small model only, no compute-sanitizer, no speed")
    parser.add_argument("--speed", action="store_true", help="the speed alone")
    parser.add_argument("--llmc", metavar="PROGRAM", help="train_gpt2cu of llm.c, built with cuDNN; its step stands beside")
    parser.add_argument("--figures", help="take the speed from this file, as BUILD/gpu_speed.json, and measure nothing")
    parser.add_argument("--write", action="store_true", help="keep the tables of the speed in docs/performance.md")
    options = parser.parse_args(own)
    if options.quick and (options.speed or options.figures or options.write):
        parser.error("--quick leaves the speed out")
    if options.write and not os.path.exists(PAGE):
        parser.error(f"--write: there is no {PAGE}; copy gpu_speed.json to where it is, and use --figures there")
    if options.figures:
        try:
            gpu_blocks(read_json(options.figures))
        except (AttributeError, IndexError, KeyError, OSError, TypeError, ValueError) as error:
            raise Refused(f"--figures={options.figures} has no figures of a GPU: {error!r}.", "Name a gpu_speed.json that this script has written.") from None
    return options, more


def run_tests(checks, quick):
    """All tests, and those on one rank under compute-sanitizer."""
    with open(os.path.join(checks.build, "gpu_tests.txt"), encoding="ascii") as file:
        tests = file.read().split()
    for name in tests:
        if name == "test_gpu_collectives":
            for ranks in (1, 2, 3, 4):
                checks.test(name, ranks)
        else:
            checks.test(name)
    check_lessons(checks, quick)
    sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if os.path.exists(sanitizer) and not quick:
        for tool in ("memcheck", "racecheck", "initcheck", "synccheck"):
            for name in tests:
                if name != "test_gpu_collectives":
                    checks.test(name, wrapper=[sanitizer, f"--tool={tool}", "--error-exitcode=9"])


def main(arguments):
    options, more = parse(arguments)
    alone = options.speed or options.figures is not None
    checks = Checks(os.path.abspath(options.build), [] if alone else more)
    if not alone:
        run_tests(checks, options.quick)
    speed = "" if options.quick else report_speed(checks, options, more if alone else [])
    lines = [] if alone else [*(f"{name:<7} {value}" for name, value in machine().items()), "", table(checks.rows)]
    text = "\n".join(lines) + "\n" * bool(lines) + speed
    if not options.figures:
        write_whole(os.path.join(checks.build, "gpu_speed.txt" if alone else "gpu_check.txt"), text)
    print("\n" + text, end="")
    for failure in checks.failures:
        print("\nFAILED: " + failure)
    return 1 if checks.failures else 0


if __name__ == "__main__":
    run_script(main)
