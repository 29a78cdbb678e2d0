#!/usr/bin/env python3
"""Draws the fastest layouts that lesson 17 has found, as SVG, and prints their numbers.

    build/lessons/17_choose_a_layout --machine=FILE --report=REPORT.json ...
    scripts/plot/plot_plan.py REPORT.json --output=FILE.svg

A row is a layout, the fastest first: on the left what the GPU that needs most holds, stacked by term, with a tick at the memory that
a GPU has; on the right a step, stacked by what it does, and how much slower it is than that of the first row.
"""

import math
import pathlib

import svg
from plot_ladder import Panel
from plot_memory import COLOURS, STATE, unit_of
from svg import NotThere

# From below. The first ones are of the lessons, the others of the programs whose memory the planner knows from papers.
TERMS = {**{category: COLOURS[category] for category in STATE}, "model states": svg.BLUE, "running gradients": svg.RED,
         "bucket": svg.ORANGE, "gathered layers": svg.GREEN, "activations": COLOURS["activations"], "inputs of the stage": svg.SKY,
         "a layer again": svg.YELLOW, "attention again": svg.BROWN, "logits": svg.PINK, "weight gradient": svg.GREY, **COLOURS}
PARTS = {"computation": svg.SKY, "recomputation": svg.BLUE, "waiting for the host": svg.YELLOW, "tensor-parallel sums": svg.ORANGE,
         "bubble": svg.LIGHT_GREY, "messages between stages": svg.PINK, "messages along sequences": svg.BROWN,
         "messages to experts": svg.DARK_GREY, "messages between replicas": svg.RED,
         "update": svg.GREEN}
OTHER = svg.DARK_GREY                # what has no colour here

WIDTH, LEFT, TOP = 960, 20, 64
ROW, BAR, NAME = 58, 22, 24          # of a layout: all of it, its bars, and the words above them
MEMORY, STEP, BETWEEN = 350, 390, 70  # pixels of the axes; BETWEEN: from the end of one to the other
KEYS, KEY, KEY_ROW = 2, 185, 20      # columns of a legend, their width, and the height of a row
FAR = 10                             # times as much memory as any layout needs: a GPU that has more has no tick
SEEN = 0.5                           # pixels; what is shorter everywhere has no place in the legend


class Layout:
    """A layout of the report: bytes by term, seconds by part."""

    def __init__(self, plan):
        self.text, self.step_s, self.host_bytes = plan["text"], plan["step_s"], plan["host_bytes"]
        self.memory = in_order(plan["memory_bytes"], TERMS)
        self.time = in_order(plan["time_s"], PARTS)
        self.bytes = sum(self.memory.values())
        if not (self.bytes > 0 and self.step_s > 0):
            raise NotThere("a layout in it needs no memory or no time")


class Found:
    """Result of a search, from a report."""

    def __init__(self, report):
        if "layouts" not in report:
            raise NotThere("it has no list of layouts, which --question=layout writes")
        self.layouts = [Layout(plan) for plan in report["layouts"]]
        if not self.layouts:
            raise NotThere("its list of layouts is empty")
        self.machine_bytes = report["machine_memory"]
        if not self.machine_bytes > 0:
            raise NotThere("its GPU has no memory")
        options = report["options"]
        self.title = (f"{report['model']['name']} on {options['gpus']} x {report['machine']}, {options['precision']}, "
                      f"as {options['system']} runs it")

    def terms(self):
        """Names of the terms that any layout has."""
        return names_of([layout.memory for layout in self.layouts], TERMS)

    def parts(self):
        """Names of the parts of a step that any layout has."""
        return names_of([layout.time for layout in self.layouts], PARTS)


def in_order(values, colours):
    """The values that are not 0, in the order of their colours."""
    return {name: values[name] for name in [*colours, *values] if values.get(name, 0) > 0}


def names_of(rows, colours):
    """The names in any of them, in the order of their colours."""
    return list(in_order({name: 1 for row in rows for name in row}, colours))


def time_unit(most_s):
    """Seconds, or milliseconds where they are fewer than one, and their name."""
    return (1, "s") if most_s >= 1 else (1e-3, "ms")


def digits(value, count):
    """A number with that many digits, zeros at its end too."""
    return f"{value:#.{count}g}".rstrip(".")


def slower(layout, first):
    """The excess of its step over the first one's, in words."""
    return f"+{100 * (layout.step_s / first.step_s - 1):.1f} %"


# ---- The table -------------------------------------------------------------------------------------------------------

def block(title, names, rows, size, sums):
    """Lines of a table: a line for each name, a column for each layout, and their sums."""
    wide = max(len(name) for name in [title, *names, *sums])
    yield f"{title:<{wide + 2}}" + "".join(f"{number + 1:>10}" for number in range(len(rows)))
    lines = {**{name: [row.get(name, 0) for row in rows] for name in names}, **sums}
    for name, values in lines.items():
        cells = ("-" if not value else f"{value / size:.{4 if value < 1000 * size else 0}f}" for value in values)
        yield f"  {name:<{wide}}" + "".join(f"{cell:>10}" for cell in cells)


def table(found):
    """All numbers, as lines of text."""
    layouts = found.layouts
    size, unit = unit_of(max(layout.bytes for layout in layouts))
    seconds, second = time_unit(max(layout.step_s for layout in layouts))
    yield found.title
    for number, layout in enumerate(layouts):
        yield f"  {number + 1}  {layout.text}"
    sums = {"together": [layout.bytes for layout in layouts], "a GPU has": [found.machine_bytes] * len(layouts)}
    if any(layout.host_bytes for layout in layouts):
        sums["on the host"] = [layout.host_bytes for layout in layouts]
    yield ""
    yield from block(f"memory, {unit}", found.terms(), [layout.memory for layout in layouts], size, sums)
    yield ""
    yield from block(f"step, {second}", found.parts(), [layout.time for layout in layouts], seconds,
                     {"together": [layout.step_s for layout in layouts]})


# ---- The picture -----------------------------------------------------------------------------------------------------

def grid(panel, title, rows):
    """The axis of a panel, with lines behind the bars of each row only, and its title."""
    yield svg.text(panel.left, TOP - 14, f"{title}, {panel.unit}", "start", ' font-weight="bold"')
    for value in panel.values:
        x = panel.x(value * panel.size)
        for row in range(rows):
            yield svg.line(x, TOP + ROW * row + NAME - 4, x, TOP + ROW * row + NAME + BAR + 4, svg.GRID)
        yield svg.text(x, TOP + ROW * rows + 10, f"{value:g}")


def stack(panel, y, values, colours):
    """A bar of pieces."""
    end = 0
    for name, value in values.items():
        yield svg.rectangle(panel.x(end), y, panel.x(end + value) - panel.x(end), BAR, colours.get(name, OTHER),
                            f"{name}: {value / panel.size:.4g} {panel.unit}")
        end += value


def seen(panel, names, rows, colours):
    """Colours and names of the pieces that are long enough, in any row, to be seen."""
    return [(colours.get(name, OTHER), name) for name in names
            if panel.x(max(row.get(name, 0) for row in rows)) - panel.left >= SEEN]


def legend(x, y, entries):
    """Keys in columns; one without a colour is the mark at the memory of a GPU."""
    for number, (colour, words) in enumerate(entries):
        left, below = x + KEY * (number % KEYS), y + KEY_ROW * (number // KEYS)
        if colour:
            yield from svg.key(left, below, colour, words)
        else:
            yield from (svg.line(left + 6, below - 12, left + 6, below + 4, svg.TICK, 2), svg.text(left + 18, below, words, "start"))


def draw(found):
    """A row for each layout."""
    layouts = found.layouts
    most, longest = max(layout.bytes for layout in layouts), max(layout.step_s for layout in layouts)
    near = found.machine_bytes <= FAR * most
    most = max(most, found.machine_bytes if near else 0)
    memory = Panel(LEFT, MEMORY, most, *unit_of(most))
    step = Panel(LEFT + MEMORY + BETWEEN, STEP, longest, *time_unit(longest))
    limit, bottom = memory.x(found.machine_bytes), TOP + ROW * len(layouts)
    parts = [svg.text(LEFT, 22, found.title, "start", ' font-size="14" font-weight="bold"'),
             *grid(memory, "memory of the GPU that needs most", len(layouts)), *grid(step, "one step", len(layouts))]
    for row, layout in enumerate(layouts):
        y, middle = TOP + ROW * row + NAME, TOP + ROW * row + NAME + BAR / 2 + 4
        parts += [svg.text(LEFT, y - 9, str(row + 1), "start", ' font-weight="bold"'), svg.text(LEFT + 18, y - 9, layout.text, "start"),
                  *stack(memory, y, layout.memory, TERMS),
                  *([svg.line(limit, y - 4, limit, y + BAR + 4, svg.TICK, 2)] if near else []),
                  svg.text(memory.left + MEMORY + 46, middle, digits(layout.bytes / memory.size, 3), "end"),
                  *stack(step, y, layout.time, PARTS),
                  svg.text(step.left + STEP + 52, middle, digits(layout.step_s / step.size, 4), "end"),
                  *([svg.text(WIDTH - 14, middle, slower(layout, layouts[0]), "end")] if row else [])]
    size, unit = unit_of(found.machine_bytes)
    terms = [*seen(memory, found.terms(), [layout.memory for layout in layouts], TERMS),
             ("" if near else svg.PAPER, f"a GPU has {found.machine_bytes / size:.4g} {unit}")]
    times = seen(step, found.parts(), [layout.time for layout in layouts], PARTS)
    parts += [*legend(memory.left, bottom + 44, terms), *legend(step.left, bottom + 44, times)]
    height = bottom + 44 + KEY_ROW * math.ceil(max(len(terms), len(times)) / KEYS)
    return svg.document(WIDTH, height, f"The fastest layouts of {found.title}", parts)


def read(path):
    """Reads a report.
    @throws NotThere  saying what it lacks."""
    try:
        return Found(svg.read_json(path))
    except KeyError as error:
        raise NotThere(f"it has no {error}") from error
    except (AttributeError, TypeError, ValueError) as error:
        raise NotThere(f"it is not a report ({error})") from error


def main(arguments):
    parser = svg.option_parser(__file__, "Draws the fastest layouts that lesson 17 has found, as SVG.")
    parser.add_argument("report", type=pathlib.Path, metavar="REPORT.json", help="a document of --report")
    parser.add_argument("--output", type=pathlib.Path, required=True, help="a file for the picture, as SVG")
    options = parser.parse_args(arguments)
    with svg.refusing(f"{options.report} cannot be drawn", "Lesson 17 writes a report with --question=layout --report=FILE.json.", NotThere):
        found = read(options.report)
        svg.write_whole(options.output, draw(found))
    print("\n".join(table(found)))


if __name__ == "__main__":
    svg.run_script(main)
