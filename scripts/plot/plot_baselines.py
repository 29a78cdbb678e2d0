"""Draws the rows of scripts/pytorch/compare_with_pytorch.py: losses, how far they are from the first row's, time and memory."""

import math

import svg
from plot_ladder import BAR, ROW, TOP, Panel
from plot_memory import unit_of

WIDTH, HEIGHT, PANEL, STEP, MEMORY = 960, 230, 380, 190, 610  # HEIGHT and PANEL: of curves; STEP, MEMORY: where bars begin
LEAST = -9                                                    # power of ten at the bottom of the logarithmic axis


def curves(left, title, marks, rows, dots):
    """A panel: a line across for each (height, words) of `marks`, a curve for each (heights, colour) of `rows`; heights are 0 to 1.

    With `dots`, only the first row is a curve, and the others are dots on it, the later the smaller, so that all are seen."""
    steps = len(rows[0][0])

    def place(step, height):
        return left + PANEL * step / max(steps - 1, 1), TOP + HEIGHT * (1 - height)

    yield svg.text(left, TOP - 12, title, "start", ' font-weight="bold"')
    for height, words in marks:
        yield svg.line(*place(0, height), *place(steps - 1, height), svg.GRID)
        yield svg.text(left - 8, place(0, height)[1] + 4, words, "end")
    for step in range(0, steps, max(steps // 5, 1)):
        yield svg.text(place(step, 0)[0], TOP + HEIGHT + 18, str(step))
    yield svg.text(left + PANEL / 2, TOP + HEIGHT + 36, "step")
    for i, (heights, colour) in enumerate(rows):
        places = [place(step, height) for step, height in enumerate(heights)]
        yield from svg.curve(places, colour, dots=False) if i == 0 or not dots else (
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{6.2 - 0.8 * i:.1f}" fill="{colour}"/>' for x, y in places)


def losses(rows):
    """Loss curves of all rows, which lie on each other."""
    everything = [loss for row in rows for loss in row.losses]
    low, high = math.floor(min(everything)), math.floor(max(everything)) + 1
    return curves(60, "loss, nats a token", [((loss - low) / (high - low), str(loss)) for loss in range(low, high + 1)],
                  [([(loss - low) / (high - low) for loss in row.losses], colour) for row, colour in zip(rows, svg.RANKS)], True)


def differences(rows, limit):
    """Differences of all rows from the first, relative and on a logarithmic axis, and the limit as the first curve."""
    far = [[max(abs(a - b) / b, 10.0 ** LEAST) for a, b in zip(row.losses, rows[0].losses)] for row in rows[1:]]
    powers = range(LEAST, math.floor(math.log10(max([limit, *map(max, far)]))) + 2)

    def heights(values):
        return [(math.log10(value) - LEAST) / (len(powers) - 1) for value in values]

    return curves(550, "relative difference from the first row; black: the limit",
                  [((power - LEAST) / (len(powers) - 1), f"1e{power}") for power in powers],
                  list(zip(map(heights, [[limit] * len(rows[0].losses), *far]), [svg.TICK, *svg.RANKS[1:]])), False)


def draw(rows, limit):
    """The picture, as SVG. Rows that were not available, or whose losses are not finite, have no place in it."""
    rows = [row for row in rows if row.losses and all(math.isfinite(loss) for loss in row.losses)]
    parts, top = [*losses(rows), *differences(rows, limit)], TOP + HEIGHT + 76
    bottom = top + ROW * len(rows)
    longest, most = max(row.step_s() for row in rows), max(row.memory for row in rows)
    panels = [(Panel(STEP, 330, longest, *((1, "s") if longest >= 1 else (1e-3, "ms"))), "step", [row.step_s() for row in rows]),
              (Panel(MEMORY, 290, most, *unit_of(most)), "memory of a process", [row.memory for row in rows])]
    for panel, title, values in panels:
        parts += panel.grid(title, bottom, top)
        for i, (row, value) in enumerate(zip(rows, values)):
            parts += panel.bar(top + ROW * i + (ROW - BAR) / 2, [(value, svg.RANKS[i], row.title)])
    parts += [svg.text(STEP - 10, top + ROW * i + ROW / 2 + 4, row.title, "end") for i, row in enumerate(rows)]
    return svg.document(WIDTH, bottom + 28, "One training run in PyTorch and here: losses, time and memory", parts)
