"""Cases of the exercises of lesson 04. See scripts/course/judge.py."""

from judge import STEP, Case, exercise, short_run


@exercise("04.1", hint="a bucket's shards are those of Partition, moved to where the bucket begins; also where some are empty")
def bucket_shards(draw):
    for N in (1, 2, 3, 4, draw.size(5, 9)):
        buckets, end = [], 20000
        for count in (draw.size(1, N), N * draw.size(5, 50), N * draw.size(50, 99) + N // 2, 0, draw.size(900, 1100)):
            buckets.append([end - count, count])
            end -= count
        yield Case({"N": N, "buckets": buckets}, "{N} ranks")


@exercise("04.2", hint="each element counts once: first the sum over this rank's shards, then the sum over the ranks")
def sharded_norm(draw):
    for ranks in (1, 2, 3, 4):
        for pieces in (1, draw.size(2, 5)):
            yield Case({"n": draw.size(900, 1100), "pieces": pieces, "infinite": -1, "seed": draw.seed()},
                       "{n} elements in {pieces} pieces", ranks)
        yield Case({"n": ranks, "pieces": 2, "infinite": ranks - 1, "seed": draw.seed()}, "one element is infinite", ranks)


@exercise("04.3", program="04_zero1", needs=("prepare",), fields=STEP,
          hint="each rank updates its shards; after that, not before, all are gathered")
def update(draw):
    yield short_run(draw, 2, "some buckets, with accumulation", "--micro-batch=1", f"--bucket={draw.size(15, 30)}kB")
    yield short_run(draw, 3, "three ranks", f"--bucket={draw.size(40, 60)}kB")
    yield short_run(draw, 4, "each unit is a bucket", "--bucket=1B")
