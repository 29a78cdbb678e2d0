#!/usr/bin/env python3
"""Losses of two or more runs side by side:  scripts/plot/compare_losses.py REPORT.json... [--every=N] [--plot=FILE.svg]

Takes the documents that lessons write with --report. Prints the loss of each run at every N-th step and at the last one,
and how far each is from that of the first run: at that step, and at most over all steps. --plot draws the curves.
"""

import math
import pathlib

import svg

WIDTH, HEIGHT = 560, 340
LEFT, RIGHT, TOP, BOTTOM = 60, 20, 20, 46
STYLES = [(svg.TICK, ""), (svg.RED, "7 5"), (svg.BLUE, "2 3"), (svg.GREEN, "9 3 2 3")]


def read(paths):
    """{name of the run: losses}, named after their files; with folders, where two files have one name."""
    runs, names = {}, [path.stem for path in paths]
    for path, name in zip(paths, names):
        losses = svg.read_json(path)["loss"]
        if not losses:
            raise ValueError(f"{path} has no losses")
        runs[name if names.count(name) == 1 else str(path)] = losses
    return runs


def deviations(runs):
    """For each run but the first: |loss - first| / first, step by step."""
    first = next(iter(runs.values()))
    return {name: [abs(a - b) / a for a, b in zip(first, losses)] for name, losses in list(runs.items())[1:]}


def table(runs, every):
    """The losses as lines of text."""
    off = deviations(runs)
    names = list(runs) + [f"{name}, off by" for name in off]
    widths = [max(10, len(name)) for name in names]
    steps = min(len(losses) for losses in runs.values())
    yield "step  " + "  ".join(name.rjust(width) for name, width in zip(names, widths))
    for step in sorted({*range(0, steps, every), steps - 1}):
        cells = [f"{losses[step]:.6f}" for losses in runs.values()] + [f"{100 * d[step]:.3f} %" for d in off.values()]
        yield f"{step:4}  " + "  ".join(cell.rjust(width) for cell, width in zip(cells, widths))
    for name, far in off.items():
        yield f"{name} is at most {100 * max(far):.3f} % from {next(iter(runs))} over {steps} steps"


def draw(runs):
    """The curves as SVG."""
    steps = max(len(losses) for losses in runs.values())
    everything = [loss for losses in runs.values() for loss in losses]
    low, high = math.floor(min(everything)), math.ceil(max(everything))

    def place(step, loss):
        return (LEFT + (WIDTH - LEFT - RIGHT) * step / max(steps - 1, 1),
                HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (loss - low) / max(high - low, 1))

    parts = []
    for loss in range(low, high + 1):
        parts += [svg.line(*place(0, loss), *place(steps - 1, loss), svg.GRID),
                  svg.text(LEFT - 8, place(0, loss)[1] + 4, str(loss), "end")]
    for step in range(0, steps, max(steps // 5, 1)):
        parts.append(svg.text(place(step, low)[0], HEIGHT - BOTTOM + 18, str(step)))
    parts += [svg.text(WIDTH / 2, HEIGHT - 8, "step"),
              svg.text(16, HEIGHT / 2, "loss, nats a token", extra=f' transform="rotate(-90 16 {HEIGHT / 2:.1f})"')]
    for i, (name, losses) in enumerate(runs.items()):
        colour, dashes = STYLES[i % len(STYLES)]
        parts += svg.curve([place(step, loss) for step, loss in enumerate(losses)], colour, dashes, dots=False)
        y = TOP + 14 + 20 * i
        parts += svg.curve([(WIDTH - 190, y - 4), (WIDTH - 160, y - 4)], colour, dashes, dots=False)
        parts.append(svg.text(WIDTH - 152, y, name, "start"))
    return svg.document(WIDTH, HEIGHT, "Loss by step: " + ", ".join(runs), parts)


def main(arguments):
    parser = svg.option_parser(__file__, "Losses of two or more runs side by side.")
    parser.add_argument("reports", nargs="+", type=pathlib.Path, help="documents of --report; the first is compared with")
    parser.add_argument("--every", type=int, default=10, help="steps between two lines of the table")
    parser.add_argument("--plot", type=pathlib.Path, help="a file for the curves, as SVG")
    options = parser.parse_args(arguments)
    if options.every < 1:
        parser.error(f"--every={options.every} is no number of steps")
    with svg.refusing("the reports cannot be compared", "A lesson writes one with --report=FILE.json.", KeyError, TypeError, ValueError):
        runs = read(options.reports)
        if options.plot:
            svg.write_whole(options.plot, draw(runs))
    print("\n".join(table(runs, options.every)))


if __name__ == "__main__":
    svg.run_script(main)
