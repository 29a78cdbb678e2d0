#!/usr/bin/env python3
"""Draws when a rank of lesson 03 computes and when it sends, by the virtual clock, as SVG, and prints the times of a step.

    for s in flat overlapped; do mpirun -np 4 build/lessons/03_ddp --steps=2 --strategy=$s --link=20us,500MB/s; done |
      scripts/plot/plot_timeline.py --output=FILE.svg

All runs have one axis of time.
"""

import collections
import re

import svg

WIDTH, LEFT, RIGHT, TOP, LANE, PANEL = 780, 112, 24, 12, 22, 92
KINDS = {"f": (svg.SKY, "forward pass"), "b": (svg.ORANGE, "backward pass"), "a": (svg.GREEN, "messages")}
Run = collections.namedtuple("Run", "strategy step_ms exposed_ms lanes")  # lanes: name and letters, as long as the step


def read(text):
    """The runs in order."""
    runs = []
    for part in re.split(r"(?=^# lesson 03)", text, flags=re.MULTILINE)[1:]:
        (strategy,) = svg.find(r"^# --strategy +(\S+) ", part, "'# --strategy'") if "# --strategy" in part else ["overlapped"]
        clock = part[part.index("virtual clock"):] if "virtual clock, last step" in part else ""
        step_ms, = svg.find(r"^  step +(\S+) +ms", clock, "'step ... ms' of the virtual clock")
        exposed_ms, = svg.find(r"^  exposed +(\S+) +ms", clock, "'exposed ... ms' of the virtual clock")
        lanes = re.findall(r"^# (compute|communication) +\|(.*)\|$", clock, re.MULTILINE)
        runs.append(Run(strategy, float(step_ms), float(exposed_ms), lanes))
    if not runs:
        raise svg.NotThere("it has no line '# lesson 03_ddp on N ranks'")
    return runs


def table(runs):
    """A line for each run."""
    yield "strategy     step, ms  exposed, ms"
    for run in runs:
        yield f"{run.strategy:<11}{run.step_ms:10.3f}{run.exposed_ms:13.3f}"


def lane(name, letters, y, width):
    """Draws the work of a rank: runs of letters."""
    yield svg.text(LEFT - 8, y + LANE - 7, name, "end")
    yield svg.rectangle(LEFT, y, width, LANE, svg.IDLE, f"{name}: idle")
    for run in re.finditer("f+|b+|a+", letters):
        colour, words = KINDS["a" if name == "communication" else run[0][0]]
        left, right = (LEFT + width * place / len(letters) for place in run.span())
        yield svg.rectangle(left, y, right - left, LANE, colour, words)


def draw(runs):
    """A panel for each run, below each other."""
    longest, bottom = max(run.step_ms for run in runs), TOP + PANEL * len(runs)
    scale = (WIDTH - LEFT - RIGHT) / longest
    parts = []
    for value in svg.axis(longest, 8):
        if value <= longest:
            x = LEFT + scale * value
            parts += [svg.line(x, TOP, x, bottom, svg.GRID), svg.text(x, bottom + 16, f"{value:g}")]
    for number, run in enumerate(runs):
        y = TOP + PANEL * number
        words = f"{run.strategy}: a step takes {run.step_ms:.2f} ms, of which the computation waits {run.exposed_ms:.2f} ms"
        parts.append(svg.text(LEFT, y + 14, words, "start", ' font-weight="bold"'))
        for row, (name, letters) in enumerate(run.lanes):
            parts += lane(name, letters, y + 24 + (LANE + 4) * row, scale * run.step_ms)
    parts.append(svg.text((LEFT + WIDTH - RIGHT) / 2, bottom + 34, "virtual time, ms"))
    parts += svg.keys(LEFT, bottom + 58, KINDS.values())
    return svg.document(WIDTH, bottom + 72, "When a rank of lesson 03 computes and sends, by strategy", parts)


main = svg.script(__file__, "the timeline of lesson 03", read, draw, table)

if __name__ == "__main__":
    svg.run_script(main)
