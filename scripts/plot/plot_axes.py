#!/usr/bin/env python3
"""Draws which parameters each rank of lesson 16 stores and updates, as SVG, and prints the same as a table.

    mpirun -np 8 build/lessons/16_five_axes --steps=1 --show-groups --dp=4 --tp=1 --pp=1 --cp=2 --ep=2 |
        scripts/plot/plot_axes.py --output=FILE.svg

A box is a rank. Dense parameters have replicas along ep, dp and cp, experts along dp and cp; with ZeRO-1 each axis divides
what the one before it has left.
"""

import collections
import re

import svg

CELL, HIGH, LEFT, TOP, GAP = 132, 92, 76, 66, 10
BAR, COLOURS, STORED = CELL - 20, [svg.ORANGE, svg.GREEN, svg.PINK, svg.SKY], 0.3  # STORED: opacity of what others update
AXES = ("pp", "dp", "ep", "cp", "tp")
Ranks = collections.namedtuple("Ranks", "at size experts")  # at: coordinates of each rank; size: ranks along each axis
Share = collections.namedtuple("Share", "index count")      # shard number `index` of `count`


def read(text):
    """Coordinates of all ranks, and the number of experts of a block."""
    svg.find(r"^# rank +host +cores +pp +dp +ep +cp +tp +groups", text, "'# rank host cores pp dp ep cp tp groups'")
    rows = re.findall(r"^# +\d+ .* (\d+) +(\d+) +(\d+) +(\d+) +(\d+)  pp: ", text, re.MULTILINE)
    at = [dict(zip(AXES, map(int, row))) for row in rows]
    experts = len(svg.find(r"^  block \d+ +([\d ]+)  rows of each expert", text, "'rows of each expert'")[0].split())
    return Ranks(at, {axis: 1 + max(place[axis] for place in at) for axis in AXES}, experts)


def shard_of(ranks, place, axes):
    """The shard of a shard that is left after the replicas along each of the axes have divided it."""
    index, count = 0, 1
    for axis in axes:
        index, count = index * ranks.size[axis] + place[axis], count * ranks.size[axis]
    return Share(index, count)


def shards(ranks, place):
    """Shards of the dense parameters, and of the rank's experts."""
    return shard_of(ranks, place, ("ep", "dp", "cp")), shard_of(ranks, place, ("dp", "cp"))


def experts_of(ranks, number):
    """The experts of rank `number` along ep, in words."""
    own = ranks.experts // ranks.size["ep"]
    return ", ".join(str(number * own + i) for i in range(own)) if own < 4 else f"{number * own}..{number * own + own - 1}"


def table(ranks):
    """A line for each rank."""
    yield "rank  pp dp ep cp tp  updates of the dense  experts  updates of them"
    for rank, place in enumerate(ranks.at):
        dense, own = shards(ranks, place)
        yield (f"{rank:4}  " + " ".join(f"{place[axis]:2}" for axis in AXES) +
               f"  {f'{dense.index} of {dense.count}':20}  {experts_of(ranks, place['ep']):7}  {own.index} of {own.count}")


def bar(x, y, colour, share, words):
    """Stored parameters, with the updated ones in full colour."""
    own = BAR / share.count
    return [svg.rectangle(x, y, BAR, 14, colour, f"{words}: stored", opacity=STORED),
            svg.rectangle(x + share.index * own, y, own, 14, colour, f"{words}: shard {share.index} of {share.count} updated")]


def draw(ranks):
    """A column for each dp and ep, a row for each pp, cp and tp."""
    size = ranks.size
    wide = size["ep"] * (CELL + GAP) - GAP
    rows = size["pp"] * size["cp"] * size["tp"]

    def column(place):
        return LEFT + place["dp"] * (wide + 4 * GAP) + place["ep"] * (CELL + GAP)

    def row(place):
        return TOP + ((place["pp"] * size["cp"] + place["cp"]) * size["tp"] + place["tp"]) * (HIGH + GAP)

    bottom = TOP + rows * (HIGH + GAP) - GAP
    right = LEFT + size["dp"] * (wide + 4 * GAP) - 4 * GAP
    parts = [piece for dp in range(size["dp"]) for x in [column({"dp": dp, "ep": 0})] for piece in (
        svg.rectangle(x - 12, TOP - 50, wide + 24, bottom - TOP + 62, svg.IDLE),
        svg.text(x + wide / 2, TOP - 32, f"dp {dp}", extra=' font-weight="bold"'),
        *(svg.text(column({"dp": dp, "ep": ep}) + CELL / 2, TOP - 12, f"ep {ep}: experts {experts_of(ranks, ep)}")
          for ep in range(size["ep"])))]
    for rank, place in enumerate(ranks.at):
        x, y = column(place), row(place)
        (dense, own), colour = shards(ranks, place), COLOURS[place["ep"] % len(COLOURS)]
        parts += [svg.rectangle(x, y, CELL, HIGH, svg.PAPER, outline=svg.OUTLINE),
                  svg.text(x + CELL / 2, y + 18, f"rank {rank}", extra=' font-weight="bold"'),
                  svg.text(x + 10, y + 36, f"dense, 1/{dense.count} updated", "start", ' font-size="10"'),
                  *bar(x + 10, y + 40, svg.BLUE, dense, "dense parameters"),
                  svg.text(x + 10, y + 67, f"experts, 1/{own.count} updated", "start", ' font-size="10"'),
                  *bar(x + 10, y + 71, colour, own, f"experts {experts_of(ranks, place['ep'])}")]
        if place["dp"] == place["ep"] == 0:
            shown = [axis for axis in ("pp", "cp", "tp") if size[axis] > 1]
            parts += [svg.text(12, y + HIGH / 2 + 4 + 16 * i, f"{axis} {place[axis]}", "start", ' font-weight="bold"')
                      for i, axis in enumerate(shown)]
    y = bottom + 36
    parts += svg.key(LEFT, y, svg.BLUE, "dense parameters: the same on all ranks along ep, dp and cp")
    parts += [svg.rectangle(LEFT + 18 * i, y + 10, 12, 12, COLOURS[i % len(COLOURS)]) for i in range(size["ep"])]
    parts += [svg.text(LEFT + 18 * size["ep"], y + 20, "experts: the same on all ranks along dp and cp", "start"),
              svg.text(LEFT, y + 40, "full colour: what the rank updates and then sends the other replicas; pale: what it only stores",
                       "start")]
    return svg.document(max(right, LEFT + 560) + 24, y + 56, "What each rank of lesson 16 stores and updates", parts)


main = svg.script(__file__, "the ranks of lesson 16", read, draw, table)

if __name__ == "__main__":
    svg.run_script(main)
