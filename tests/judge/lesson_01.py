"""Cases of the exercises of lesson 01. See scripts/course/judge.py."""

from judge import Case, exercise

NEAR = {"f64": 1e-11, "f32": 1e-4, "bf16": 2e-2}


@exercise("01.1", near={"": 1e-4}, hint="each of the three terms of dx is about one row; the sums over rows add to what is there")
def norm_backward(draw):
    for kind in ("f64", "f32"):
        for B, T in ((1, 1), (draw.size(2, 3), 8), (draw.size(2, 5), draw.size(5, 13))):
            yield Case({"type": kind, "B": B, "T": T, "C": draw.size(5, 37), "seed": draw.seed()},
                       "{B} sequences of {T} tokens, {C} channels, in {type}")
