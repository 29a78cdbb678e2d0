#!/usr/bin/env python3
"""Runs tests and lessons on the GPU of this machine and writes one table: gpu_check.py BUILD [--quick] [-- OPTION...]

Tests of kernels and collectives; every lesson on one rank, and on 2 and 4 ranks that share the GPU over MPI; and the small
tests once more under compute-sanitizer, where that is installed. OPTIONs go to lessons 01 and 03. Ends with status 1 if
anything fails.
"""

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
COLUMNS = ["check", "ranks", "result", "ms a step", "tokens/s", "counted bytes", "in use", "digest"]
LIMIT_S = 600
EXACT = ["--arithmetic=exact", "--steps=5", "--dropout=0.1"]
FAST = ["--steps=20", "--compare=10"]


class Checks:
    """What was run so far, and whether all of it held."""

    def __init__(self, build, training):
        self.build, self.training, self.rows, self.failures = build, training, [], []

    def run(self, command, ranks=None):
        launcher = ["mpirun", "-np", str(ranks)] if ranks else []
        try:
            return subprocess.run(launcher + command, capture_output=True, text=True, errors="replace", timeout=LIMIT_S)
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
            options = [*options, *([] if name.startswith("02") else self.training)]
            done = self.run([program, "--device=cuda", f"--report={path}", *options], ranks)
            report = {}
            if os.path.exists(path):
                with open(path, encoding="utf-8") as file:
                    report = json.load(file)
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
    """What the table was measured on."""
    lines = [f"date    {datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC"]
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    if shutil.which("nvidia-smi"):
        gpus = subprocess.run(query, capture_output=True, text=True, check=False).stdout.splitlines()
        lines += [f"GPU     {gpu}" for gpu in gpus]
    return lines


def table(rows):
    """Columns as wide as what is in them."""
    cells = [COLUMNS] + [[str(row.get(column, "")) for column in COLUMNS] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(COLUMNS))]
    left = {"check", "result", "digest"}
    return ["  ".join(text.ljust(width) if column in left else text.rjust(width)
                      for text, width, column in zip(line, widths, COLUMNS)).rstrip() for line in cells]


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


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build")
    parser.add_argument("--quick", action="store_true", help="the small model only, no compute-sanitizer")
    own, training = sys.argv[1:], []
    if "--" in own:
        own, training = own[:own.index("--")], own[own.index("--") + 1:]
    options = parser.parse_args(own)
    build = os.path.abspath(options.build)
    checks = Checks(build, training)
    with open(os.path.join(build, "gpu_tests.txt"), encoding="ascii") as file:
        tests = file.read().split()
    for name in tests:
        if name == "test_gpu_collectives":
            for ranks in (1, 2, 3, 4):
                checks.test(name, ranks)
        else:
            checks.test(name)
    check_lessons(checks, options.quick)
    sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if os.path.exists(sanitizer) and not options.quick:
        for tool in ("memcheck", "racecheck", "initcheck", "synccheck"):
            for name in tests:
                if name != "test_gpu_collectives":
                    checks.test(name, wrapper=[sanitizer, f"--tool={tool}", "--error-exitcode=9"])
    text = "\n".join([*machine(), "", *table(checks.rows)])
    with open(os.path.join(build, "gpu_check.txt"), "w", encoding="utf-8") as file:
        file.write(text + "\n")
    print("\n" + text)
    for failure in checks.failures:
        print("\nFAILED: " + failure)
    return 1 if checks.failures else 0


if __name__ == "__main__":
    sys.exit(main())
