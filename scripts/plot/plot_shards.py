#!/usr/bin/env python3
"""Draws which model state each rank holds in lessons 03 to 06, as SVG, and prints the numbers.

    for lesson in 03_ddp 04_zero1 05_zero2 06_zero3; do build/lessons/$lesson --dry-run --ranks=4; done |
      scripts/plot/plot_shards.py --output=FILE.svg

A bar is all parameters, gradients or moments; what is filled is on the rank: a shard of its own all the time, the lighter part
only while it is used.
"""

import collections
import re

import svg

STATES = {"parameters": (4, svg.BLUE), "gradients": (4, svg.RED), "optimizer": (8, svg.GREEN)}  # bytes a parameter in f32
PANEL, LEFT, TOP, ROW, BAR, HIGH = 236, 64, 52, 34, 50, 20
LIGHT = 0.4                         # opacity of what is there for a while
Lesson = collections.namedtuple("Lesson", "name ranks shares")  # shares of all of each state, at their peak


def read(text):
    """The lessons in order."""
    lessons = []
    for part in re.split(r"(?=^# lesson )", text, flags=re.MULTILINE)[1:]:
        name, ranks = svg.find(r"^# lesson (\S+) on (\d+) ranks$", part, "'# lesson ... on N ranks'")
        (parameters,) = svg.find(r"^  parameters +([\d,]+)  =", part, "'parameters ... = V C + ...'")
        shares = {state: svg.find(rf"^  {state} +([\d,]+) +bytes$", part, f"'{state} ... bytes'")[0] / size / parameters
                  for state, (size, _) in STATES.items()}
        lessons.append(Lesson(name, ranks, shares))
    if not lessons:
        raise svg.NotThere("it has no line '# lesson ... on N ranks'")
    return lessons


def table(lessons):
    """A line for each lesson."""
    yield f"{'shares of a rank':<18}" + "".join(f"{state:>12}" for state in STATES)
    for lesson in lessons:
        yield f"{lesson.name:<18}" + "".join(f"{share:12.3f}" for share in lesson.shares.values())


def bar(x, y, rank, ranks, share, colour, what):
    """One state on one rank."""
    yield svg.rectangle(x, y, BAR, HIGH, svg.IDLE, f"{what}: not on rank {rank}")
    if share > 0.999:
        yield svg.rectangle(x, y, BAR, HIGH, colour, f"{what}: all on rank {rank}")
    else:
        part = BAR / ranks
        more = min(share * BAR - part, BAR - part)
        if more > 0.5:  # where there is space: behind the rank's own shard, or before it
            begin = part * (rank + 1) if part * (rank + 1) + more <= BAR else max(part * rank - more, 0)
            yield svg.rectangle(x + begin, y, more, HIGH, colour, f"{what}: on rank {rank} while it is used", opacity=LIGHT)
        yield svg.rectangle(x + part * rank, y, part, HIGH, colour, f"{what}: shard of rank {rank}")
    yield svg.rectangle(x, y, BAR, HIGH, "none", outline=svg.OUTLINE)


def draw(lessons):
    """A panel for each lesson, side by side."""
    parts, most = [], max(lesson.ranks for lesson in lessons)
    for number, lesson in enumerate(lessons):
        left = LEFT + PANEL * number
        parts.append(svg.text(left, 20, lesson.name, "start", ' font-weight="bold"'))
        for column, (state, (_, colour)) in enumerate(STATES.items()):
            x = left + (BAR + 14) * column
            parts.append(svg.text(x + BAR / 2, TOP - 10, state, extra=' font-size="10"'))
            for rank in range(lesson.ranks):
                parts += bar(x, TOP + ROW * rank, rank, lesson.ranks, lesson.shares[state], colour, state)
    for rank in range(most):
        parts.append(svg.text(LEFT - 10, TOP + ROW * rank + HIGH / 2 + 4, f"rank {rank}", "end"))
    y = TOP + ROW * most + 16
    parts += [*svg.key(LEFT, y, svg.GREEN, "on the rank"), *svg.key(LEFT + 300, y, svg.IDLE, "on other ranks"),
              svg.rectangle(LEFT + 120, y - 10, 12, 12, svg.GREEN, opacity=LIGHT),
              svg.text(LEFT + 138, y, "only while it is used", "start")]
    return svg.document(LEFT + PANEL * len(lessons) - 20, y + 16, "Model state of each rank, by lesson", parts)


main = svg.script(__file__, "the model state of lessons 03 to 06", read, draw, table)

if __name__ == "__main__":
    svg.run_script(main)
