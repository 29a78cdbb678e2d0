"""Cases of the exercises of lesson 09. See scripts/course/judge.py."""

from judge import Case, exercise


FORWARD, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHTS = range(4)


@exercise("09.1", hint="how many forward passes are ahead of the backward passes on this rank, and how many are there at all?")
def schedule(draw):
    for p, v, m in ((1, 1, 1), (1, 1, draw.size(2, 5)), (draw.size(5, 7), 1, draw.size(1, 3)), (4, 1, draw.size(9, 17)),
                    (draw.size(2, 6), 1, draw.size(4, 9)), (1, 2, draw.size(2, 4)), (2, draw.size(2, 4), 2),
                    (3, 2, 3 * draw.size(2, 4)), (4, draw.size(2, 3), 4), (draw.size(2, 5), draw.size(2, 4), 60)):
        yield Case({"p": p, "v": v, "m": m}, "{p} ranks, {v} stages on each, {m} micro-batches")


def lists(draw):
    """(what it is, actions of one stage as [kind, micro-batch]): whole backward passes, the two halves, validation."""
    m, late = draw.size(4, 7), draw.size(1, 2)
    ahead = draw.size(2, 3)
    one_by_one = [[kind, i] for i in range(m) for kind in (FORWARD, BACKWARD)]
    steady = [[FORWARD, i] for i in range(ahead)]
    for i in range(m):
        steady += [[FORWARD, i + ahead]] if i + ahead < m else []
        steady += [[BACKWARD, i]]
    halves = [[FORWARD, i] for i in range(m)] + [[kind, i] for i in range(m) for kind in (BACKWARD_INPUT, BACKWARD_WEIGHTS)]
    deferred = []
    for i in range(m + late):
        deferred += [[FORWARD, i], [BACKWARD_INPUT, i]] if i < m else []
        deferred += [[BACKWARD_WEIGHTS, i - late]] if i >= late else []
    yield "whole backward passes, each after its forward pass", one_by_one
    yield "1F1B", steady
    yield "backward passes in two halves", halves
    yield "W some micro-batches after B", deferred
    yield "validation: forward passes alone", [[FORWARD, i] for i in range(m)]


@exercise("09.2", hint="which action is the last of a micro-batch in a stage: with whole passes, with halves, in validation?")
def lifetime(draw):
    for about, actions in lists(draw):
        yield Case({"stages": 3, "actions": [[*action, 1] for action in actions]}, about + ", in stage 1")
    of_stages = [[[*action, stage] for action in actions] for stage, (_, actions) in enumerate(list(lists(draw))[1:4])]
    mixed = []
    while any(of_stages):  # each stage's list in its order
        mixed.append(draw.choice([actions for actions in of_stages if actions]).pop(0))
    yield Case({"stages": 4, "actions": mixed}, "a rank with three stages")


@exercise("09.3", hint="sort the work of the stages, the largest first, and compare partitions like words in a dictionary")
def balance(draw):
    yield Case({"layers": 1, "stages": 1, "vocabulary": 256, "sequence": 64}, "{layers} block in {stages} stage")
    for number in range(14):
        stages = draw.size(1, 5)
        yield Case({"layers": stages + draw.size(0, 7), "stages": stages, "sequence": draw.choice((8, 64, 512)),
                    "vocabulary": draw.choice((8, 256, 2000, 6000)) + number},
                   "{layers} blocks in {stages} stages, a vocabulary of {vocabulary}, sequences of {sequence} tokens")
