"""Cases of the exercises of lesson 07. See scripts/course/judge.py."""

from judge import Case, exercise


@exercise("07.1", hint="when this block is given out, what comes for later ones and what goes of the one before need not be done")
def buffers(draw):
    for home in ("host", "disk"):
        for blocks in (1, 2, draw.size(3, 4), draw.size(6, 8)):
            walks = draw.choice((["update", "read", "write", "read"], ["write", "read", "update", "read"]))
            yield Case({"blocks": blocks, "home": home, "walks": walks, "held": False},
                       "{blocks} blocks from {home}, walks to {walks}")
    for walks in (["read"], ["update"], ["write"]):
        yield Case({"blocks": draw.size(5, 7), "home": "host", "walks": walks, "held": True},
                   "{blocks} blocks from {home}, whose transfers take longer than the work, walks to {walks}")
    yield Case({"blocks": draw.size(2, 4), "home": "device", "walks": ["update", "write", "read"], "held": False},
               "{blocks} blocks that are used where they are stored, walks to {walks}")
    for home in ("host", "device"):
        yield Case({"blocks": draw.size(4, 6), "home": home, "out_of_order": draw.size(1, 3)},
                   "{blocks} blocks from {home}, of which block {out_of_order} is asked for first")


@exercise("07.2", hint="which vectors leave their tier, how often in a step, and in which direction?")
def links(draw):
    for offload in ("optimizer", "gradients", "parameters", "all"):
        for tier in ("host", "disk:/tmp"):
            for M in (1, draw.size(2, 5)):
                tied = draw.choice((True, False)) or offload == "gradients"
                kinds = ("f32", "f32") if tied and M == 1 else draw.choice((("f32", "f32"), ("bf16", "f32"), ("bf16", "bf16")))
                kinds = ("bf16", "bf16") if offload == "all" and M > 1 else kinds
                yield Case({"offload": offload, "tier": tier, "micro_batches": M, "tied_apart": tied, "ranks": draw.size(1, 3),
                            "layers": draw.size(1, 3), "channels": 8 * draw.size(2, 4), "persist": draw.choice((0, 40)),
                            "prefetch": draw.size(0, 2), "parameters": kinds[0], "gradients": kinds[1],
                            "clips": draw.choice((True, False))},
                           "--offload={offload} --tier={tier}, {micro_batches} micro-batches, {ranks} ranks, parameters in "
                           "{parameters}, gradients in {gradients}, tied ones apart {tied_apart}")


@exercise("07.3", hint="which pieces does a block have in common with the ranges, and where in the block does a piece begin?")
def saving(draw):
    for offload, tier in (("all", "disk:/tmp"), ("optimizer", "disk:/tmp"), ("parameters", "host"), ("all", "host")):
        for cut in (False, True):
            first, second, third = draw.size(5, 9), draw.size(60, 90), draw.size(10, 20)
            own = [[300, second], [100, first], [10, third]]  # as shards are: the last unit of the table first
            border = [300 + second // 3, second // 4]  # cuts the first shard into three blocks
            ranges = [[10, 4], [16, third - 6], [300 + second // 4, second // 2], [102, 1]] if cut else own
            begin, count = ranges[2] if cut else ranges[0]
            parts = [[begin, count], [begin + 1, 1], [begin + count - 1, 1], [begin + count // 4, count // 2], ranges[1]]
            yield Case({"offload": offload, "tier": tier, "own": own, "cut": border, "ranges": ranges, "parts": parts,
                        "all": not cut},
                       "--offload={offload} --tier={tier}, shards {own}, ranges {ranges}")
