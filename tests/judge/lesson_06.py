"""Cases of the exercises of lesson 06. See scripts/course/judge.py."""

from judge import STEP, Case, exercise, short_run


def run(draw, ranks, about, *more):
    """A short run on a short text."""
    return short_run(draw, ranks, about, "--data={folder}/text.h5", *more)


@exercise("06.1", hint="what is there at place s follows from the places s .. s + K, and with after-backward from all later ones")
def plan(draw):
    for unit in ("block", "branch", "model"):
        for reshard in ("after-forward", "after-backward"):
            for prefetch in (0, 1, draw.size(2, 4)):
                yield Case({"unit": unit, "reshard": reshard, "prefetch": prefetch, "persist": draw.choice((0, 8, 64)),
                            "layers": draw.size(2, 4), "channels": 8, "training": True,
                            "recompute": draw.choice((False, True))},
                           "--unit={unit} --reshard={reshard} --prefetch={prefetch} --persist={persist}, {layers} layers")
    yield Case({"unit": "block", "reshard": "after-forward", "prefetch": 1, "persist": 0, "layers": draw.size(2, 4),
                "channels": 8, "training": False, "recompute": False}, "validation, {layers} layers")


@exercise("06.2", hint="the gather is started here and waited for at the use; all ranks have their own shard in its place")
def gather(draw):
    sizes = {"layers": 2, "channels": 8, "recompute": False, "type": "f32", "persist": 0}
    # MPI's own collectives tell an all-gather from as many bytes that were sent in another way.
    for ranks, collectives in ((2, "ring"), (3, "library"), (4, "ring")):
        for unit, reshard in (("block", "after-forward"), ("branch", "after-backward")):
            yield Case({**sizes, "collectives": collectives, "unit": unit, "reshard": reshard, "prefetch": draw.size(0, 2),
                        "persist": draw.choice((0, 8)), "type": "bf16" if unit == "branch" else "f32", "training": ranks == 3,
                        "seed": draw.seed()},
                       "--unit={unit} --reshard={reshard} --prefetch={prefetch} --persist={persist}, parameters in {type}", ranks)
        yield Case({**sizes, "collectives": collectives, "unit": "block", "reshard": "after-forward", "prefetch": 0,
                    "alone": draw.size(0, 3), "seed": draw.seed()}, "a gather that one rank after the other starts", ranks)


@exercise("06.3", program="06_zero3", needs=("prepare",), fields=("first_step", *STEP),
          hint="a shard is written to and read from the place that its range says; its moments belong to it")
def shards(draw):
    for writers, readers, *more in ((4, 2), (2, 3, "--unit=branch")):
        sums = ["--arithmetic=fast", "--global-batch=12"] if readers == 3 else ["--arithmetic=exact", "--global-batch=8"]
        options = [f"--layers={draw.size(1, 2)}", "--context=16", "--channels=32", "--heads=2", f"--seed={draw.size(1, 999)}",
                   "--steps=2", "--data={folder}/text.h5", "--checkpoint={folder}/run.h5", *sums, *more]
        yield Case({}, f"{writers} ranks save", writers, [*options, "--stop-after=1"],
                   Case({}, f"{readers} ranks resume what {writers} have saved", readers, [*options, "--resume"],
                        own=readers == 2))  # else the reference reads it, which knows what belongs where


@exercise("06.4", program="06_zero3", needs=("prepare",), fields=STEP,
          hint="as after the update of lesson 04: who has which part already?")
def replicated(draw):
    yield run(draw, 2, "norms and biases of C elements are replicated", f"--persist={draw.size(32, 90)}")
    yield run(draw, 3, "some are", f"--persist={draw.size(128, 500)}", "--unit=branch", "--collectives=library")
    yield run(draw, 4, "all are", "--persist=1000000")
