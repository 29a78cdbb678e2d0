"""Cases of the exercises of lesson 05. See scripts/course/judge.py."""

from judge import STEP, Case, exercise, short_run


@exercise("05.1", program="05_zero2", fields=STEP, hint="wait, add, free: in this order, and each once for each bucket")
def collect(draw):
    yield short_run(draw, 2, "some buckets, with accumulation", "--micro-batch=1", f"--bucket={draw.size(15, 30)}kB")
    yield short_run(draw, 3, "three ranks", f"--bucket={draw.size(40, 60)}kB")
    yield short_run(draw, 4, "each unit is a bucket", "--bucket=1B")


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
