#!/usr/bin/env python3
"""Draws who sends what to whom in each step of an all-reduce, as SVG, and prints the messages of each step.

    mpirun -np 4 build/lessons/02_collectives --collective=all-reduce --collectives=ring --count=1000 --repeats=1 |
      scripts/plot/plot_steps.py --output=FILE.svg

Up to four ranks stand on a circle. A box is a rank's vector, a column in it a shard, filled as far as terms have been added. An
arrow has the colour of the shard that is sent; a grey one sends all of them. More ranks are rows, and time goes to the right.
"""

import math
import re

import svg

PANEL, ROW, VECTOR = 236, 4, 56      # pixels of a panel, panels in a row, and pixels of a vector
STEP, LANE, LEFT, TOP = 120, 30, 64, 56  # of rows: pixels of a step and of a rank, and where the first ones begin
MESSAGE = re.compile(r"(\d+)(?:\.\.(\d+))?\((all|[\d+]+)\) -> (\d+)$")


class Steps:
    """The messages of each step, and what the ranks have before it: the ranks whose terms are in each shard."""

    def __init__(self, text):
        (self.title,) = svg.find(r"^steps of (all-reduce .*)$", text, "'steps of all-reduce ...'")
        lines = text[text.index(f"steps of {self.title}"):].splitlines()[1:]
        begins = [found.start() for found in re.finditer(r"step \d+", lines[0])]
        rows = [line for line in lines[1:] if re.match(r"  rank +\d+ ", line)]
        self.ranks, self.messages = len(rows), []
        if not 2 <= self.ranks <= len(svg.RANKS):
            raise svg.NotThere(f"it has {self.ranks} ranks, and 2 to {len(svg.RANKS)} can be drawn")
        for first, last in zip(begins, [*begins[1:], None]):
            found = [(sender, MESSAGE.match(row[first:last].strip())) for sender, row in enumerate(rows)]
            self.messages.append([(sender, *self.message(*match.groups())) for sender, match in found if match])
        self.states = [[[{rank} for _ in range(self.ranks)] for rank in range(self.ranks)]]
        for messages in self.messages:
            self.states.append([[set(terms) for terms in shards] for shards in self.states[-1]])
            for _, shards, terms, receiver in messages:
                for shard in shards:
                    self.states[-1][receiver][shard] |= terms

    def message(self, first, last, terms, receiver):
        """(shards, ranks whose terms they have, receiver)."""
        shards = range(int(first), int(last or first) + 1)
        return shards, set(range(self.ranks) if terms == "all" else map(int, terms.split("+"))), int(receiver)

    def table(self):
        """A line for each message."""
        yield "step  from  to  shards  terms"
        for step, messages in enumerate(self.messages):
            for sender, shards, terms, receiver in messages:
                words = str(shards[0]) if len(shards) == 1 else f"{shards[0]}..{shards[-1]}"
                yield f"{step:4}  {sender:4}  {receiver:2}  {words:>6}  {len(terms)} of {self.ranks}"


class Circle:
    """Places of the ranks of one panel."""

    def __init__(self, ranks, left, top):
        self.radius = PANEL / 2 - 46
        self.centre = left + PANEL / 2, top + PANEL / 2 + 8
        self.ranks = ranks

    def place(self, rank):
        """The centre of a rank."""
        angle = 2 * math.pi * (rank / self.ranks - (3 / 8 if self.ranks == 4 else 1 / 4))
        return self.centre[0] + self.radius * math.cos(angle), self.centre[1] + self.radius * math.sin(angle)

    def vector(self, rank, shards):
        """A rank's vector: a column for each shard."""
        x, y = self.place(rank)
        column, left, high = VECTOR / self.ranks, x - VECTOR / 2, 26
        yield svg.rectangle(left, y - high / 2, VECTOR, high, svg.PAPER)
        for shard, terms in enumerate(shards):
            filled = high * len(terms) / self.ranks
            yield svg.rectangle(left + column * shard, y + high / 2 - filled, column, filled, svg.RANKS[shard],
                                f"rank {rank}, shard {shard}: {len(terms)} of {self.ranks} terms")
        yield svg.rectangle(left, y - high / 2, VECTOR, high, "none", outline=svg.OUTLINE)
        yield svg.text(x, y - high / 2 - 5, f"rank {rank}", extra=' font-size="11"')

    def message(self, sender, shards, receiver):
        """An arrow between two vectors."""
        (x1, y1), (x2, y2) = self.place(sender), self.place(receiver)
        length = math.hypot(x2 - x1, y2 - y1)
        across, down = (x2 - x1) / length, (y2 - y1) / length
        off = min((VECTOR / 2 + 7) / max(abs(across), 1e-9), 31 / max(abs(down), 1e-9))
        yield svg.arrow(x1 + off * across, y1 + off * down, x2 - off * across, y2 - off * down, colour_of(shards), 3)


def colour_of(shards):
    """Colour of an arrow."""
    return svg.RANKS[shards[0]] if len(shards) == 1 else svg.DARK_GREY


def heading(steps):
    """Title of the picture."""
    return svg.text(12, 20, steps.title[0].upper() + steps.title[1:], "start", ' font-weight="bold"')


def draw_rows(steps):
    """A row for each rank, on which it has more and more terms."""
    parts, right = [heading(steps)], LEFT + STEP * len(steps.messages)
    for step in range(len(steps.messages)):
        parts.append(svg.text(LEFT + STEP * (step + 0.5), TOP - 16, f"step {step}"))
    for rank in range(steps.ranks):
        y = TOP + LANE * rank
        parts += [svg.text(LEFT - 16, y + 4, f"rank {rank}", "end"), svg.line(LEFT, y, right, y, svg.GRID)]
    for step, messages in enumerate(steps.messages):
        for sender, shards, terms, receiver in messages:
            x, begin, end = LEFT + STEP * step, TOP + LANE * sender, TOP + LANE * receiver
            colour = svg.BLUE if len(terms) < steps.ranks else svg.ORANGE
            parts += [svg.arrow(x + 8, begin, x + STEP - 8, end, colour if len(shards) > 1 else colour_of(shards))]
    for step, state in enumerate(steps.states):
        for rank, shards in enumerate(state):
            terms = max(map(len, shards))
            colour = svg.BLUE if terms < steps.ranks else svg.ORANGE
            parts += [svg.rectangle(LEFT + STEP * step - 7, TOP + LANE * rank - 8, 14, 16, colour,
                                    f"rank {rank}: {terms} of {steps.ranks} terms"),
                      svg.text(LEFT + STEP * step, TOP + LANE * rank + 4, str(terms), extra=' font-size="11"',
                               colour=svg.ON_COLOUR if colour == svg.ORANGE else "#fefefe")]
    y = TOP + LANE * steps.ranks + 14
    parts += svg.keys(LEFT, y, [(svg.BLUE, "partial sum, with the number of its terms"), (svg.ORANGE, "the complete sum")])
    return svg.document(right + 30, y + 16, f"The steps of {steps.title}", parts)


def draw(steps):
    """A panel for each step, and one for the end; or rows, for many ranks."""
    if steps.ranks > 4:
        return draw_rows(steps)
    parts = [heading(steps)]
    for number, state in enumerate(steps.states):
        left, top = PANEL * (number % ROW), 30 + PANEL * (number // ROW)
        circle = Circle(steps.ranks, left, top)
        words = f"step {number}" if number < len(steps.messages) else "afterwards"
        parts.append(svg.text(*circle.centre, words, extra=' font-weight="bold"'))
        for sender, shards, _, receiver in steps.messages[number] if number < len(steps.messages) else []:
            parts += circle.message(sender, shards, receiver)
        for rank, shards in enumerate(state):
            parts += circle.vector(rank, shards)
    rows = math.ceil(len(steps.states) / ROW)
    y = 30 + PANEL * rows + 14
    parts += svg.keys(12, y, [(svg.RANKS[shard], f"shard {shard}") for shard in range(steps.ranks)])
    return svg.document(PANEL * ROW, y + 16, f"The steps of {steps.title}", parts)


main = svg.script(__file__, "the steps of an all-reduce of lesson 02", Steps, draw, Steps.table)

if __name__ == "__main__":
    svg.run_script(main)
