#!/usr/bin/env python3
"""Measures what a step takes on smaller and smaller devices, prints it as a table and draws it as SVG.

    scripts/plot/plot_offload.py --output=FILE.svg [--build=build] [--disk=FOLDER] [--rounds=2] [--steps=3] [--ranks=2]
                            [--config=FILE]

A row is a run of lesson 06 or 07 that gives up more of the device than the row above it. Its limit is what --dry-run says
that it needs, and it is trained under that limit (--memory-limit): once with all that leaves the device in memory of the
host, once with it on disk, in FOLDER. The time of a step is the least of some rounds, which try all rows one after the
other, so that what else the machine does falls on all of them.
"""

import argparse
import collections
import math
import os
import pathlib
import random
import re
import shlex
import subprocess
import tempfile

import svg
from documents import Failed
from with_mpi import with_mpi

ROOT = pathlib.Path(__file__).resolve().parents[2]
Row = collections.namedtuple("Row", "lesson options words")
SMALL = "--offload=all --recompute=block"
ROWS = [
    Row("06_zero3", "", "everything on the device"),
    Row("07_offload", "--offload=gradients", "without sums of gradients"),
    Row("07_offload", "--offload=parameters", "without parameters"),
    Row("07_offload", "--offload=optimizer", "without optimizer states"),
    Row("07_offload", "--offload=all", "without any of them"),
    Row("07_offload", SMALL, "and recomputation"),
    Row("07_offload", f"{SMALL} --micro-batch=1", "and one sequence a pass"),
    Row("07_offload", f"{SMALL} --micro-batch=1 --unit=branch --prefetch=0", "and one branch at a time"),
]
TIERS = {"host": svg.BLUE, "disk": svg.RED}
Point = collections.namedtuple("Point", "limit_bytes seconds")  # seconds by tier

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 780, 392, 64, 250, 36, 48


# ---- Measuring -------------------------------------------------------------------------------------------------------

class Machine:
    """Runs the programs of a build on a short text: all of its validation split is validated."""

    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        text, self.data = os.path.join(folder, "text.txt"), os.path.join(folder, "text.h5")
        pathlib.Path(text).write_text("".join(random.Random(3).choices("abcdefgh \n", k=12000)), encoding="utf-8")
        self.run([f"{options.build}/data/prepare", "--tokenizer=byte", text, self.data])

    def run(self, command):
        """Runs a command and returns its output."""
        done = subprocess.run(with_mpi(*command), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace", check=False)
        if done.returncode != 0:
            raise Failed(f"a run failed: {shlex.join(map(str, command))}\n{done.stdout}")
        return done.stdout

    def train(self, row, *options):
        """Runs a row and returns its output."""
        o = self.options
        return self.run(["mpirun", "-np", str(o.ranks), f"{o.build}/lessons/{row.lesson}", f"--config={o.config}",
                         f"--data={self.data}", f"--global-batch={2 * o.ranks}", f"--steps={o.steps}",
                         *row.options.split(), *options])

    def limit_of(self, row):
        """Bytes of the device that a row needs."""
        return int(re.search(r"^  total +([\d,]+)", self.train(row, "--dry-run"), re.MULTILINE)[1].replace(",", ""))

    def step_s(self, row, limit_bytes, tier):
        """Seconds of a step."""
        report = os.path.join(self.folder, "report.json")
        where = [] if row.lesson == "06_zero3" else [f"--tier={tier}"]
        self.train(row, f"--memory-limit={limit_bytes}B", f"--report={report}", *where)
        return svg.read_json(report)["time"]["step_s"]


def measure(options):
    """A point for each row."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory(dir=options.disk) as disk:
        machine = Machine(options, folder)
        points = [Point(machine.limit_of(row), {}) for row in ROWS]
        for _ in range(options.rounds):
            for row, point in zip(ROWS, points):
                for tier, where in (("host", "host"), ("disk", f"disk:{disk}")):
                    if tier == "disk" and row.lesson == "06_zero3":
                        continue
                    seconds = machine.step_s(row, point.limit_bytes, where)
                    point.seconds[tier] = min(seconds, point.seconds.get(tier, math.inf))
    return points


# ---- Showing ---------------------------------------------------------------------------------------------------------

def letter(row):
    return chr(ord("a") + row)


def table(points):
    """The points as lines of text."""
    yield "   bytes of the device  s a step: host   disk  options"
    for i, (row, point) in enumerate(zip(ROWS, points)):
        cells = [f"{point.seconds[tier]:.2f}" if tier in point.seconds else "" for tier in TIERS]
        options = " ".join([row.lesson, row.options]).strip()
        yield f"{letter(i)}  {point.limit_bytes:>19,}  {cells[0]:>14}  {cells[1]:>5}  {options}"


def draw(points):
    """Step time against the memory limit, a curve for each tier."""
    across = svg.axis(max(point.limit_bytes for point in points) / 1e6, 6)
    up = svg.axis(max(max(point.seconds.values()) for point in points), 5)
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def x(limit_bytes):
        return LEFT + (right - LEFT) * limit_bytes / 1e6 / across[-1]

    def y(seconds):
        return bottom - (bottom - TOP) * seconds / up[-1]

    parts = []
    for value in across:
        parts += [svg.line(x(1e6 * value), TOP, x(1e6 * value), bottom, svg.GRID),
                  svg.text(x(1e6 * value), bottom + 16, f"{value:g}")]
    for value in up:
        parts += [svg.line(LEFT, y(value), right, y(value), svg.GRID),
                  svg.text(LEFT - 8, y(value) + 4, f"{value:g}", "end")]
    parts += [svg.text((LEFT + right) / 2, bottom + 36, "memory limit of a device, MB"),
              svg.text(LEFT - 40, TOP - 20, "seconds a step", "start")]
    for tier, colour in TIERS.items():
        there = [point for point in points if tier in point.seconds]
        parts += svg.curve([(x(point.limit_bytes), y(point.seconds[tier])) for point in there], colour)
    for limit_bytes in sorted({point.limit_bytes for point in points}):
        here = [i for i, point in enumerate(points) if point.limit_bytes == limit_bytes]
        most_s = max(seconds for i in here for seconds in points[i].seconds.values())
        parts.append(svg.text(x(limit_bytes), y(most_s) - 8, "".join(map(letter, here))))
    at = TOP + 14
    for tier, colour in TIERS.items():
        parts += [svg.line(right + 20, at - 4, right + 40, at - 4, colour, 2),
                  svg.text(right + 48, at, f"what leaves goes to the {tier}", "start")]
        at += 20
    for i, row in enumerate(ROWS):
        parts += [svg.text(right + 24, at + 10, letter(i), "start", ' font-weight="bold"'),
                  svg.text(right + 48, at + 10, row.words, "start")]
        at += 20
    return svg.document(WIDTH, HEIGHT, "Time of a training step against the memory limit of a device", parts)


# ---- Command line ----------------------------------------------------------------------------------------------------

def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, required=True, help="the picture")
    parser.add_argument("--build", default="build", help="where the programs are")
    parser.add_argument("--disk", default="build", help="a folder on the disk that is offloaded to")
    parser.add_argument("--config", default="lessons/06_zero3/27m.conf", help="the model")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3, help="of a run; the first one does not count")
    options = parser.parse_args(arguments)
    os.chdir(ROOT)
    points = measure(options)
    svg.write_whole(options.output, draw(points))
    print("\n".join(line.rstrip() for line in table(points)))


if __name__ == "__main__":
    svg.run_script(main)
