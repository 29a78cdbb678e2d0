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


SAVED = ("loss", "grad_norm", "digest", "first_step")  # of the report


@exercise("07.3", program="07_offload", fields=SAVED, needs=("prepare",),
          hint="the second run has nothing but the checkpoint: which elements, which moments, and are they stored again?")
def saving(draw):
    sizes = [f"--layers={draw.size(1, 2)}", "--context=16", "--channels=32", "--heads=2", f"--seed={draw.size(1, 999)}"]
    batch = ["--global-batch=4", "--steps=2", "--dropout=0.1", "--clip=0.5", "--arithmetic=exact"]
    fixed = [*sizes, *batch, "--checkpoint={folder}/run.h5", "--data={folder}/text.h5"]
    disk = "--tier=disk:{folder}"
    for writers, readers, first, second in ((2, 2, ["--offload=all"], ["--offload=all", disk]),
                                            (1, 2, ["--offload=optimizer", disk], ["--offload=parameters"])):
        then = Case({}, f"the second step, {' '.join(second).format(folder='DIR')}", readers, [*fixed, *second, "--resume"])
        about = f"the first step, {' '.join(first).format(folder='DIR')}"
        yield Case({}, about, writers, [*fixed, *first, "--stop-after=1"], then)
