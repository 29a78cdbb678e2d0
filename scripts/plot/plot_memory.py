#!/usr/bin/env python3
"""Draws the memory of a rank, as SVG, and prints the numbers.

    scripts/plot/plot_memory.py bars REPORT.json... --output=FILE.svg                     model state of several lessons
    scripts/plot/plot_memory.py time TRACE.json [--step=K] [--rank=R] [--only=CATEGORY,...] [--compare=REPORT.json]
                                --output=FILE.svg                                    memory during one step

Reports and traces are what lessons write with --report and --trace. A bar is what the largest rank holds at the end of
a step, stacked by category; the tick is the formula. Over time all that lies on the device is stacked, what changes on
top of what does not; below it is what the rank does meanwhile, on the thread that computes and on the one that sends.
The number on a message is the unit with which a bucket is complete. Without --step the shortest step is drawn, which
others disturbed least. --compare adds a line at what another lesson holds at the end of a step, of these categories.
"""

import pathlib

import svg
from svg import NotThere

STATE = ["parameters", "gradients", "optimizer"]
COLOURS = {"activations": svg.LIGHT_GREY, "workspace": svg.GREY, "communication": svg.ORANGE, "staging": svg.YELLOW,
           "exact": svg.PINK, "optimizer": svg.GREEN, "parameters": svg.BLUE, "gradients": svg.RED}
LANES = [("this rank", {"compute": svg.SKY, "exposed": svg.PINK, "waiting": svg.YELLOW, "io": svg.DARK_GREY}),
         ("messages", {"hidden": svg.ORANGE})]
WORDS = {"compute": "compute", "exposed": "exposed communication", "waiting": "waiting", "io": "input and output",
         "hidden": "hidden communication"}
WIDTH, LEFT, RIGHT, TOP = 780, 84, 196, 16
BAR_ROW, BAR = 46, 26
PLOT, LANE_ROW, LANE = 240, 30, 20


def unit_of(most_bytes):
    """Bytes of the largest unit that leaves a number of at least 1, and its name."""
    return next((size, name) for size, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "bytes"))
                if most_bytes >= size or size == 1)


# ---- Bars ------------------------------------------------------------------------------------------------------------

class ModelState:
    """State of the largest rank at the end of a step, from a report."""

    def __init__(self, report):
        memory = report["memory"]
        self.lesson, self.run = report["lesson"], f"{report['model']['name']}, N = {report['ranks']}"
        self.held = {category: memory[category]["current"] for category in STATE}
        self.formula = sum(memory[category]["formula"] for category in STATE)
        self.total = sum(self.held.values())
        if self.total <= 0:
            raise NotThere("it has no model state")


def bars_table(states):
    """The bars as lines of text, in bytes."""
    yield "lesson          " + "".join(f"{category:>14}" for category in STATE) + "   model state = formula"
    for state in states:
        cells = "".join(f"{held_bytes:>14,}" for held_bytes in state.held.values())
        yield f"{state.lesson:<16}{cells}{state.total:>14,} = {state.formula:,}"


def draw_bars(states):
    """A bar for each report."""
    most = max(max(state.total, state.formula) for state in states)
    size, unit = unit_of(most)
    values = svg.axis(most / size, 5)
    bottom = TOP + BAR_ROW * len(states)

    def x(number_of_bytes):
        return LEFT + 30 + (WIDTH - LEFT - 30 - RIGHT) * number_of_bytes / size / values[-1]

    parts = [part for value in values for part in (svg.line(x(value * size), TOP, x(value * size), bottom, svg.GRID),
                                                   svg.text(x(value * size), bottom + 16, f"{value:g}"))]
    parts.append(svg.text((x(0) + x(values[-1] * size)) / 2, bottom + 34, f"model state of a rank, {unit}"))
    for row, state in enumerate(states):
        y, left = TOP + BAR_ROW * row + (BAR_ROW - BAR) / 2, 0
        parts += [svg.text(x(0) - 10, y + 11, state.lesson, "end", ' font-weight="bold"'),
                  svg.text(x(0) - 10, y + 25, state.run, "end")]
        for category, held_bytes in state.held.items():
            parts.append(svg.rectangle(x(left), y, x(left + held_bytes) - x(left), BAR, COLOURS[category],
                                       f"{category}: {held_bytes:,} bytes"))
            left += held_bytes
        parts += [svg.line(x(state.formula), y - 6, x(state.formula), y + BAR + 6, svg.TICK, 2),
                  svg.text(max(x(left), x(state.formula)) + 8, y + BAR / 2 + 4, f"{left:,} bytes", "start")]
    y = bottom + 58
    for i, category in enumerate(STATE):
        parts += svg.key(LEFT + 30 + 120 * i, y, COLOURS[category], category)
    parts += [svg.line(LEFT + 396, y - 12, LEFT + 396, y + 4, svg.TICK, 2), svg.text(LEFT + 408, y, "formula", "start")]
    return svg.document(WIDTH, y + 14, "Model state of a rank: " + ", ".join(state.lesson for state in states), parts)


# ---- Over time -------------------------------------------------------------------------------------------------------

class Step:
    """One training step of one rank, the shortest without a number: times in milliseconds since it began."""

    def __init__(self, trace, rank, number, only):
        events = [event for event in trace["traceEvents"] if event["pid"] == rank]
        spans = sorted((event for event in events if event["ph"] == "X"), key=lambda e: (e["ts"], -e["dur"]))
        steps = [event for event in spans if event["name"] == "training step"]
        if not steps:
            raise NotThere(f"it has no training steps of rank {rank}")
        if number is None:
            number = min(range(len(steps)), key=lambda i: steps[i]["dur"])
        if not 0 <= number < len(steps):
            raise NotThere(f"it has the steps 0 to {len(steps) - 1} of rank {rank}, and not {number}")
        begin_us, self.length = steps[number]["ts"], 1e-3 * steps[number]["dur"]

        def since(time_us):
            return 1e-3 * (time_us - begin_us)

        self.spans = [(since(e["ts"]), 1e-3 * e["dur"], e["cat"], e["name"]) for e in spans
                      if since(e["ts"]) < self.length and since(e["ts"] + e["dur"]) > 0]
        counters = sorted((e for e in events if e["ph"] == "C" and e["name"] == "memory"), key=lambda e: e["ts"])
        before = [e for e in counters if since(e["ts"]) <= 0]
        if not before:
            raise NotThere(f"it has no memory of rank {rank}")
        during = [(0.0, before[-1]["args"])] + [(since(e["ts"]), e["args"]) for e in counters
                                                if 0 < since(e["ts"]) < self.length]
        self.memory = [(time, {category: held[category] for category in only if category in held})
                       for time, held in during]
        if max(self.totals()) <= 0:
            raise NotThere(f"rank {rank} has no bytes of {', '.join(only)}")

    def range_of(self, category):
        """The least and the most bytes of it."""
        held = [args.get(category, 0) for _, args in self.memory]
        return min(held), max(held)

    def totals(self):
        """All bytes, from each moment on."""
        return [sum(args.values()) for _, args in self.memory]

    def share_of(self, kind):
        """The part of the step that spans of a kind take."""
        return sum(length for _, length, of, _ in self.spans if of == kind) / self.length

    def stack(self):
        """The categories that have bytes, from below: those that stay as they are, then those that change."""
        used = [category for category in COLOURS if self.range_of(category)[1] > 0]
        return sorted(used, key=lambda category: self.range_of(category)[0] != self.range_of(category)[1])


def time_table(step):
    """Least and most bytes of each category, as lines of text."""
    yield "bytes in a step         least        most"
    rows = [(category, *step.range_of(category)) for category in reversed(step.stack())]
    for name, least, most in [*rows, ("total", min(step.totals()), max(step.totals()))]:
        yield f"{name:<15}{least:>14,}{most:>12,}"


def outline(step, categories, x, y):
    """Corners of the area below the sum of some categories, which holds until the next event."""
    ends = [time for time, _ in step.memory[1:]] + [step.length]
    corners = [(x(0), y(0))]
    for (time, args), end in zip(step.memory, ends):
        level = y(sum(args.get(category, 0) for category in categories))
        if corners[-1][1] == level and len(corners) > 1:
            corners[-1] = (x(end), level)
        else:
            corners += [(x(time), level), (x(end), level)]
    return [*corners, (x(step.length), y(0))]


def lane(step, kinds, x, y):
    """Spans of some kinds side by side, the inner ones on those around them; names where there is room."""
    for start, length, kind, name in step.spans:
        if kind not in kinds:
            continue
        left, right = x(max(start, 0)), x(min(start + length, step.length))
        yield svg.rectangle(left, y, right - left, LANE, kinds[kind], f"{name}: {length:.3f} ms")
        if kind == "hidden":
            yield svg.line(left, y, left, y + LANE, svg.PAPER)
            fits = [words for words in (name, name.split()[-1]) if svg.LETTER * len(words) + 4 < right - left]
            yield from (svg.text((left + right) / 2, y + LANE / 2 + 4, words, colour=svg.ON_COLOUR) for words in fits[:1])


class Level:
    """Bytes of some categories that a lesson holds at the end of a step, from a report."""

    def __init__(self, report, only):
        self.lesson = report["lesson"]
        self.total = sum(held["current"] for category, held in report["memory"].items() if category in only)


def draw_time(step, level=None):
    """The memory of a step, and below it what is done meanwhile."""
    most = max([*step.totals(), level.total if level else 0])
    size, unit = unit_of(most)
    values, times = svg.axis(most / size, 6), svg.axis(step.length, 8)
    bottom = TOP + PLOT

    def x(time):
        return LEFT + (WIDTH - LEFT - RIGHT) * time / step.length

    def y(number_of_bytes):
        return bottom - PLOT * number_of_bytes / size / values[-1]

    stack = step.stack()
    parts = [svg.polygon(outline(step, stack[:top], x, y), COLOURS[stack[top - 1]], stack[top - 1])
             for top in range(len(stack), 0, -1)]
    for value in values:
        parts += [svg.line(LEFT, y(value * size), x(step.length), y(value * size), svg.VEIL),
                  svg.text(LEFT - 8, y(value * size) + 4, f"{value:g}", "end")]
    if level:
        parts += [*svg.curve([(LEFT, y(level.total)), (x(step.length), y(level.total))], svg.TICK, "6 4"),
                  svg.text(x(step.length) - 4, y(level.total) - 6, level.lesson, "end")]
    parts.append(svg.text(20, (TOP + bottom) / 2, f"memory of a rank, {unit}",
                          extra=f' transform="rotate(-90 20 {(TOP + bottom) / 2:.1f})"'))
    right = x(step.length) + 18
    for row, category in enumerate(reversed(stack)):
        parts += svg.key(right, TOP + 16 + 20 * row, COLOURS[category], category)

    shown = [(name, kinds) for name, kinds in LANES if any(kind in kinds for _, _, kind, _ in step.spans)]
    under = bottom + 14 + LANE_ROW * len(shown)
    for time in times:
        if time <= step.length:
            parts += [svg.line(x(time), bottom, x(time), under, svg.GREY), svg.text(x(time), under + 14, f"{time:g}")]
    for row, (name, kinds) in enumerate(shown):
        parts += [*lane(step, kinds, x, bottom + 14 + LANE_ROW * row),
                  svg.text(LEFT - 8, bottom + 14 + LANE_ROW * row + LANE / 2 + 4, name, "end")]
    seen = [(kind, colour) for _, kinds in shown for kind, colour in kinds.items() if step.share_of(kind) > 0.01]
    for row, (kind, colour) in enumerate(seen):
        parts += svg.key(right, under - 20 * (len(seen) - row) + 12, colour, WORDS[kind])
    parts.append(svg.text((LEFT + x(step.length)) / 2, under + 32, "time since the step began, ms"))
    return svg.document(WIDTH, under + 44, "Memory of a rank over time, in one training step", parts)


# ---- Program ---------------------------------------------------------------------------------------------------------

def read(path, find):
    """Returns the result of `find` on a document.
    @throws NotThere  with its name, if it is none or another one."""
    try:
        return find(svg.read_json(path))
    except (OSError, AttributeError, KeyError, TypeError, ValueError, NotThere) as error:
        why = f"no {error}" if isinstance(error, KeyError) else error
        raise NotThere(f"{path} cannot be drawn: {why}") from error


def options_of(arguments):
    parser = svg.option_parser(__file__, "Draws the memory of a rank, as SVG, and prints the numbers.")
    commands = parser.add_subparsers(dest="command", required=True)
    bars = commands.add_parser("bars", allow_abbrev=False, help="model state of several lessons")
    bars.add_argument("documents", nargs="+", type=pathlib.Path, metavar="REPORT.json", help="documents of --report")
    time = commands.add_parser("time", allow_abbrev=False, help="memory during one training step")
    time.add_argument("documents", nargs=1, type=pathlib.Path, metavar="TRACE.json", help="a document of --trace")
    time.add_argument("--step", type=int, help="which of the trace's steps, from 0; else the shortest")
    time.add_argument("--rank", type=int, default=0, help="whose memory")
    time.add_argument("--only", type=lambda words: words.split(","), default=list(COLOURS), metavar="CATEGORY,...",
                      help=f"of {', '.join(COLOURS)}")
    time.add_argument("--compare", type=pathlib.Path, metavar="REPORT.json", help="another lesson's --report")
    for command in (bars, time):
        command.add_argument("--output", type=pathlib.Path, required=True, help="a file for the picture, as SVG")
    return parser.parse_args(arguments)


def main(arguments):
    options = options_of(arguments)
    with svg.refusing("", "A lesson writes reports with --report=FILE.json, traces with --trace=FILE.json.", NotThere):
        if options.command == "bars":
            states = [read(path, ModelState) for path in options.documents]
            picture, table = draw_bars(states), bars_table(states)
        else:
            step = read(options.documents[0], lambda trace: Step(trace, options.rank, options.step, options.only))
            level = read(options.compare, lambda report: Level(report, options.only)) if options.compare else None
            picture, table = draw_time(step, level), time_table(step)
        svg.write_whole(options.output, picture)
    print("\n".join(table))


if __name__ == "__main__":
    svg.run_script(main)
