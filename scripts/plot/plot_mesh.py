#!/usr/bin/env python3
"""Draws the mesh of ranks of lesson 10, as SVG, and prints each rank's place.

    mpirun -np 8 build/lessons/10_3d_parallel --dry-run --dp=2 --tp=2 --pp=2 | scripts/plot/plot_mesh.py --output=FILE.svg

A box is a replica, a row in it a stage, a cell a rank.
"""

import collections
import re

import svg

CELL, HIGH, LEFT, TOP, GAP = 96, 54, 150, 82, 64  # GAP: between replicas, and between stages
COLOURS = {"tp": svg.BLUE, "pp": svg.GREEN, "dp": svg.ORANGE}
WORDS = {"tp": "tensor parallel: activations, in every layer", "pp": "pipeline: activations, between stages",
         "dp": "data parallel: gradients, once a step"}
Mesh = collections.namedtuple("Mesh", "dp tp pp heads blocks")  # blocks: of each stage


def read(text):
    """Sizes of the mesh and of its stages."""
    heads, = svg.find(r"^# model .* H=(\d+) ", text, "'# model ... H='")
    sizes = [svg.find(rf"^# --{axis} +(\d+) ", text, f"'# --{axis}'")[0] for axis in ("dp", "tp", "pp")]
    if 0 in sizes:
        raise svg.NotThere("an axis is 0; name --dp, --tp and --pp")
    blocks = [int(number) for number in re.findall(r"\d+", svg.find(r"^# stages of ([\d, ]+) blocks", text, "'# stages of'")[0]
                                                   if sizes[2] > 1 else "0")]
    return Mesh(*sizes, heads, blocks)


def rank_of(mesh, replica, stage, part):
    """Parts are neighbours, then replicas, then stages."""
    return part + mesh.tp * (replica + mesh.dp * stage)


def stage_words(mesh, stage):
    """The part of the model on a stage, in words."""
    first = sum(mesh.blocks[:stage])
    last = first + mesh.blocks[stage] - 1
    blocks = f"blocks {first}..{last}" if last > first else f"block {first}"
    return ", ".join([*(["embedding"] if stage == 0 else []), blocks, *(["head"] if stage == mesh.pp - 1 else [])])


def table(mesh):
    """A line for each rank."""
    yield "rank  replica  stage  part"
    places = [(rank_of(mesh, replica, stage, part), replica, stage, part) for stage in range(mesh.pp)
              for replica in range(mesh.dp) for part in range(mesh.tp)]
    for rank, replica, stage, part in sorted(places):
        yield f"{rank:4}  {replica:7}  {stage:5}  {part:4}"


def both_ways(x1, y1, x2, y2, colour):
    """An arrow with a tip at each end."""
    middle = (x1 + x2) / 2, (y1 + y2) / 2
    return [svg.arrow(*middle, x1, y1, colour), svg.arrow(*middle, x2, y2, colour)]


def draw(mesh):
    """The replicas side by side."""
    wide = mesh.tp * CELL + (mesh.tp - 1) * 30
    bottom = TOP + mesh.pp * HIGH + (mesh.pp - 1) * GAP

    def corner(replica, stage, part):
        return LEFT + replica * (wide + GAP) + part * (CELL + 30), TOP + stage * (HIGH + GAP)

    parts = []
    for replica in range(mesh.dp):
        x = corner(replica, 0, 0)[0]
        parts += [svg.rectangle(x - 12, TOP - 56, wide + 24, bottom - TOP + 68, svg.IDLE),
                  svg.text(x + wide / 2, TOP - 38, f"replica {replica}, sequences of its own", extra=' font-weight="bold"')]
    for stage in range(mesh.pp):
        y = corner(0, stage, 0)[1]
        parts += [svg.text(12, y + HIGH / 2, f"stage {stage}", "start", ' font-weight="bold"'),
                  svg.text(12, y + HIGH / 2 + 16, stage_words(mesh, stage), "start", ' font-size="10"')]
        for replica in range(mesh.dp):
            for part in range(mesh.tp):
                x, own = corner(replica, stage, part)[0], mesh.heads // mesh.tp
                parts += [svg.rectangle(x, y, CELL, HIGH, svg.PAPER, outline=svg.OUTLINE),
                          svg.text(x + CELL / 2, y + 23, f"rank {rank_of(mesh, replica, stage, part)}", extra=' font-weight="bold"'),
                          svg.text(x + CELL / 2, y + 40, f"heads {part * own}..{part * own + own - 1}", extra=' font-size="10"')]
                if part + 1 < mesh.tp:
                    parts += both_ways(x + CELL + 2, y + HIGH / 2, x + CELL + 28, y + HIGH / 2, COLOURS["tp"])
                if stage + 1 < mesh.pp:
                    parts += both_ways(x + CELL / 2, y + HIGH + 3, x + CELL / 2, y + HIGH + GAP - 3, COLOURS["pp"])
                if replica + 1 < mesh.dp:  # above both ranks, to the same part of the next replica
                    over, begin, end = y - 12 - 8 * part, x + 20, x + wide + GAP + 8
                    parts += [svg.line(begin, over, end, over, COLOURS["dp"], 2),
                              *(svg.arrow(at, over, at, y - 2, COLOURS["dp"]) for at in (begin, end))]
    y = bottom + 40
    for row, axis in enumerate(COLOURS):
        parts += svg.key(LEFT, y + 20 * row, COLOURS[axis], f"{axis} = {getattr(mesh, axis)}: {WORDS[axis]}")
    right = max(corner(mesh.dp - 1, 0, mesh.tp - 1)[0] + CELL + 24, LEFT + 360)
    return svg.document(right, y + 56, "The mesh of ranks of lesson 10", parts)


main = svg.script(__file__, "the mesh of lesson 10", read, draw, table)

if __name__ == "__main__":
    svg.run_script(main)
