#!/usr/bin/env python3
"""Draws GPT-2 with the shapes of all activations and parameters, as SVG, and prints them with the sizes of a model.

    build/lessons/01_single_device --dry-run | scripts/plot/plot_block.py --output=FILE.svg
"""

import collections

import svg

LEFT, TOP, ROW, WIDE, HIGH, STEP = 132, 66, 118, 102, 34, 164
ACTIVATION, WEIGHT = svg.SKY, svg.ORANGE
Step = collections.namedtuple("Step", "operation parameters result", defaults=["", ""])  # shapes in letters
CHAINS = {
    "GPT-2": ["(B, T)", Step("embedding", "wte (V, C) + wpe (T, C)", "(B, T, C)"), Step("L blocks", "", "(B, T, C)"),
              Step("LayerNorm", "(C) + (C)", "(B, T, C)"), Step("× wte'", "(C, V), tied", "(B, T, V)"),
              Step("cross-entropy", "", "loss")],
    "attention": ["(B, T, C)", Step("LayerNorm", "(C) + (C)", "(B, T, C)"), Step("× c_attn", "(C, 3 C) + (3 C)", "(B, T, 3 C)"),
                  Step("softmax(QK'/√D)", "", "(B, H, T, T)"), Step("× V", "", "(B, T, C)"),
                  Step("× c_proj", "(C, C) + (C)", "(B, T, C)")],
    "MLP": ["(B, T, C)", Step("LayerNorm", "(C) + (C)", "(B, T, C)"), Step("× c_fc", "(C, 4 C) + (4 C)", "(B, T, 4 C)"),
            Step("GELU", "", "(B, T, 4 C)"), Step("× c_proj", "(4 C, C) + (C)", "(B, T, C)")],
}
Sizes = collections.namedtuple("Sizes", "L H C V T")


def read(text):
    """The sizes of the model."""
    return Sizes(*svg.find(r"^# model .* L=(\d+) H=(\d+) C=(\d+) V=(\d+), context (\d+)", text, "'# model ... L='"))


def table(sizes):
    """A line for each operation, with shapes in numbers."""
    numbers = dict(sizes._asdict(), D=sizes.C // sizes.H)
    for name, (first, *steps) in CHAINS.items():
        yield f"{name}: {first}"
        for step in steps:
            shapes = step.result
            for letter, number in numbers.items():
                shapes = shapes.replace(f"3 {letter}", str(3 * number)).replace(f"4 {letter}", str(4 * number))
                shapes = shapes.replace(f" {letter},", f" {number},").replace(f" {letter})", f" {number})")
            yield f"  {step.operation:<16} {step.parameters:<24} {step.result:<13} {shapes}".rstrip()


def chain(name, y):
    """Operations from left to right, with arrows between them that carry the shapes."""
    first, *steps = CHAINS[name]
    yield svg.text(12, y + HIGH / 2 + 4, name, "start", ' font-weight="bold"')
    shape = first
    for number, step in enumerate(steps):
        x = LEFT + STEP * number
        yield svg.arrow(x - STEP + WIDE + 2 if number else x - 56, y + HIGH / 2, x - 2, y + HIGH / 2, svg.OUTLINE, 1)
        yield svg.text(x - (STEP - WIDE) / 2 if number else x - 38, y + HIGH / 2 - 7, shape, extra=' font-size="10"')
        yield svg.rectangle(x, y, WIDE, HIGH, ACTIVATION, f"{name}: {step.operation}")
        yield svg.text(x + WIDE / 2, y + HIGH / 2 + 4, step.operation, extra=' font-size="11"', colour=svg.ON_COLOUR)
        if step.parameters:
            yield svg.rectangle(x, y + HIGH, WIDE, 5, WEIGHT, f"parameters {step.parameters}")
            yield svg.text(x + WIDE / 2, y + HIGH + 19, step.parameters, extra=' font-size="10"')
        shape = step.result
    end = LEFT + STEP * (len(steps) - 1) + WIDE
    yield svg.arrow(end + 2, y + HIGH / 2, end + 62, y + HIGH / 2, svg.OUTLINE, 1)
    yield svg.text(end + 31, y + HIGH / 2 - 7, shape, extra=' font-size="10"')
    if name != "GPT-2":  # the residual stream, around the branch
        over = y - 18
        yield svg.line(LEFT - 12, y + HIGH / 2, LEFT - 12, over, svg.OUTLINE)
        yield svg.line(LEFT - 12, over, end + 74, over, svg.OUTLINE)
        yield svg.arrow(end + 74, over, end + 74, y + HIGH / 2 - 10, svg.OUTLINE, 1)
        yield svg.text((LEFT + end) / 2, over - 5, "x, added to what the branch makes", extra=' font-size="10"')
        yield f'<circle cx="{end + 74:.1f}" cy="{y + HIGH / 2:.1f}" r="9" stroke="{svg.OUTLINE}"/>'
        yield svg.text(end + 74, y + HIGH / 2 + 4, "+")


def draw(sizes):
    """The model, and the two branches of a block."""
    longest = max(len(steps) for steps in CHAINS.values()) - 1
    parts = [svg.text(LEFT - 40, 20, f"A model of L = {sizes.L} blocks of two branches; here H = {sizes.H} heads, "
                      f"C = {sizes.C} channels, D = C / H = {sizes.C // sizes.H}, V = {sizes.V} tokens, T = {sizes.T}", "start")]
    for row, name in enumerate(CHAINS):
        parts += chain(name, TOP + ROW * row)
    y = TOP + ROW * len(CHAINS) - 24
    parts += svg.keys(LEFT, y, [(ACTIVATION, "operation; what it makes is on the arrow behind it"), (WEIGHT, "parameters")])
    return svg.document(LEFT + STEP * longest + 34, y + 18, "GPT-2 with its shapes", parts)


main = svg.script(__file__, "the model of lesson 01", read, draw, table)

if __name__ == "__main__":
    svg.run_script(main)
