"""Cases of the exercises of lesson 16. See scripts/course/judge.py."""

import re

from judge import STEP, Case, exercise


def run(draw, mesh, about, *more):
    """A short run of a small model on eight ranks. Each expert drops choices, so that a plan of other tokens is another plan."""
    sizes = ["--layers=2", "--context=16", "--channels=32", "--heads=4", "--expert-every=1", "--capacity-factor=1"]
    degrees = [f"--{name}={degree}" for name, degree in zip(("dp", "tp", "pp", "cp"), mesh)]
    batch = ["--global-batch=8", "--steps=2", "--clip=0.5", "--arithmetic=exact", f"--seed={draw.size(1, 999)}"]
    given = {option.split("=")[0] for option in more}
    chosen = [option for option in [*sizes, *degrees, *batch] if option.split("=")[0] not in given]
    return Case({}, about, 8, [*chosen, "--data={folder}/text.h5", *more])


def after_the_first_step(case, rank, name, expected, got):
    """Hint for a difference of an early number."""
    if name == "loss[1]":
        return "The first loss is right. The second follows from the sums of the first step, its update and the way back."
    if match := re.fullmatch(r"traffic (\w+) (bytes|messages)", name):
        return f"Rank 0 sent other {match[2]} along {match[1]} than it needs to."
    return None


@exercise("16.1", program="16_five_axes", fields=STEP, needs=("prepare",), explain=after_the_first_step,
          hint="which axes have replicas of this range, what has each of them left, and who else has summed already?")
def replicas(draw):
    yield run(draw, (4, 1, 1, 2), "dp=4, of which ep=2, cp=2: sums of each sequence are added up along cp", "--ep=2")
    yield run(draw, (4, 1, 1, 2), "dp=4, of which ep=2, cp=2: nothing is added up before", "--ep=2", "--arithmetic=fast")
    yield run(draw, (4, 1, 1, 2), "dp=4, of which ep=2, cp=2, no shards", "--ep=2", "--arithmetic=fast", "--zero=0")
    yield run(draw, (2, 1, 2, 2), "dp=2, pp=2, cp=2: the token embedding is on both stages")


def of_other_tokens(case, rank, name, expected, got):
    """Hint for a difference of the losses."""
    if name.startswith("loss["):
        return "Some token went to another expert, or an expert was full at another token: the plan was made from other choices."
    return None


@exercise("16.2", program="16_five_axes", fields=(*STEP, "experts"), needs=("prepare",), explain=of_other_tokens,
          hint="which rank has run j of sequence b, and where is it in that rank's block?")
def choices(draw):
    fast = "--arithmetic=fast"
    yield run(draw, (2, 1, 1, 4), "four ranks for a sequence, zig-zag order")
    yield run(draw, (2, 1, 1, 4), "four ranks for a sequence, contiguous order, two choices", "--order=contiguous", "--experts-per-token=2")
    yield run(draw, (2, 1, 1, 4), "four ranks for a sequence, micro-batches of two sequences", fast, "--micro-batch=2")
    yield run(draw, (2, 2, 1, 2), "two ranks for a sequence, four sequences in a micro-batch", fast, "--micro-batch=4", "--order=contiguous")


def number_in_a_plan(case, rank, name, expected, got):
    """Meaning of a number of a plan."""
    if not (match := re.fullmatch(r"(\w+)\[(\d+)\]", name)):
        return None
    i, size = int(match[2]), case.inputs
    k, B, E, leaves = size["k"], size["B"], size["E"], size["leaves"]
    sequence, row = divmod(i // k, size["tokens"])
    return {"places": f"This is the row of choice {i % k} of token {size['first'] + row} of sequence {sequence}; -1 says that it is dropped.",
            "leaves": f"These are rows of expert {i // (B * leaves)} in leaf {i % leaves} of the run of sequence {i // leaves % B}.",
            "chosen": f"These are choices of expert {i % E} in sequence {i // E}.",
            "rows": f"These are rows of expert {i}."}.get(match[1])


@exercise("16.3", explain=number_in_a_plan,
          hint="which of the run's choices have a row in the plan of whole sequences, and what is counted for them here?")
def plan_of_run(draw):
    for k, factor, ranks, leaves in ((1, 0, 2, 4), (1, 1, 2, 4), (2, 0.5, 4, 2), (draw.size(1, 3), 1.25, 1, 8), (2, 0.75, 3, 1),
                                     (1, 0.25, 8, 1)):
        E, B, length = draw.size(max(k, 2), 6), draw.size(2, 3), draw.choice((2, 4, 6)) * leaves
        T = 2 * ranks * length
        popular = draw.size(0, E - 1)  # loads differ, and an expert may have no rows
        experts = [e for e in range(E) for _ in range(4 if e == popular else e % 3)] + list(range(k))
        choices_of_all = []
        for _ in range(B * T):
            of_token = []
            while len(of_token) < k:
                if (e := draw.choice(experts)) not in of_token:
                    of_token.append(e)
            choices_of_all += of_token
        for number in {draw.size(0, 2 * ranks - 2), 2 * ranks - 1}:
            yield Case({"E": E, "k": k, "B": B, "T": T, "capacity_factor": factor, "choices": choices_of_all, "first": number * length,
                        "tokens": length, "leaves": leaves},
                       "{B} sequences of {T} tokens, {k} of {E} experts each, capacity factor {capacity_factor}; the run of {tokens} "
                       "tokens from token {first}, {leaves} leaves")
