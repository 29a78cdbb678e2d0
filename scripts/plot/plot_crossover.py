#!/usr/bin/env python3
"""Draws the time of an all-reduce against the bytes of the vector, by the cost model of lesson 02, as SVG, and prints the sizes
where another algorithm becomes the fastest.

    scripts/plot/plot_crossover.py --ranks=16 --latency-us=5 --bandwidth-GBps=10 --output=FILE.svg

A message of s bytes takes alpha + beta s; the time is that of the messages of the busiest rank, one after the other.
"""

import math
import pathlib

import svg

COLOURS = {"naive": svg.BROWN, "tree": svg.PINK, "ring": svg.RED, "halving": svg.BLUE}
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 780, 380, 76, 190, 24, 52
LEAST, MOST = 8, 30                  # powers of two of the bytes


def seconds(algorithm, ranks, count, alpha, beta):
    """Time of an all-reduce of `count` bytes: messages one after the other, and bytes of the rank that sends most."""
    depth, optimal = math.ceil(math.log2(ranks)), 2 * (ranks - 1) / ranks
    messages, vectors = {"naive": (2 * (ranks - 1), 2 * (ranks - 1)), "tree": (2 * depth, 2 * depth),
                         "ring": (2 * (ranks - 1), optimal), "halving": (2 * depth, optimal)}[algorithm]
    return messages * alpha + vectors * count * beta


def crossovers(times):
    """(bytes, slower from there on, faster from there on) of tree and ring, and of naive and ring.
    @param times  times(algorithm, bytes)."""
    for first in ("naive", "tree"):
        low, high = 0.0, 2.0**60
        if times(first, low) < times("ring", low):
            while high - low > 1:
                middle = (low + high) / 2
                low, high = (middle, high) if times(first, middle) < times("ring", middle) else (low, middle)
            yield round(high), first, "ring"


def draw(times, ranks, words):
    """A curve for each algorithm, both axes logarithmic."""
    every = [times(algorithm, 2.0**e) for algorithm in COLOURS for e in (LEAST, MOST)]
    low, high = math.floor(math.log10(min(every))), math.ceil(math.log10(max(every)))
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def x(exponent):
        return LEFT + (right - LEFT) * (exponent - LEAST) / (MOST - LEAST)

    def y(time):
        return bottom - (bottom - TOP) * (math.log10(time) - low) / (high - low)

    parts = []
    for exponent in range(LEAST, MOST + 1, 2):
        parts.append(svg.line(x(exponent), TOP, x(exponent), bottom, svg.GRID))
        if exponent % 4 == 0:
            parts.append(svg.text(x(exponent), bottom + 16, svg.size_text(exponent)))
    for power in range(low, high + 1):
        unit, scale = ("s", 0) if power >= 0 else ("ms", 3) if power >= -3 else ("µs", 6)
        parts += [svg.line(LEFT, y(10.0**power), right, y(10.0**power), svg.GRID),
                  svg.text(LEFT - 8, y(10.0**power) + 4, f"{10 ** (power + scale)} {unit}", "end")]
    for row, (algorithm, colour) in enumerate(COLOURS.items()):
        points = [(x(e / 4), y(times(algorithm, 2 ** (e / 4)))) for e in range(4 * LEAST, 4 * MOST + 1)]
        parts += svg.curve(points, colour, dots=False)
        at = TOP + 14 + 20 * row
        parts += [svg.line(right + 20, at - 4, right + 44, at - 4, colour, 2), svg.text(right + 52, at, algorithm, "start")]
    for size, first, _ in crossovers(times):
        if 2**LEAST < size < 2**MOST:
            place = x(math.log2(size)), y(times("ring", size))
            parts += [f'<circle cx="{place[0]:.1f}" cy="{place[1]:.1f}" r="5" stroke="{svg.TICK}" stroke-width="2"/>',
                      svg.text(place[0] - 40, place[1] - 20, f"{first} = ring: {size / 1e3:,.0f} kB", "end")]
    parts += [svg.text((LEFT + right) / 2, bottom + 38, f"bytes of the vector; {words}")]
    return svg.document(WIDTH, HEIGHT, f"Time of an all-reduce of {ranks} ranks by size", parts)


def main(arguments):
    parser = svg.option_parser(__file__, "Draws the time of an all-reduce by the cost model of lesson 02.")
    parser.add_argument("--ranks", type=int, default=16)
    parser.add_argument("--latency-us", type=float, default=5, help="alpha, of a message")
    parser.add_argument("--bandwidth-GBps", type=float, default=10, help="1 / beta, of a link")
    parser.add_argument("--output", type=pathlib.Path, required=True, help="a file for the picture, as SVG")
    options = parser.parse_args(arguments)
    if options.ranks < 2 or options.latency_us <= 0 or options.bandwidth_GBps <= 0:
        parser.error("there are no such ranks or links; give at least 2 ranks, and more than 0 of the others")

    def times(algorithm, count):
        return seconds(algorithm, options.ranks, count, 1e-6 * options.latency_us, 1e-9 / options.bandwidth_GBps)

    words = f"{options.ranks} ranks, {options.latency_us:g} µs a message, {options.bandwidth_GBps:g} GB/s"
    svg.write_whole(options.output, draw(times, options.ranks, words))
    for size, first, second in crossovers(times):
        print(f"{second} is faster than {first} from {size:,} bytes")


if __name__ == "__main__":
    svg.run_script(main)
