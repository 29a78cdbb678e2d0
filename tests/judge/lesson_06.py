"""Cases of the exercises of lesson 06. See scripts/course/judge.py."""

from judge import Case, exercise


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


@exercise("06.3", hint="a unit that is kept whole has every rank's shard in its place; all other shards stand one after the other")
def views_of_shards(draw):
    sizes = {"layers": 2, "recompute": False, "training": True, "collectives": "ring", "prefetch": 1}
    for ranks in (1, 2, 3, 4):
        for unit, reshard, persist in (("block", "after-forward", 0), ("branch", "after-backward", 64), ("model", "never", 0),
                                       ("branch", "never", 64), ("branch", "after-forward", 1 << 20)):
            yield Case({**sizes, "unit": unit, "reshard": reshard, "persist": persist, "channels": draw.choice((8, 12)),
                        "type": draw.choice(("f32", "bf16")), "seed": draw.seed()},
                       "--unit={unit} --reshard={reshard} --persist={persist}, parameters in {type}", ranks)
        yield Case({**sizes, "unit": "block", "reshard": "after-forward", "persist": 64, "channels": 8, "type": "f32",
                    "kept": False, "seed": draw.seed()}, "the shards of units that are not kept whole are stored elsewhere", ranks)


@exercise("06.4", hint="first free, then start the gathers, then wait for what this use needs, once for each place")
def use(draw):
    sizes = {"layers": 2, "channels": 8, "collectives": "ring", "type": "f32"}
    for ranks in (1, 2, 3, 4):
        for unit, reshard, prefetch in (("block", "after-forward", 0), ("block", "after-forward", 1),
                                        ("branch", "after-backward", draw.size(1, 2)), ("branch", "after-forward", 2)):
            yield Case({**sizes, "unit": unit, "reshard": reshard, "prefetch": prefetch, "persist": draw.choice((0, 64)),
                        "training": True, "recompute": unit == "block", "in turns": prefetch > 0, "seed": draw.seed()},
                       "--unit={unit} --reshard={reshard} --prefetch={prefetch} --persist={persist}", ranks)
        yield Case({**sizes, "unit": "branch", "reshard": "after-forward", "prefetch": 0, "persist": 0, "training": False,
                    "recompute": False, "out of order": draw.size(2, 3), "seed": draw.seed()}, "uses out of order", ranks)
