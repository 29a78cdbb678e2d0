"""Cases of the exercises of lesson 08. See scripts/course/judge.py."""

from judge import STEP, Case, exercise


def run(draw, ranks, about, *more):
    """A short run of a small model. Sums are in the order of the ring where the number of ranks is no power of two."""
    heads, channels, order = (3, 48, "fast") if ranks == 3 else (4, 32, "exact")
    sizes = [f"--layers={draw.size(1, 2)}", "--context=16", f"--channels={channels}", f"--heads={heads}"]
    batch = [f"--seed={draw.size(1, 999)}", "--global-batch=4", "--steps=2", "--clip=0.5", f"--arithmetic={order}"]
    return Case({}, about, ranks, [*sizes, *batch, "--data={folder}/text.h5", *more])


@exercise("08.1", program="08_tensor_parallel", fields=(*STEP, "virtual"), needs=("prepare",),
          hint="which rows has this rank after normalise(), which does a divided layer need, and which does add() take?")
def branches(draw):
    yield run(draw, 2, "rows divided and gathered again, recomputation", "--sequence-parallel", "--regather",
              "--recompute=block", "--dropout=0.1", "--link=1us,1GB/s", "--flops=100MFLOP/s")
    yield run(draw, 3, "three ranks", "--dropout=0.1")
    yield run(draw, 4, "rows divided, with accumulation", "--sequence-parallel", "--micro-batch=2", "--dropout=0.2")


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


@exercise("08.4", program="08_tensor_parallel", fields=STEP, needs=("prepare",),
          hint="which numbers of a row does a rank need from the others before it can go on?")
def loss(draw):
    yield run(draw, 2, "rows divided", "--sequence-parallel", "--dropout=0.1")
    yield run(draw, 3, "large logits", "--learning-rate=1", "--warmup=0")
    yield run(draw, 4, "with accumulation", "--micro-batch=2", "--dropout=0.1")
