#!/usr/bin/env python3
"""Times lesson 01 in several ways within one run, and prints each as a ratio to the first.

    scripts/bench.py [--rounds=N] [OPTION OF THE LESSON]...

The ways take turns, so that a machine that grows slower slows all of them; what is shown is the median of the rounds
(3 unless told otherwise). A machine that is busy with other things is refused, because its figures say nothing.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "build/lessons/01_single_device"
WAYS = {
    "one thread": ["--threads=1"],
    "two threads": ["--threads=2"],
    "recomputation": ["--threads=1", "--recompute=block"],
    "16 passes a step": ["--threads=1", "--micro-batch=1"],
    "dropout 0.1": ["--threads=1", "--dropout=0.1"],
    "exact arithmetic": ["--threads=1", "--arithmetic=exact"],
}
MOST_BUSY = 0.3  # processors that others keep busy before the first run


def busy_processors():
    """How many processors were busy during one second; the load of the last minute where there is no /proc."""
    def ticks():
        fields = [int(field) for field in pathlib.Path("/proc/stat").read_text().split("\n")[0].split()[1:]]
        return sum(fields) - fields[3] - fields[4]  # all but idle and waiting for a disk

    if not os.path.exists("/proc/stat"):
        return os.getloadavg()[0]
    before = ticks()
    time.sleep(1)
    return (ticks() - before) / os.sysconf("SC_CLK_TCK")


def measure(options, folder):
    """Step time in seconds and TFLOP/s of one run."""
    report = os.path.join(folder, "report.json")
    command = [str(PROGRAM), "--steps=6", *options, f"--report={report}"]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    if done.returncode == 2:
        sys.exit(2)  # the program has said why
    with open(report, encoding="utf-8") as file:
        measured = json.load(file)["time"]
    return measured["step_s"], measured["tflops"]


def main(arguments):
    rounds = 3
    options = []
    for argument in arguments:
        if argument.startswith("--rounds="):
            rounds = int(argument.removeprefix("--rounds="))
        else:
            options.append(argument)
    busy = busy_processors()
    if busy > MOST_BUSY:
        print(f"error: {busy:.1f} processors of this machine are busy.\n       Figures would say nothing; wait for it to "
              "be idle.", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        turns = [{way: measure([*ways, *options], folder) for way, ways in WAYS.items()} for _ in range(rounds)]
    print(f"{'way':<18}{'step':>9}{'GFLOP/s':>9}{'time':>7}")
    print(f"{'':<18}{'ms':>9}{'':>9}{'ratio':>7}")
    for way in WAYS:
        step_s, tflops = (statistics.median(turn[way][i] for turn in turns) for i in (0, 1))
        ratio = statistics.median(turn[way][0] / turn["one thread"][0] for turn in turns)
        print(f"{way:<18}{1e3 * step_s:>9.1f}{1e3 * tflops:>9.1f}{ratio:>7.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
