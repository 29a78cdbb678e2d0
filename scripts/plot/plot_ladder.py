#!/usr/bin/env python3
"""Draws all lessons beside each other from the reports in a folder, as SVG, and says how many.

    scripts/plot/plot_ladder.py build/ladder build/ladder/ladder.svg

The folder is that of scripts/plot/ladder_table.py, which has the same numbers as a table. A row is a run of a lesson that trains:
the model state that the largest rank holds at the end of a step, stacked by category, with a tick at the sum of the formulas;
beside it all that it holds, the time of a step, and the bytes that rank 0 sends in one. A run that broke has no row.
"""

import pathlib

import svg
from ladder_table import CATEGORIES, reports_in
from plot_memory import COLOURS, STATE, unit_of
from svg import NotThere

WIDTH, LEFT, TOP = 960, 152, 30
ROW, BAR = 34, 20
STEP, SENT = svg.SKY, COLOURS["communication"]
LEGEND, KEY = 20, 26                 # where the legend begins, and the space after the words of one of its keys


class Run:
    """Figures of a run's report: bytes by category, measured and by formula, seconds of a step, bytes sent."""

    def __init__(self, report):
        try:
            self.lesson, self.ranks = report["lesson"], report["ranks"]
            self.held = {category: report["memory"][category]["current"] for category in CATEGORIES
                         if category in report["memory"]}
            self.formula = sum(memory["formula"] for memory in report["memory"].values())
            self.state = {category: self.held.get(category, 0) for category in STATE}
            self.state_formula = sum(report["memory"][category]["formula"] for category in STATE if self.held.get(category))
            self.step_s = report["time"]["step_s"]
            self.sent = sum(group["bytes"] for group in report["traffic"].values())
        except (AttributeError, KeyError, TypeError) as error:
            raise NotThere(f"a report in it is not what a lesson writes ({error})") from error


def runs_in(folder):
    """The runs that have a row, in order.
    @throws NotThere  if there is none."""
    runs = [Run(reports["fast"]) for reports in reports_in(folder).values() if reports.get("fast")]
    if not runs:
        raise NotThere("it has no report of a lesson that trains")
    return runs


class Panel:
    """A part of the picture with an axis of its own: a number of pixels from the left edge, for values up to `most`."""

    def __init__(self, left, width, most, size, unit):
        self.left, self.size, self.unit = left, size, unit
        self.values = svg.axis(max(most / size, 1e-9), max(width // 60, 2))
        self.pixels = width / self.values[-1]

    def x(self, value):
        """The place of a value."""
        return self.left + self.pixels * value / self.size

    def grid(self, title, bottom, top=TOP):
        """The axis, and what it is of above it."""
        yield svg.text(self.left, top - 12, f"{title}, {self.unit}", "start", ' font-weight="bold"')
        for value in self.values:
            x = self.x(value * self.size)
            yield svg.line(x, top, x, bottom, svg.GRID)
            yield svg.text(x, bottom + 16, f"{value:g}")

    def bar(self, y, pieces, tick=None):
        """A bar of pieces (bytes or seconds, colour, words), with the sum behind it; and a tick."""
        end = 0
        for value, colour, words in pieces:
            if value > 0:
                yield svg.rectangle(self.x(end), y, self.x(end + value) - self.x(end), BAR, colour, words)
            end += value
        if tick is not None:
            yield svg.line(self.x(tick), y - 4, self.x(tick), y + BAR + 4, svg.TICK, 2)
        yield svg.text(self.x(max(end, tick or 0)) + 6, y + BAR / 2 + 4, f"{end / self.size:.3g}", "start")


def row(run, y, state, memory, step, sent):
    """The name of a run and its four bars."""
    yield svg.text(LEFT - 10, y + 8, run.lesson, "end", ' font-weight="bold"')
    yield svg.text(LEFT - 10, y + 22, "1 rank" if run.ranks == 1 else f"{run.ranks} ranks", "end")
    for panel, held, formula in ((state, run.state, run.state_formula), (memory, run.held, run.formula)):
        yield from panel.bar(y, [(held_bytes, COLOURS[category], f"{category}: {held_bytes:,} bytes")
                                 for category, held_bytes in held.items()], formula)
    yield from step.bar(y, [(run.step_s, STEP, f"a step: {run.step_s:.6g} s")])
    yield from sent.bar(y, [(run.sent, SENT, f"sent: {run.sent:,} bytes")])


def legend(categories, y):
    """Legend of the colours of memory, and of the tick."""
    x = LEGEND
    for category in categories:
        yield from svg.key(x, y, COLOURS[category], category)
        x += 18 + svg.LETTER * len(category) + KEY
    yield svg.line(x + 6, y - 12, x + 6, y + 4, svg.TICK, 2)
    yield svg.text(x + 18, y, "formula", "start")


def draw(runs):
    """A row for each run."""
    state, held, sent = (max(largest) for largest in zip(*(
        (max(sum(run.state.values()), run.state_formula), max(sum(run.held.values()), run.formula), run.sent) for run in runs)))
    longest = max(run.step_s for run in runs)
    panels = [Panel(LEFT, 270, state, *unit_of(state)), Panel(LEFT + 340, 120, held, *unit_of(held)),
              Panel(LEFT + 530, 80, longest, *((1, "s") if longest >= 1 else (1e-3, "ms"))),
              Panel(LEFT + 670, 90, sent, *unit_of(sent))]
    bottom = TOP + ROW * len(runs)
    parts = [part for panel, title in zip(panels, ("model state of a rank", "all memory", "step", "sent in a step"))
             for part in panel.grid(title, bottom)]
    for i, run in enumerate(runs):
        parts += row(run, TOP + ROW * i + (ROW - BAR) / 2, *panels)
    parts += legend([c for c in CATEGORIES if any(run.held.get(c, 0) > 0 for run in runs)], bottom + 44)
    return svg.document(WIDTH, bottom + 58, "Memory, time and traffic of a step, by lesson", parts)


def main(arguments):
    parser = svg.option_parser(__file__, "Draws all lessons beside each other, as SVG.")
    parser.add_argument("folder", type=pathlib.Path, help="with reports, as scripts/ladder.sh leaves them")
    parser.add_argument("output", type=pathlib.Path, help="a file for the picture, as SVG")
    options = parser.parse_args(arguments)
    with svg.refusing(f"{options.folder} cannot be drawn", "Run scripts/ladder.sh, which leaves its reports in build/ladder.",
                      NotThere, ValueError):
        runs = runs_in(options.folder)
        svg.write_whole(options.output, draw(runs))
    print(f"{options.output} shows memory, time and traffic of {len(runs)} {'run' if len(runs) == 1 else 'runs'}.")


if __name__ == "__main__":
    svg.run_script(main)
