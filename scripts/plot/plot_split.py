#!/usr/bin/env python3
"""Draws which part of each matrix a rank of lesson 08 has, as SVG, and prints the numbers.

    mpirun -np 2 build/lessons/08_tensor_parallel --dry-run | scripts/plot/plot_split.py --output=FILE.svg

What is drawn is what the lesson prints of rank 0; part i of t is as large, and i times as far along. A colour is a rank,
grey is on all ranks, white lines lie between heads. Matrices are drawn to scale, but the vocabulary no longer than 4 C.
"""

import re

import svg
from documents import text_table

SIDE = 46                           # pixels of C channels, and of the R rows of a micro-batch
SIGN = 26                           # space for what stands between two matrices
LEFT, TOP, ROW = 104, 26, 60         # ROW: between two chains, for words
NAMES = {"wte.weight": "wte", "h.0.attn.c_attn.weight": "c_attn", "h.0.attn.c_proj.weight": "c_proj",
         "h.0.mlp.c_fc.weight": "c_fc", "h.0.mlp.c_proj.weight": "c_proj of the MLP"}
LINE = re.compile(r"#\s+(\S+)\s+\(([\d, ]+)\)\s+(rows|columns)((?: \d+\.\.\d+)+)$")


class Matrix:
    """A tensor, and the runs of rows or columns that each rank has of it."""

    def __init__(self, shape, along, runs):
        self.shape, self.along = shape, along
        self.whole = shape[0 if along == "rows" else 1]
        self.runs = runs  # (first, count) of part 0

    def of(self, part):
        """The runs of a part; the last of the vocabulary's is shorter where the vocabulary is padded."""
        return [(first + part * count, min(count, self.whole - first - part * count)) for first, count in self.runs]

    def shares_of(self, part):
        """The ranges of a part, in shares of the whole."""
        return [(first / self.whole, count / self.whole) for first, count in self.of(part)]

    def words(self, part):
        """The ranges of a part as the lesson writes them."""
        return " ".join(f"{first}..{first + count - 1}" for first, count in self.of(part))


class Parts:
    """Output of --dry-run: t, heads, channels, and the matrices by their names here."""

    def __init__(self, text):
        head = re.search(r"# tensor-parallel rank 0 of (\d+) has$", text, re.MULTILINE)
        sizes = re.search(r"# model .* H=(\d+) C=(\d+) ", text)
        if not head or not sizes:
            raise svg.NotThere("it has no line '# tensor-parallel rank 0 of t has'")
        self.count, self.heads, self.channels = int(head[1]), int(sizes[1]), int(sizes[2])
        if self.count > len(svg.RANKS):
            raise svg.NotThere(f"it has {self.count} parts, and there are {len(svg.RANKS)} colours")
        self.matrices = {}
        for name, shape, along, runs in (found.groups() for found in map(LINE.match, text.splitlines()) if found):
            if name in NAMES:
                pairs = [tuple(map(int, run.split(".."))) for run in runs.split()]
                self.matrices[NAMES[name]] = Matrix(tuple(map(int, shape.split(","))), along,
                                                    [(first, last - first + 1) for first, last in pairs])
        lacking = [name for name in NAMES.values() if name not in self.matrices]
        if lacking:
            raise svg.NotThere(f"it does not say how {lacking[0]} is divided")

    def heads_of(self, part):
        """The heads of a part, first and last."""
        own = self.heads // self.count
        return part * own, (part + 1) * own - 1


def table(parts):
    """A line a rank."""
    rows = [["rank", "heads", *(f"{name}, {matrix.along}" for name, matrix in parts.matrices.items())]]
    for part in range(parts.count):
        first, last = parts.heads_of(part)
        rows.append([str(part), f"{first}..{last}", *(matrix.words(part) for matrix in parts.matrices.values())])
    return text_table(rows, len(rows[0])).splitlines()


# ---- Picture ---------------------------------------------------------------------------------------------------------

def frame(x, y, width, height):
    """The outline of a matrix."""
    return svg.rectangle(x, y, width, height, "none", outline=svg.OUTLINE)


class Chain:
    """Matrices and signs from left to right, all with the same middle. What draws one of them returns the chain."""

    def __init__(self, parts, title, middle):
        self.parts, self.middle, self.x = parts, middle, LEFT
        self.pieces = [svg.text(12, middle - 2, title, "start", ' font-weight="bold"')]

    def sign(self, words, below=""):
        """Draws the sign between two matrices."""
        width = max(SIGN, 9 * len(words) + 4, 6 * len(below) + 8)
        self.pieces.append(svg.text(self.x + width / 2, self.middle + 5, words, extra=' font-size="15"'))
        if below:
            self.pieces.append(svg.text(self.x + width / 2, self.middle + 22, below, extra=' font-size="10"'))
        self.x += width
        return self

    def caption(self, width, height, name, shape):
        """Name above, shape below; then it continues behind the matrix."""
        x = self.x + width / 2
        self.pieces += [svg.text(x, self.middle - height / 2 - 6, name),
                        svg.text(x, self.middle + height / 2 + 15, shape, extra=' font-size="10"')]
        self.x += width
        return self

    def everybody(self, name, shape, width=SIDE, height=SIDE):
        """A matrix that all ranks have."""
        y = self.middle - height / 2
        self.pieces += [svg.rectangle(self.x, y, width, height, svg.LIGHT_GREY, f"{name} {shape}: on all ranks"),
                        frame(self.x, y, width, height)]
        return self.caption(width, height, name, shape)

    def divided(self, name, shape, extents, along, runs, heads=0, sections=1):
        """A matrix of which each rank has runs.
        @param extents  of rows and columns, in pixels.
        @param runs     runs(part): what it has, as (first, count) in shares of the whole.
        @param heads    pieces between which there are white lines.
        @param sections pieces between which there are dark ones."""
        height, width = extents
        y = self.middle - height / 2

        def place(first, count):
            return ((self.x, y + first * height, width, count * height) if along == "rows" else
                    (self.x + first * width, y, count * width, height))

        for part in range(self.parts.count):
            for run in runs(part):
                self.pieces.append(svg.rectangle(*place(*run), svg.RANKS[part], f"{name} {shape}: rank {part}"))
        for pieces, colour in ((heads, svg.PAPER), (sections, svg.INK)):
            for i in range(1, pieces):
                left, top, wide, high = place(i / pieces, 0)
                self.pieces.append(svg.line(left, top, left + wide, top + high, colour))
        self.pieces.append(frame(self.x, y, width, height))
        return self.caption(width, height, name, shape)

    def matrix(self, name, shape, transposed=False, heads=0, sections=1):
        """One of the matrices that the lesson names."""
        matrix = self.parts.matrices[name]
        extents = [min(extent / self.parts.channels, 4) * SIDE for extent in matrix.shape]
        along = matrix.along
        if transposed:
            extents, along = extents[::-1], "columns" if along == "rows" else "rows"
        return self.divided(name + ("'" if transposed else ""), shape, extents, along, matrix.shares_of, heads, sections)

    def partial_sums(self):
        """A matrix of each rank, one behind the other."""
        y, off = self.middle - SIDE / 2, 7
        for part in reversed(range(self.parts.count)):
            left, top = self.x + off * part, y - off * part
            self.pieces += [svg.rectangle(left, top, SIDE, SIDE, svg.RANKS[part], f"partial sum (R, C) of rank {part}"),
                            frame(left, top, SIDE, SIDE)]
        self.pieces.append(svg.text(self.x + SIDE / 2, self.middle + SIDE / 2 + 15, "(R, C) each", extra=' font-size="10"'))
        self.x += SIDE + off * (self.parts.count - 1)
        return self


def attention(parts, middle):
    chain = Chain(parts, "attention", middle)
    chain.everybody("norm(x)", "(R, C)").sign("×")
    chain.matrix("c_attn", "(C, 3 C), columns of q, k, v", heads=3 * parts.heads, sections=3).sign("=")
    chain.divided("q, k, v", "(R, 3 C)", (SIDE, 3 * SIDE), "columns", parts.matrices["c_attn"].shares_of, 3 * parts.heads, 3).sign("→", "heads")
    chain.divided("", "(R, C)", (SIDE, SIDE), "columns", parts.matrices["c_proj"].shares_of, parts.heads).sign("×")
    chain.matrix("c_proj", "(C, C), rows").sign("=")
    chain.partial_sums().sign("Σ →", "sum")
    chain.everybody("added to x", "(R, C)")
    return chain


def mlp(parts, middle):
    chain = Chain(parts, "MLP", middle)
    chain.everybody("norm(x)", "(R, C)").sign("×")
    chain.matrix("c_fc", "(C, 4 C), columns").sign("→", "GELU")
    chain.divided("hidden layer", "(R, 4 C)", (SIDE, 4 * SIDE), "columns", parts.matrices["c_fc"].shares_of).sign("×")
    chain.matrix("c_proj of the MLP", "(4 C, C), rows").sign("=")
    chain.partial_sums().sign("Σ →", "sum")
    chain.everybody("added to x", "(R, C)")
    return chain


def embedding(parts, middle):
    chain = Chain(parts, "embedding", middle)
    chain.everybody("tokens", "(R)", 10).sign("→", "rows of")
    chain.matrix("wte", "(V, C), rows").sign("=")
    chain.partial_sums().sign("Σ →", "sum")
    chain.everybody("", "(R, C)").sign("+")
    chain.everybody("wpe", "(T, C)").sign("=")
    chain.everybody("x", "(R, C)")
    return chain


def head(parts, middle):
    chain = Chain(parts, "head", middle)
    chain.everybody("norm(x)", "(R, C)").sign("×")
    chain.matrix("wte", "(C, V), columns", transposed=True).sign("=")
    chain.divided("logits", "(R, V)", (SIDE, 4 * SIDE), "columns", parts.matrices["wte"].shares_of).sign("→")
    chain.divided("3 numbers", "(R, 3) each", (SIDE, 14 * parts.count), "columns",
                  lambda part: [(part / parts.count, 1 / parts.count)]).sign("max, Σ →")
    chain.everybody("losses", "(R)", 10)
    return chain


def draw(parts):
    """All four chains, and whose colour is whose."""
    heights = [4 * SIDE, SIDE, 4 * SIDE, SIDE]
    middle, chains = TOP, []
    for make, height in zip((embedding, attention, mlp, head), heights):
        chains.append(make(parts, middle + height / 2))
        middle += height + ROW
    width = max(chain.x for chain in chains) + 24
    pieces = [piece for chain in chains for piece in chain.pieces]
    for part in range(parts.count):
        pieces += svg.key(LEFT + 90 * part, middle - 4, svg.RANKS[part], f"rank {part}")
    pieces += svg.key(LEFT + 90 * parts.count, middle - 4, svg.LIGHT_GREY, "on all ranks")
    return svg.document(round(width), round(middle + 10), f"What each of {parts.count} ranks has of each matrix", pieces)


main = svg.script(__file__, "the shards of lesson 08", Parts, draw, table)

if __name__ == "__main__":
    svg.run_script(main)
