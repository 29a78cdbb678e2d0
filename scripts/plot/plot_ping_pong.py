#!/usr/bin/env python3
"""Draws the times of messages that lesson 00 measures, the line fitted to them, and the size from which a send waits for its
receiver, as SVG; and prints latency, bandwidth and that size.

    RANKWISE_WAITS=active mpirun -np 2 build/lessons/00_mpi | scripts/plot/plot_ping_pong.py --output=FILE.svg

Both axes are logarithmic. Without the part `eager` in its input the picture has no such size.
"""

import math
import re

import svg

WIDTH, HEIGHT = 700, 380
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 24, 84
MESSAGE = re.compile(r"^ *([\d,]+) bytes +([\d.]+) +us +[\d.]+ GB/s", re.MULTILINE)


class Times:
    """Messages as pairs of bytes and microseconds, and the fitted line."""

    def __init__(self, text):
        self.points = [(int(size.replace(",", "")), float(time)) for size, time in MESSAGE.findall(text)]
        if len(self.points) < 2:
            raise svg.NotThere("it has fewer than two sizes of messages")
        if min(time for _, time in self.points) <= 0:
            raise svg.NotThere("it has a message that takes no time")
        [alpha] = svg.find(r"^ *alpha +([\d.]+) +us", text, "of alpha, in us")
        [beta] = svg.find(r"^ *beta +([\d.]+) +ns per byte", text, "of beta, in ns per byte")
        self.alpha_us, self.beta_us = float(alpha), 1e-3 * float(beta)
        found = re.search(r"^ *eager +([\d,]+) +bytes", text, re.MULTILINE)
        self.eager = int(found[1].replace(",", "")) if found else None

    def line_us(self, size):
        return self.alpha_us + self.beta_us * size

    def table(self):
        yield f"alpha      {self.alpha_us:10.2f}  us"
        yield f"bandwidth  {1e-3 / self.beta_us:10.2f}  GB/s"
        if self.eager:
            yield f"eager      {self.eager:10,}  bytes at most"


def draw(times):
    """The measured times as dots, the fitted line dashed."""
    first, last = (math.log2(times.points[i][0]) for i in (0, -1))
    every = [time for size, us in times.points for time in (us, times.line_us(size))]
    low, high = math.floor(math.log10(min(every))), math.ceil(math.log10(max(every)))
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def place(size, time_us):
        return (LEFT + (right - LEFT) * (math.log2(size) - first) / (last - first),
                bottom - (bottom - TOP) * (math.log10(time_us) - low) / (high - low))

    parts = []
    for exponent in range(math.ceil(first), math.floor(last) + 1, 3):
        x = place(2**exponent, 1)[0]
        parts += [svg.line(x, TOP, x, bottom, svg.GRID), svg.text(x, bottom + 18, svg.size_text(exponent))]
    for power in range(low, high + 1):
        y = place(1, 10.0**power)[1]
        parts += [svg.line(LEFT, y, right, y, svg.GRID), svg.text(LEFT - 8, y + 4, f"{10.0**power:,g} µs", "end")]
    sizes = [2 ** (first + (last - first) * i / 100) for i in range(101)]
    parts += svg.curve([place(size, times.line_us(size)) for size in sizes], svg.DARK_GREY, "7 5")
    parts += svg.curve([place(*point) for point in times.points], svg.BLUE)
    entries = [(svg.BLUE, "half of a round trip"), (svg.DARK_GREY, "alpha + beta b")]
    if times.eager and first < math.log2(times.eager) < last:
        x = place(times.eager, 1)[0]
        parts.append(svg.line(x, TOP, x, bottom, svg.RED, 2))
        entries.append((svg.RED, f"above {times.eager:,} bytes a send waits"))
    parts.append(svg.text((LEFT + right) / 2, bottom + 38, "bytes b of a message"))
    parts += svg.keys(LEFT, HEIGHT - 14, entries)
    return svg.document(WIDTH, HEIGHT, "Time of a message by its size", parts)


main = svg.script(__file__, "the times of messages of lesson 00", Times, draw, Times.table)

if __name__ == "__main__":
    svg.run_script(main)
