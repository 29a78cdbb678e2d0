"""Cases of the exercises of lesson 12. See scripts/course/judge.py."""

from dataclasses import replace

from judge import STEP, exercise, short_run


@exercise("12.1", program="12_bert", needs=("prepare",), fields=(*STEP, "virtual"),
          hint="once a step, and in ZeRO-1 half of what DDP sends")
def unit_done(draw):
    link = ["--link=1us,1GB/s", "--flops=100MFLOP/s"]
    for zero in (0, 1):
        case = short_run(draw, 2, f"--zero={zero} with accumulation, on a link", f"--zero={zero}", "--micro-batch=1",
                         f"--bucket={draw.size(15, 30)}kB", *link)
        yield replace(case, hides=True)
    yield short_run(draw, 3, "ZeRO-1 on three ranks", "--zero=1", "--bucket=1B")


@exercise("12.2", program="12_bert", needs=("prepare",), fields=("tasks", *STEP),
          hint="both sums are divided by this step's masked tokens")
def pair_weight(draw):
    yield short_run(draw, 2, "with accumulation", "--micro-batch=1")
    yield short_run(draw, 3, "three ranks", "--zero=1")
