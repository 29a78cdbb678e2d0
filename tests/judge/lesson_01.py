"""Cases of the exercises of lesson 01. See scripts/course/judge.py."""

from judge import Case, exercise

FAST = ("gpt2/kernels/cpu/", "libdnnl")  # kernels that compute the same

@exercise("01.1", near={"": 1e-4}, without=FAST, hint="each of the three terms of dx is about one row; the sums over rows add to what is there")
def norm_backward(draw):
    for kind in ("f64", "f32"):
        for B, T in ((1, 1), (draw.size(2, 3), 8), (draw.size(2, 5), draw.size(5, 13))):
            yield Case({"type": kind, "B": B, "T": T, "C": draw.size(5, 37), "seed": draw.seed()},
                       "{T} tokens in each of {B} sequences, {C} channels, in {type}")


@exercise("01.2", near={"": 1e-4}, without=FAST, hint="where does the dropout factor enter, and where is it already in y?")
def attention_backward(draw):
    for kind, dropout in (("f64", 0), ("f32", 0), ("f64", 0.3), ("f32", 0.5)):
        for B, T in ((1, 1), (draw.size(1, 2), draw.size(3, 9))):
            yield Case({"type": kind, "B": B, "T": T, "H": draw.size(1, 3), "D": draw.size(4, 12), "dropout": dropout,
                        "seed": draw.seed()}, "{T} tokens in each of {B} sequences, {H} heads, dropout {dropout}, in {type}")


@exercise("01.3", near={"": 2e-5}, without=FAST, hint="the order is: scaled gradient, averages, bias corrections, decay, move")
def adamw(draw):
    for gradients in ("f32", "bf16"):
        for epsilon, decay in ((1e-8, 0.1), (0.5, 0.0), (0.1, 0.9)):
            yield Case({"n": draw.size(3, 40), "gradients": gradients, "steps": draw.size(3, 5), "learning_rate": 0.05,
                        "scale": draw.choice((0.25, 0.5, 3.0)), "decay": decay, "epsilon": epsilon, "seed": draw.seed()},
                       "{n} parameters, {steps} steps, gradients in {gradients} scaled by {scale}, decay {decay}, epsilon {epsilon}")
