#!/usr/bin/env python3
"""Draws which rank computes which pairs of a query and a key in lesson 14, as SVG, and prints how many each rank has.

    for o in zigzag contiguous; do build/lessons/14_context_parallel --dry-run --ranks=4 --order=$o; done | scripts/plot/plot_pairs.py --output=FILE.svg

A panel of the picture is an order. Its triangle has a row for each query and a column for each key that it sees, in the colour of the
query's rank; the bars beside it are the pairs of each rank.
"""

import collections
import re

import svg

LEFT, TOP, SIDE, BAR, APART, BETWEEN = 40, 58, 180, 24, 8, 60  # SIDE: of a triangle
Order = collections.namedtuple("Order", "name ranks")  # ranks: of each, its pairs and its two runs of tokens
Rank = collections.namedtuple("Rank", "pairs runs")


def read(text):
    """The orders as they come."""
    orders = []
    for part in re.split(r"(?=^# lesson 14)", text, flags=re.MULTILINE)[1:]:
        name = re.search(r"^# --order +(\S+) ", part, re.MULTILINE)
        ranks = [Rank(int(pairs.replace(",", "")), [(int(a), int(b)), (int(c), int(d))]) for pairs, a, b, c, d in re.findall(
            r"^  rank \d+ +([\d,]+) +pairs of a query and a key; tokens (\d+)-(\d+) and (\d+)-(\d+)$", part, re.MULTILINE)]
        if not ranks:
            raise svg.NotThere("it has no line 'rank ... pairs of a query and a key'")
        orders.append(Order(name[1] if name else "zigzag", ranks))
    if not orders:
        raise svg.NotThere("it has no line '# lesson 14_context_parallel on N ranks'")
    return orders


def imbalance(order):
    """The most pairs over the mean."""
    pairs = [rank.pairs for rank in order.ranks]
    return max(pairs) * len(pairs) / sum(pairs)


def table(orders):
    """A line for each order."""
    yield "order       largest / mean  pairs of each rank"
    for order in orders:
        yield f"{order.name:<10}  {imbalance(order):14.3f}  " + " ".join(str(rank.pairs) for rank in order.ranks)


def triangle(order, x, y):
    """The keys that each run of queries sees, under a causal mask."""
    scale = SIDE / (1 + max(last for rank in order.ranks for _, last in rank.runs))
    for number, rank in enumerate(order.ranks):
        for first, last in rank.runs:
            above, below = y + scale * first, y + scale * (last + 1)
            corners = [(x, above), (x + scale * first, above), (x + scale * (last + 1), below), (x, below)]
            yield svg.polygon(corners, svg.RANKS[number % len(svg.RANKS)], f"rank {number}: queries {first}-{last}")
    yield svg.text(x + SIDE / 2, y - 8, "keys", extra=' font-size="11"')
    yield f'<g transform="rotate(-90 {x - 8:.1f} {y + SIDE / 2:.1f})">{svg.text(x - 8, y + SIDE / 2, "queries")}</g>'


def bars(order, x, y, scale):
    """The pairs of each rank, and the mean."""
    for number, rank in enumerate(order.ranks):
        left, high = x + number * (BAR + APART), scale * rank.pairs
        yield svg.rectangle(left, y + SIDE - high, BAR, high, svg.RANKS[number % len(svg.RANKS)], f"rank {number}: {rank.pairs} pairs")
        yield svg.text(left + BAR / 2, y + SIDE + 14, f"{rank.pairs}", extra=' font-size="10"')
    mean, width = y + SIDE - scale * sum(rank.pairs for rank in order.ranks) / len(order.ranks), len(order.ranks) * (BAR + APART)
    yield f'<path d="M{x - 4:.1f} {mean:.1f}h{width:.1f}" stroke="{svg.INK}" stroke-dasharray="4 3"/>'


def draw(orders):
    """Orders side by side; all bars have one scale."""
    scale = SIDE / max(rank.pairs for order in orders for rank in order.ranks)
    parts, x = [], LEFT
    for order in orders:
        wide = SIDE + 24 + len(order.ranks) * (BAR + APART)
        parts.append(svg.text(x + wide / 2, 22, f"{order.name}: largest / mean {imbalance(order):.2f}", extra=' font-weight="bold"'))
        parts += [*triangle(order, x, TOP), *bars(order, x + SIDE + 24, TOP, scale)]
        x += wide + BETWEEN
    bottom = TOP + SIDE + 40
    ranks = [(colour, f"rank {rank}") for rank, colour in enumerate(svg.RANKS[:max(len(order.ranks) for order in orders)])]
    parts += [*svg.keys(LEFT, bottom, ranks), svg.text(x - BETWEEN, bottom, "dashes: the mean", "end")]
    return svg.document(x, bottom + 16, "Pairs of a query and a key of each rank in lesson 14", parts)


main = svg.script(__file__, "the pairs of lesson 14", read, draw, table)

if __name__ == "__main__":
    svg.run_script(main)
