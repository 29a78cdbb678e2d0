#!/usr/bin/env python3
"""Draws bus bandwidth of all-reduce by size of the vector, as SVG:  scripts/bench/plot_bandwidth.py [CSV] [--output=FILE]

Both axes are logarithmic; a panel for each number of ranks, a line for each algorithm. The dashed line is the copy
bandwidth of the machine as a limit: a rank that reads each value once and writes each sum once copies one vector. Of
build/bench/collectives.csv, or another such table, the last run is drawn.
"""

import csv
import math
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "scripts/plot"))
from bench_collectives import LIBRARY, LIMIT, size_text  # noqa: E402
from svg import (BLUE, DARK_GREY, GRID, ORANGE, PINK, RED, SKY, TICK, curve, document, line, option_parser, refusing,  # noqa: E402
                 run_script, text, write_whole)

BUILD = pathlib.Path(os.environ.get("RANKWISE_BUILD", ROOT / "build"))
# (algorithm, heap), what the legend says, colour, dashes. The library's own gain from a warm heap; the others do not.
LINES = [
    ((LIMIT, "warm"), "copying", DARK_GREY, "6 4"),
    (("shared", "warm"), "shared, buffers in shared memory", BLUE, ""),
    (("shared-other", "warm"), "shared, other buffers", SKY, ""),
    (("ring", "warm"), "ring", RED, ""),
    (("halving", "warm"), "halving", ORANGE, ""),
    (("tree", "warm"), "tree", PINK, ""),
    ((LIBRARY, "warm"), "library, warm heap", TICK, ""),
    ((LIBRARY, "default"), "library, default heap", TICK, "2 3"),
]
WIDTH, HEIGHT = 460, 360            # of a panel, with its margins
LEFT, RIGHT, TOP, BOTTOM = 72, 26, 34, 46
LEGEND_ROW, LEGEND_COLUMNS = 20, 3


class Scale:
    """A logarithmic axis from values to places."""

    def __init__(self, least, most, first, last):
        self.least, self.per_octave = least, (last - first) / max(math.log2(most / least), 1e-9)
        self.first = first

    def place(self, value):
        return self.first + self.per_octave * math.log2(value / self.least)


def axes(x, y, sizes, rates, title):
    """Frame, grid and labels of a panel."""
    left, right, bottom, top = x.place(sizes[0]), x.place(sizes[-1]), y.place(rates[0]), y.place(rates[-1])
    yield text((left + right) / 2, top - 12, title, extra=' font-weight="bold"')
    for size in sizes:
        yield line(x.place(size), bottom, x.place(size), top, GRID)
    for size in sizes[::2]:
        yield text(x.place(size), bottom + 16, size_text(size))
    for rate in rates:
        yield line(left, y.place(rate), right, y.place(rate), GRID)
        yield text(left - 6, y.place(rate) + 4, f"{rate:.2g}", "end")
    yield text((left + right) / 2, bottom + 34, "bytes of the vector")
    yield text(left - 46, (bottom + top) / 2, "bus bandwidth, GB/s",
               extra=f' transform="rotate(-90 {left - 46:.1f} {(bottom + top) / 2:.1f})"')


def panel(rows, ranks, shift, rates):
    """All lines of one number of ranks."""
    rows = [row for row in rows if row["ranks"] == ranks]
    sizes = sorted({row["bytes"] for row in rows})
    x = Scale(sizes[0], sizes[-1], shift + LEFT, shift + WIDTH - RIGHT)
    y = Scale(rates[0], rates[-1], HEIGHT - BOTTOM, TOP)
    yield from axes(x, y, sizes, rates, f"{ranks} ranks")
    for key, _, colour, dashes in LINES:
        points = sorted((row["bytes"], row["bus_GBps"]) for row in rows if (row["algorithm"], row["heap"]) == key)
        if points:
            yield from curve([(x.place(size), y.place(rate)) for size, rate in points], colour, dashes)


def legend(shown, width):
    """Names of the lines, below the panels."""
    for i, (_, name, colour, dashes) in enumerate(shown):
        x = LEFT + (i % LEGEND_COLUMNS) * (width - LEFT) / LEGEND_COLUMNS
        y = HEIGHT + 12 + LEGEND_ROW * (i // LEGEND_COLUMNS)
        yield from curve([(x, y - 4), (x + 26, y - 4)], colour, dashes)
        yield text(x + 34, y, name, "start")


def draw(rows):
    """The picture of one run; rows as in the CSV file, with numbers for numbers."""
    speeds = [row["bus_GBps"] for row in rows]
    rates = [2.0**i for i in range(math.floor(math.log2(min(speeds))), math.ceil(math.log2(max(speeds))) + 1)]
    numbers = sorted({row["ranks"] for row in rows})
    shown = [entry for entry in LINES if any((row["algorithm"], row["heap"]) == entry[0] for row in rows)]
    width = WIDTH * len(numbers)
    height = HEIGHT + 12 + LEGEND_ROW * math.ceil(len(shown) / LEGEND_COLUMNS)
    parts = [part for i, ranks in enumerate(numbers) for part in panel(rows, ranks, i * WIDTH, rates)]
    return document(width, height, "All-reduce inside one node: bus bandwidth by size", [*parts, *legend(shown, width)])


def read(path):
    """The rows of the last run in a table."""
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    numbers = {"ranks": int, "bytes": int, "bus_GBps": float}
    return [{key: numbers.get(key, str)(value) for key, value in row.items()}
            for row in rows if row["date"] == rows[-1]["date"]]


def main(arguments):
    parser = option_parser(__file__, "Draws bus bandwidth of all-reduce by size, as SVG.")
    parser.add_argument("csv", nargs="?", type=pathlib.Path, default=BUILD / "bench/collectives.csv")
    parser.add_argument("--output", type=pathlib.Path, help="a file instead of the standard output")
    options = parser.parse_args(arguments)
    with refusing(f"{options.csv} has no bandwidths of all-reduce", "`make bench ARGS=--case=collectives` measures and writes such a table.",
                  KeyError, ValueError, IndexError):
        picture = draw(read(options.csv))
    if options.output:
        write_whole(options.output, picture)
    else:
        print(picture, end="")


if __name__ == "__main__":
    run_script(main)
