"""Cases of the exercises of lesson 03. See scripts/course/judge.py."""

from dataclasses import replace

from judge import STEP, Case, exercise, short_run


@exercise("03.1", program="03_ddp", needs=("prepare",), fields=STEP, hint="each piece is one all-reduce, and each sum is in one piece")
def sum_after_backward(draw):
    yield short_run(draw, 2, "per tensor", "--strategy=per-tensor")
    yield short_run(draw, 3, "in buckets", "--strategy=bucketed", f"--bucket={draw.size(20, 40)}kB")
    yield short_run(draw, 4, "in one message, with accumulation", "--strategy=flat", "--micro-batch=1")


@exercise("03.2", hint="a bucket is full with the unit that brings it to the given size, not with the one after it")
def buckets(draw):
    for kind, width in (("f32", 4), ("bf16", 2)):
        for units in ([0, -1], [draw.size(1, 2), draw.size(3, 5)]):
            channels = 2 * draw.size(4, 9)
            whole_head = 2 * channels * width  # the head alone fills a bucket
            for size in (1, whole_head, whole_head + 1, draw.size(2000, 9000), draw.size(9000, 20000), 1 << 40):
                yield Case({"layers": draw.size(3, 5), "channels": channels, "units": units,
                            "replicated": draw.choice((0, channels)), "type": kind, "bytes": size},
                           "buckets of {bytes} bytes, {layers} layers of {channels} channels in {type}")


@exercise("03.3", program="03_ddp", needs=("prepare",), fields=(*STEP, "virtual"),
          hint="a bucket is complete with its first unit, in the last micro-batch of this rank")
def unit_done(draw):
    link = ["--link=1us,1GB/s", "--flops=100MFLOP/s"]
    case = short_run(draw, 2, "with accumulation, on a link", "--micro-batch=1", f"--bucket={draw.size(15, 30)}kB", *link)
    yield replace(case, hides=True)
    yield short_run(draw, 3, "three ranks", f"--bucket={draw.size(40, 60)}kB")
    yield short_run(draw, 4, "each unit is a bucket, with accumulation", "--micro-batch=1", "--bucket=1B")
    yield short_run(draw, 2, "another strategy, for which nothing is sent during the backward pass", "--strategy=bucketed", *link)
