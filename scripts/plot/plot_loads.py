#!/usr/bin/env python3
"""Draws how many rows each expert of lesson 15 got, as SVG, and prints the largest load over the mean.

    for a in 0 0.01; do mpirun -np 4 build/lessons/15_experts --auxiliary-loss=$a; done | scripts/plot/plot_loads.py --output=FILE.svg

A row of the picture is a run, a panel in it a block with experts, a bar an expert in the colour of its rank, its rows below. All panels have one scale.
"""

import collections
import re

import svg

LEFT, TOP, BAR, APART, HIGH, BETWEEN = 150, 42, 30, 10, 90, 56  # BETWEEN: panels
Run = collections.namedtuple("Run", "weight ranks blocks")  # ranks: that share the experts; blocks: number -> rows of each expert


def read(text):
    """The runs in order."""
    runs = []
    for part in re.split(r"(?=^# lesson 15)", text, flags=re.MULTILINE)[1:]:
        weight = re.search(r"^# --auxiliary-loss +(\S+) ", part, re.MULTILINE)
        ranks, = svg.find(r"^# (\d+) ranks share the experts", part, "'# e ranks share the experts'")
        blocks = {int(block): [int(rows) for rows in loads.split()]
                  for block, loads in re.findall(r"^  block (\d+) +([\d ]+?)  rows of each expert", part, re.MULTILINE)}
        if not blocks:
            raise svg.NotThere("it has no line 'block ... rows of each expert'")
        runs.append(Run(weight[1] if weight else "0.01", ranks, blocks))
    if not runs:
        raise svg.NotThere("it has no line '# lesson 15_experts on N ranks'")
    return runs


def imbalance(loads):
    """The largest load over the mean."""
    return max(loads) * len(loads) / sum(loads)


def table(runs):
    """A line for each run."""
    yield "auxiliary loss  largest / mean"
    for run in runs:
        yield f"{run.weight:<14}" + "".join(f"  block {block}: {imbalance(loads):.2f}" for block, loads in run.blocks.items())


def panel(run, block, x, y, scale):
    """The bars of a block, and the mean."""
    loads = run.blocks[block]
    width = len(loads) * (BAR + APART) + APART
    yield svg.text(x + width / 2, y - 8, f"block {block}: largest / mean {imbalance(loads):.2f}", extra=' font-size="11"')
    for expert, rows in enumerate(loads):
        left, rank = x + APART + expert * (BAR + APART), expert * run.ranks // len(loads)
        yield svg.rectangle(left, y + HIGH - scale * rows, BAR, scale * rows, svg.RANKS[rank % len(svg.RANKS)],
                            f"block {block}, expert {expert} on rank {rank}: {rows} rows")
        yield svg.text(left + BAR / 2, y + HIGH + 14, f"{rows}", extra=' font-size="11"')
    mean = y + HIGH - scale * sum(loads) / len(loads)
    yield svg.line(x, y + HIGH, x + width, y + HIGH, svg.OUTLINE)
    yield f'<path d="M{x:.1f} {mean:.1f}h{width:.1f}" stroke="{svg.INK}" stroke-dasharray="4 3"/>'


def draw(runs):
    """Runs below each other, their blocks side by side."""
    scale = HIGH / max(rows for run in runs for loads in run.blocks.values() for rows in loads)
    parts, right = [], 0
    for number, run in enumerate(runs):
        x, y = LEFT, TOP + number * (HIGH + BETWEEN)
        parts += [svg.text(12, y + HIGH / 2, "auxiliary loss", "start"), svg.text(12, y + HIGH / 2 + 17, run.weight, "start", ' font-weight="bold"')]
        for block, loads in run.blocks.items():
            parts += panel(run, block, x, y, scale)
            x += len(loads) * (BAR + APART) + APART + BETWEEN
        right = max(right, x)
    bottom = TOP + len(runs) * (HIGH + BETWEEN)
    ranks = [(colour, f"rank {rank}") for rank, colour in enumerate(svg.RANKS[:max(run.ranks for run in runs)])]
    parts += [*svg.keys(LEFT, bottom, ranks), svg.text(12, bottom, "dashes: the mean", "start")]
    return svg.document(max(right, LEFT + 76 * len(ranks)), bottom + 16, "Rows of each expert of lesson 15 in the last step", parts)


main = svg.script(__file__, "the loads of lesson 15", read, draw, table)

if __name__ == "__main__":
    svg.run_script(main)
