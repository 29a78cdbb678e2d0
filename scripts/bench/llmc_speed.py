"""Times a training step of llm.c (github.com/karpathy/llm.c) with a program that was built in a folder of it: train_gpt2 on
the CPU, train_gpt2cu on a GPU. Tokens and initial values are random, and written for the run."""

import array
import os
import random
import re
import statistics
import subprocess

from bench_tables import text_table

STEPS = 8  # of a run; the first two are not counted
VOCABULARY, PADDED, CONTEXT, LAYERS, HEADS, CHANNELS = 50257, 50304, 1024, 12, 12, 768  # its 124M model
CPU_SHAPE = (4, 64)  # sequences and tokens of each, as train_gpt2.c has them
STEP = {"train_gpt2": re.compile(r"^step \d+: train loss .* \(took ([\d.]+) ms\)"),
        "train_gpt2cu": re.compile(r"^step .* ([\d.]+) ms \|.* tok/s")}


def write_tokens(path, count):
    """A file of random tokens: a header of 256 32-bit numbers, then 16 bits a token."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        array.array("i", [20240520, 1, count] + [0] * 253).tofile(file)
        array.array("H", random.Random(1).choices(range(VOCABULARY), k=count)).tofile(file)


def write_model(path):
    """Initial values of the 124M model: a header, then the f32 tensors one after the other, each of all layers."""
    L, C, piece = LAYERS, CHANNELS, 1 << 16
    noise = array.array("f", (random.Random(2).gauss(0, 0.02) for _ in range(piece)))
    ones, zeros = array.array("f", [1] * (L * C)), array.array("f", [0] * (L * 4 * C))
    with open(path, "wb") as file:
        array.array("i", [20240326, 3, CONTEXT, VOCABULARY, L, HEADS, C, PADDED] + [0] * 248).tofile(file)

        def write_noise(count):
            for first in range(0, count, piece):
                noise[:min(piece, count - first)].tofile(file)

        write_noise((PADDED + CONTEXT) * C)
        for products, bias in ((3 * C * C, 3 * C), (C * C, C), (4 * C * C, 4 * C), (4 * C * C, C)):
            if bias != C:  # a norm before the first matrix of each branch
                ones.tofile(file)
                zeros[:L * C].tofile(file)
            write_noise(L * products)
            zeros[:L * bias].tofile(file)
        ones[:C].tofile(file)
        zeros[:C].tofile(file)


def steps_of(program, folder, *arguments, environment=None):
    """Milliseconds of the steps of a run in @p folder, which is ended after STEPS of them; fewer where it fails before."""
    name, times = os.path.basename(program), []
    with subprocess.Popen(["stdbuf", "-oL", os.path.abspath(program), *arguments], cwd=folder, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace", env=environment) as process:
        for line in process.stdout:
            times += [float(time) for time in STEP[name].findall(line)]
            if len(times) >= STEPS:
                process.kill()
    return times


def seconds_of(times):
    """Seconds of a step; None where too few were made."""
    return 1e-3 * statistics.median(times[2:STEPS]) if len(times) >= STEPS else None


def prepare_cpu(folder):
    """Writes what train_gpt2 reads."""
    for split in ("train", "val"):
        write_tokens(os.path.join(folder, f"dev/data/tinyshakespeare/tiny_shakespeare_{split}.bin"), 1 << 15)
    write_model(os.path.join(folder, "gpt2_124M.bin"))


def cpu_step(program, folder, environment):
    """Seconds of a step of CPU_SHAPE in f32."""
    return seconds_of(steps_of(program, folder, environment=environment))


def cpu_table(rounds):
    """Tokens a second of CPU_SHAPE here and there. `rounds`: seconds of a step, "own" and "llm.c"."""
    tokens = CPU_SHAPE[0] * CPU_SHAPE[1]
    rates = [f"{tokens / statistics.median(turn[way] for turn in rounds):,.0f}" for way in ("own", "llm.c")]
    ratio = statistics.median(turn["llm.c"] / turn["own"] for turn in rounds)
    return text_table([["case", "here", "llm.c", "ratio"], ["", "tokens/s", "tokens/s", ""],
                       [f"gpt2 B={CPU_SHAPE[0]} T={CPU_SHAPE[1]}, f32", *rates, f"{ratio:.2f}"]])


def gpu_steps(program, folder, sequences, tokens, turns, environment):
    """Number of sequences of a step, halved while they do not fit, and its seconds in bf16, once for each turn."""
    for split in ("train", "val"):
        write_tokens(os.path.join(folder, f"tokens_{split}.bin"), 4 * sequences * (tokens + 1))

    def turn(sequences):
        options = {"-i": "tokens_train.bin", "-j": "tokens_val.bin", "-e": "d12", "-t": tokens, "-x": STEPS + 1, "-m": 0, "-s": 0,
                   "-h": 0, "-r": 0, "-ge": 2, "-b": sequences, "-d": sequences * tokens}
        words = [str(word) for option in options.items() for word in option]
        return seconds_of(steps_of(program, folder, *words, environment=environment))

    first = turn(sequences)
    while first is None and sequences > 1:
        sequences //= 2
        first = turn(sequences)
    return sequences, [first, *(turn(sequences) for _ in range(turns - 1))]
