"""Cases of the exercises of lesson 05. See scripts/course/judge.py."""

from judge import Case, exercise

STEP = ("loss", "grad_norm", "digest", "memory", "traffic")  # of the report


def run(draw, ranks, about, *more):
    """A short run of a small model. Sums are in the order of the ring where the number of ranks is no power of two."""
    order = "fast" if ranks == 3 else "exact"
    sizes = [f"--layers={draw.size(1, 2)}", "--context=16", "--channels=32", "--heads=2", f"--seed={draw.size(1, 999)}"]
    batch = [f"--global-batch={2 * ranks}", "--steps=2", "--dropout=0.1", "--clip=0.5", f"--arithmetic={order}"]
    return Case({}, about, ranks, [*sizes, *batch, *more])


@exercise("05.1", program="05_zero2", fields=STEP, hint="wait, add, free: in this order, and each once for each bucket")
def collect(draw):
    yield run(draw, 2, "some buckets, with accumulation", "--micro-batch=1", f"--bucket={draw.size(15, 30)}kB")
    yield run(draw, 3, "three ranks", f"--bucket={draw.size(40, 60)}kB")
    yield run(draw, 4, "each unit is a bucket", "--bucket=1B")


@exercise("05.2", hint="the ranks take turns: B sequences of the first rank, B of the second, ...")
def micro_batches(draw):
    for ranks in (1, 2, 3, 4):
        for B in (1, draw.size(2, 5)):
            for M in (1, draw.size(2, 4)):
                yield Case({"G": M * ranks * B, "B": B}, "{G} sequences in micro-batches of {B}", ranks)


@exercise("05.3", hint="the first micro-batch of a step is that of sequence 0: what is left of the step before goes then")
def shard_sums(draw):
    for tree in (False, True):
        for N, M in ((1, 2), (2, 1), (3, 4)):
            yield Case({"tree": tree, "N": N, "rank": draw.size(0, N - 1), "M": M, "sequences": 4, "steps": 2,
                        "channels": 4 * draw.size(1, 3), "bytes": draw.size(800, 2500), "seed": draw.seed()},
                       "rank {rank} of {N}, {M} micro-batches a step")
