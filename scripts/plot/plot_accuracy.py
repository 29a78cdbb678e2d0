#!/usr/bin/env python3
"""Draws how the accuracies of both tasks of lesson 12 grow, as SVG, and prints the table that it was given.

    ... | scripts/plot/plot_accuracy.py --output=FILE.svg

A line of the table is a validation: step, epochs, loss and accuracy of masked tokens, loss and accuracy of the next sentence, number
of pairs. A grey band is where a coin is found in 19 of 20 trials, a dashed line the best that any model can reach on the embedded
dialogues.
"""

import math
import re

import svg

WIDTH, HEIGHT = 640, 320
LEFT, RIGHT, TOP, BOTTOM = 56, 20, 20, 66
VALIDATION = re.compile(r" *(\d+) +[\d.]+ +[\d.]+ +([\d.]+) % +[\d.]+ +([\d.]+) % +(\d+)$")
BEST = 100 * (1 - 1 / 24)  # of the next sentence, percent: data/README.md
TASKS = ((1, svg.GREEN, "masked tokens"), (2, svg.BLUE, "next sentence"))


class Validations:
    """The lines of the table, and of each (step, percent of masked tokens, percent of pairs)."""

    def __init__(self, text):
        self.lines = text.splitlines()
        found = [match for match in map(VALIDATION.match, self.lines) if match]
        if len(found) < 2:
            raise svg.NotThere("it has fewer than two validations")
        self.points = [tuple(map(float, match.groups()[:3])) for match in found]
        self.pairs = int(found[0][4])


def draw(validations):
    """Two curves over the steps."""
    steps = svg.axis(validations.points[-1][0], 6)

    def place(step, percent):
        return (LEFT + (WIDTH - LEFT - RIGHT) * step / steps[-1], HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * percent / 100)

    around = 100 * 2 * math.sqrt(1 / (4 * validations.pairs))
    x, y = place(0, 50 + around)
    parts = [svg.rectangle(x, y, WIDTH - RIGHT - x, place(0, 50 - around)[1] - y, svg.LIGHT_GREY,
                           f"a coin: 50 % and two standard errors of {validations.pairs} pairs")]
    for percent in range(0, 101, 25):
        parts += [svg.line(*place(0, percent), *place(steps[-1], percent), svg.GRID),
                  svg.text(LEFT - 8, place(0, percent)[1] + 4, f"{percent} %", "end")]
    parts += [svg.text(place(step, 0)[0], HEIGHT - BOTTOM + 18, f"{step:g}") for step in steps]
    parts.append(svg.text(WIDTH - RIGHT, HEIGHT - BOTTOM + 34, "steps", "end"))
    parts += svg.curve([place(0, BEST), place(steps[-1], BEST)], svg.DARK_GREY, "7 5")
    for column, colour, _ in TASKS:
        parts += svg.curve([place(point[0], point[column]) for point in validations.points], colour)
    parts += svg.keys(LEFT, HEIGHT - 12, [*((colour, words) for _, colour, words in TASKS), (svg.LIGHT_GREY, "a coin"),
                                          (svg.DARK_GREY, "best possible")])
    return svg.document(WIDTH, HEIGHT, "Accuracy of both tasks of a BERT, by step", parts)


main = svg.script(__file__, "the accuracies of lesson 12", Validations, draw, lambda validations: validations.lines)

if __name__ == "__main__":
    svg.run_script(main)
