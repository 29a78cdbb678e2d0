"""Cases of the exercises of lesson 08. See scripts/course/judge.py."""

from judge import Case, exercise


@exercise("08.2", hint="which rows or columns are this rank's in each section, and where does it keep them?")
def rectangles(draw):
    for t, heads in ((1, 2), (2, 4), (3, 3 * draw.size(1, 2)), (4, 4), (draw.choice((5, 6, 7)), 0), (8, 8)):
        heads = heads or t
        yield Case({"t": t, "heads": heads, "layers": draw.size(1, 2), "channels": heads * draw.size(2, 5),
                    "context": draw.size(3, 9), "vocabulary": draw.size(9, 60)},
                   "{t} ranks, {heads} heads, {channels} channels, {vocabulary} entries of the vocabulary")


@exercise("08.3", hint="count the sums and the gathers of an embedding, of a branch and of the head, forward and backward")
def traffic(draw):
    kinds = ((False, False, False), (False, False, True), (True, False, False), (True, False, True), (True, True, False),
             (True, True, True))  # divides rows, gathers again, recomputes
    for number, (divides, regather, recompute) in enumerate(kinds):
        for t in (2, draw.choice((3, 4, 6))):
            layers = draw.size(2, 4)
            whole, first, last, middle = [0, 0], [0, 3], [2 * layers - 1, 3], [1, 2]
            yield Case({"t": t, "heads": 12, "layers": layers, "channels": 12 * draw.size(2, 4), "T": 12 * draw.size(1, 3),
                        "B": draw.size(1, 3), "type": ("f32", "bf16")[number % 2], "divides_rows": divides,
                        "regather": regather, "recompute": recompute, "micro_batches": draw.size(1, 3),
                        "units": draw.choice((whole, first, last, middle)) if t > 2 else whole,
                        "row_sums": draw.choice(([], [draw.size(100, 200), draw.size(1, 50)])) if divides else []},
                       "{t} ranks, {layers} layers, units {units}, rows divided {divides_rows}, gathered again {regather}, "
                       "recomputation {recompute}, {type}")
