"""Cases of the exercises of lesson 14. See scripts/course/judge.py."""

from dataclasses import replace

from judge import STEP, Case, exercise


def run(draw, ranks, about, *more):
    """A short run of a small model. Sums are exact unless `more` says otherwise; with three ranks they cannot be."""
    order = "fast" if ranks == 3 else "exact"
    T, heads, channels = (18, 3, 24) if ranks == 3 else (16, 4, 32)
    sizes = [f"--layers={draw.size(1, 2)}", f"--context={T}", f"--channels={channels}", f"--heads={heads}"]
    batch = [f"--seed={draw.size(1, 999)}", "--global-batch=4", "--steps=2", "--clip=0.5", f"--arithmetic={order}"]
    clock = [f"--link={draw.choice((1, 2))}us,1GB/s", "--flops=100MFLOP/s"]
    given = {option.split("=")[0] for option in more}
    chosen = [option for option in [*sizes, *batch, *clock] if option.split("=")[0] not in given]
    return Case({}, about, ranks, [*chosen, "--data={folder}/text.h5", *more])


@exercise("14.1", program="14_context_parallel", fields=(*STEP, "virtual"), needs=("prepare",),
          hint="which block is where after h hops, when does it leave, and which of its keys does a query see?")
def ring(draw):
    yield replace(run(draw, 2, "zig-zag order, dropout, recomputation", "--dropout=0.1", "--recompute=block"), hides=True)
    yield run(draw, 3, "micro-batches of two sequences, fast sums", "--micro-batch=2", "--dropout=0.1")
    yield run(draw, 4, "contiguous order, a prefix that all tokens see", "--order=contiguous", f"--mask=prefix:{draw.size(3, 7)}")
    yield run(draw, 4, "two ranks for a sequence, no mask", "--cp=2", "--mask=full", "--dropout=0.2")


@exercise("14.2", program="14_context_parallel", fields=STEP, needs=("prepare",),
          hint="which columns of its rows does this rank send to rank r, and whose tokens are the rows that rank r sends back?")
def to_heads(draw):
    heads = "--attention=all-to-all"
    yield run(draw, 2, "zig-zag order, recomputation", heads, "--dropout=0.1", "--recompute=block")
    yield run(draw, 3, "micro-batches of two sequences", heads, "--micro-batch=2", "--dropout=0.1")
    yield run(draw, 4, "contiguous order", heads, "--order=contiguous")
