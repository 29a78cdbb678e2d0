#!/usr/bin/env python3
"""Draws which parameters lesson 06 gathers, uses and frees when, as SVG, and prints when.

    build/lessons/06_zero3 --dry-run --ranks=4 | scripts/plot/plot_window.py --output=FILE.svg

A row is a unit of parameters that are gathered together, a column a place of the forward and the backward pass.
"""

import collections
import re

import svg

LEFT, TOP, CELL, HIGH, FOOT = 132, 70, 62, 30, 48
GATHERED, USED, KEPT = svg.ORANGE, svg.BLUE, svg.SKY
ROW = re.compile(r"^#\s+(units? [\d-]+) \|(.*)\|$", re.MULTILINE)
Row = collections.namedtuple("Row", "name places")


class Window:
    """The rows that the lesson prints, and the names of the places."""

    def __init__(self, text):
        (layers,) = svg.find(r"^# model .* L=(\d+) ", text, "'# model ... L='")
        self.rows = [Row(*found) for found in ROW.findall(text)]
        self.places = ["embedding", *(f"block {i}" for i in range(layers)), "head",
                       *(f"block {i}" for i in reversed(range(layers)))]
        if not self.rows or any(len(row.places) != len(self.places) for row in self.rows):
            raise svg.NotThere(f"it has no units '|G   gU|' with {len(self.places)} places")
        self.head = layers + 1

    def gathered(self, row):
        """Places where a row's parameters are whole on a rank: (place, letter)."""
        return [(place, letter) for place, letter in enumerate(row.places) if letter != " "]

    def table(self):
        """A line for each place."""
        yield f"{'place':<10}  whole on every rank"
        for place, name in enumerate(self.places):
            yield f"{name:<10}  {', '.join(row.name for row in self.rows if row.places[place] != ' ')}"


def draw(window):
    """The grid."""
    right, bottom = LEFT + CELL * len(window.places), TOP + HIGH * len(window.rows)
    parts = []
    for words, first, last in (("forward pass", 0, window.head), ("backward pass", window.head + 1, len(window.places))):
        parts.append(svg.text(LEFT + CELL * (first + last) / 2, 18, words, extra=' font-weight="bold"'))
    parts.append(svg.text(LEFT + CELL * (window.head + 0.5), 34, "and back", extra=' font-size="10"'))
    for place, name in enumerate(window.places):
        x = LEFT + CELL * place
        parts += [svg.line(x, TOP - 26, x, bottom, svg.GRID), svg.text(x + CELL / 2, TOP - 10, name, extra=' font-size="11"')]
    parts.append(svg.line(right, TOP - 26, right, bottom, svg.GRID))
    for number, row in enumerate(window.rows):
        y = TOP + HIGH * number
        parts += [svg.text(LEFT - 10, y + HIGH / 2 + 4, row.name, "end"), svg.line(LEFT, y, right, y, svg.GRID)]
        for place, letter in window.gathered(row):
            x = LEFT + CELL * place
            if letter in "gG":
                parts.append(svg.rectangle(x, y + 4, CELL / 2 if letter == "G" else CELL, HIGH - 8, GATHERED,
                                           f"{row.name}: gather starts at {window.places[place]}"))
            if letter in "UG":
                begin = x + CELL / 2 if letter == "G" else x
                parts.append(svg.rectangle(begin, y + 4, x + CELL - begin, HIGH - 8, USED,
                                           f"{row.name}: used at {window.places[place]}"))
            if letter == "-":
                parts.append(svg.rectangle(x, y + 4, CELL, HIGH - 8, KEPT, f"{row.name}: stays gathered"))
    parts.append(svg.line(LEFT, bottom, right, bottom, svg.GRID))
    parts += svg.keys(LEFT, bottom + 26, [(GATHERED, "gather is under way"), (USED, "used"), (KEPT, "stays gathered")])
    parts.append(svg.text(LEFT + 420, bottom + 26, "empty: freed; the rank has its shard only", "start"))
    return svg.document(right + 16, bottom + FOOT, "What lesson 06 gathers, uses and frees when", parts)


main = svg.script(__file__, "the window of lesson 06", Window, draw, Window.table)

if __name__ == "__main__":
    svg.run_script(main)
