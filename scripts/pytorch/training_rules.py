"""Data order and learning rate of a lesson's run, for a program that repeats it from the same initial weights."""

import math

WORD = (1 << 32) - 1
FEISTEL_ROUNDS, PURPOSE = 8, 0x7065726D  # of data/permutation.cpp


def philox(counter, key):
    """The first word of Philox4x32-10 (Salmon et al. 2011), as in common/base/philox.hpp."""
    for _ in range(10):
        products = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = (products[1] >> 32 ^ counter[1] ^ key[0], products[1] & WORD,
                   products[0] >> 32 ^ counter[3] ^ key[1], products[0] & WORD)
        key = (key[0] + 0x9E3779B9 & WORD, key[1] + 0xBB67AE85 & WORD)
    return counter[0]


def permuted(i, n, seed, epoch):
    """The element at position i of epoch's order of n elements, as in data/permutation.hpp."""
    half = next(bits for bits in range(1, 32) if 1 << 2 * bits >= n)
    key = (seed & WORD, seed >> 32)
    while True:
        left, right = i >> half, i & (1 << half) - 1
        for feistel_round in range(FEISTEL_ROUNDS):
            words = philox((right, epoch & WORD, epoch >> 32, PURPOSE + feistel_round), key)
            left, right = right, left ^ words & (1 << half) - 1
        i = left << half | right
        if i < n:
            return i


def windows_of(step, tokens, T, G, seed):
    """The windows of the G sequences of a step, as Loader::window_of() gives them for a text of `tokens` tokens."""
    windows = (tokens - 1) // T
    return [permuted(g % windows, windows, seed, g // windows) for g in range(step * G, (step + 1) * G)]


def learning_rate(options, step):
    """Learning rate of a step, from the options in a lesson's report, as LearningRateSchedule::at() gives it."""
    peak, least, warmup = (options[name] for name in ("learning-rate", "min-learning-rate", "warmup"))
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    if options["learning-rate-schedule"] == "constant":
        return peak
    progress = (step - warmup) / max(options["steps"] - 1 - warmup, 1)
    return least + 0.5 * (peak - least) * (1 + math.cos(math.pi * progress))
