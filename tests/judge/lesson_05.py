"""Cases of the exercises of lesson 05. See scripts/course/judge.py."""

from judge import STEP, Case, exercise, short_run


@exercise("05.1", program="05_zero2", needs=("prepare",), fields=STEP,
          hint="wait, add, free: in this order, and each once for each bucket")
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


@exercise("05.3", hint="the first unit of a bucket finds nothing, the others find the same buffer")
def buffer_of(draw):
    for kind, width in (("f32", 4), ("bf16", 2)):
        C = 4 * draw.size(1, 3)
        sizes = {"layers": draw.size(1, 3), "channels": C, "type": kind, "replicated": 0, "lost": False, "seed": draw.seed()}
        for size in (1, width * 12 * C * C, 1 << 40):
            yield Case({**sizes, "bytes": size}, "buckets of {bytes} bytes, {layers} layers of {channels} channels in {type}")
        yield Case({**sizes, "bytes": 1, "replicated": 4 * C}, "a bucket of replicated tensors, {layers} layers of {channels} channels")
        yield Case({**sizes, "bytes": 1, "lost": True}, "elements that are in no bucket")
