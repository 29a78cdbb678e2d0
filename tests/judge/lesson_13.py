"""Cases of the exercises of lesson 13. See scripts/course/judge.py."""

from judge import Case, exercise


@exercise("13.1", hint="the ranks of a replica are neighbours, then come the other replicas, then the next micro-batch")
def sequences(draw):
    for replicas, s, t in ((1, 1, 1), (2, 2, 2), (draw.size(2, 3), draw.size(2, 4), 1), (draw.size(2, 4), 1, 2),
                           (1, draw.size(2, 5), draw.size(1, 3)), (3, 2, draw.size(1, 2))):
        B, M = draw.size(1, 3), draw.size(1, 4)
        yield Case({"replicas": replicas, "s": s, "t": t, "micro_batch": B, "global_batch": B * M * replicas * s},
                   "{replicas} replicas of {s} times {t} ranks, {global_batch} sequences, {micro_batch} in a micro-batch")


@exercise("13.2", hint="an element counts where it is in a shard of this rank and in a range that this tensor-parallel rank owns")
def counted(draw):
    for s, t, unit in ((1, 1, "block"), (1, 2, "branch"), (2, 2, "block"), (3, 1, "model"), (draw.size(2, 5), 4, "branch"),
                       (draw.size(2, 4), draw.choice((2, 4)), "model")):
        yield Case({"s": s, "t": t, "unit": unit, "layers": draw.size(1, 3), "heads": 4, "channels": 4 * draw.size(2, 6),
                    "persist": draw.choice((0, 0, 16, 64))},
                   "{s} shards of {t} tensor-parallel ranks, {layers} layers, {channels} channels, {unit}, persist {persist}")


@exercise("13.3", hint="one all-reduce for each shard of this rank, of that shard alone; where may a second gradient be?")
def between_replicas(draw):
    for replicas, s, t, tree in ((2, 1, 1, False), (2, 2, 1, True), (draw.choice((2, 4)), 2, 2, False), (4, 1, 2, True),
                                 (2, 4, 1, True)):
        yield Case({"replicas": replicas, "s": s, "t": t, "tree": tree, "micro_batch": draw.choice((1, 2)),
                    "layers": draw.size(2, 5), "gradients": "f32" if tree else draw.choice(("f32", "bf16"))},
                   "{replicas} replicas of {s} times {t} ranks, {layers} layers, gradients in {gradients}, tied apart {tree}")
