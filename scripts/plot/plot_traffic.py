#!/usr/bin/env python3
"""Draws who sends how much to whom in a step of lesson 10, as SVG, and prints the numbers.

    scripts/plot/plot_traffic.py REPORT.json FILE.svg

A row is a rank that sends, a column one that receives. A square's area is the number of bytes, its colour the axis of the
mesh that they go along. What ranks of one group send to each other lies close to the diagonal if they are neighbours.
"""

import pathlib

import svg
from svg import NotThere

AXES = {"tp": ("to parts (tp)", svg.BLUE), "pp": ("to stages (pp)", svg.GREEN),
        "tied": ("of the tied embedding", svg.PINK), "dp": ("to replicas (dp)", svg.ORANGE)}
CELL, LEFT, TOP, FOOT = 52, 92, 46, 34


def receivers_of(path):
    """{axis: bytes by sender and receiver} of a report, axes along which something is sent only; and the number of ranks."""
    report = svg.read_json(path)
    if not set(AXES) & report.get("receivers", {}).keys():
        raise NotThere(f"{path} does not say who receives what on a mesh")
    axes = {axis: report["receivers"][axis] for axis in AXES if axis in report["receivers"]}
    return {axis: rows for axis, rows in axes.items() if any(map(any, rows))}, report["ranks"]


def messages(axes, sender, receiver):
    """[(axis, bytes)] that one rank sends to another."""
    return [(axis, rows[sender][receiver]) for axis, rows in axes.items() if rows[sender][receiver]]


def short(count):
    """A number of bytes in a few letters."""
    for unit in ("", "k", "M", "G"):
        if count < 1000:
            break
        count /= 1000
    return f"{count:.3g}{unit}"


def table(axes, ranks):
    """A line for each pair of ranks."""
    yield f"{'from':>4}  {'to':>4}  {'bytes a step':>14}  axis"
    for sender in range(ranks):
        for receiver in range(ranks):
            for axis, count in messages(axes, sender, receiver):
                yield f"{sender:4}  {receiver:4}  {count:14,}  {axis}"


def squares(axes, sender, receiver, most, largest):
    """Draws one cell: a square for each axis, side by side.
    @param most     bytes of the largest square.
    @param largest  its side in pixels."""
    sent = messages(axes, sender, receiver)
    width = CELL / max(len(sent), 1)
    for place, (axis, count) in enumerate(sent):
        side = max(4, largest * (count / most) ** 0.5)
        x = LEFT + CELL * receiver + width * (place + 0.5)
        y = TOP + CELL * sender + (CELL - 10) / 2
        words, colour = AXES[axis]
        yield svg.rectangle(x - side / 2, y - side / 2, side, side, colour,
                            f"rank {sender} to rank {receiver}, {words}: {count:,} bytes")
        yield svg.text(x, TOP + CELL * (sender + 1) - 3, short(count), extra=' font-size="9"')


def draw(axes, ranks):
    """The whole picture."""
    most = max((count for rows in axes.values() for row in rows for count in row), default=1)
    widest = max(len(messages(axes, a, b)) for a in range(ranks) for b in range(ranks))
    largest = min(CELL / max(widest, 1), CELL - 14) - 4
    side = CELL * ranks
    pieces = [svg.text(LEFT + side / 2, 16, "receives")]
    for rank in range(ranks):
        pieces += [svg.text(LEFT + CELL * (rank + 0.5), TOP - 6, f"rank {rank}"),
                   svg.text(LEFT - 8, TOP + CELL * (rank + 0.5) + 4, f"rank {rank} sends", "end")]
    for place in range(ranks + 1):
        pieces += [svg.line(LEFT, TOP + CELL * place, LEFT + side, TOP + CELL * place, svg.LIGHT_GREY),
                   svg.line(LEFT + CELL * place, TOP, LEFT + CELL * place, TOP + side, svg.LIGHT_GREY)]
    for sender in range(ranks):
        for receiver in range(ranks):
            pieces += squares(axes, sender, receiver, most, largest)
    for place, axis in enumerate(axes):
        words, colour = AXES[axis]
        x, y = 12 + 150 * (place % 3), TOP + side + FOOT - 14 + 20 * (place // 3)
        pieces += svg.key(x, y, colour, words)
    rows = (len(axes) + 2) // 3
    return svg.document(max(LEFT + side + 12, 470), TOP + side + FOOT + 20 * (rows - 1), "Who sends how much to whom in a step",
                        pieces)


def main(arguments):
    parser = svg.option_parser(__file__, "Draws who sends how much to whom in a step of lesson 10.")
    parser.add_argument("report", type=pathlib.Path, help="as lesson 10 writes it with --report")
    parser.add_argument("picture", type=pathlib.Path, help="a file for the picture, as SVG")
    options = parser.parse_args(arguments)
    with svg.refusing("the traffic cannot be drawn", "Give a report of lesson 10, written with --report=FILE.json.", NotThere, ValueError):
        axes, ranks = receivers_of(options.report)
        svg.write_whole(options.picture, draw(axes, ranks))
    print("\n".join(table(axes, ranks)))


if __name__ == "__main__":
    svg.run_script(main)
