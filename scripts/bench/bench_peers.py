"""Training steps beside PyTorch's, on one rank and on two over gloo, and beside those of llm.c: what is measured, and from seconds and
reports to tables and a picture. Of it only steps of llm.c are timed here."""

import array
import dataclasses
import json
import os
import pathlib
import random
import re
import statistics
import subprocess

from bench_tables import against, text_table, torch_config

PRECISIONS = {"f32": 1.3, "bf16": 2.0}  # and what the ratio is held to
WAYS = {"eager": False, "compiled": True}  # of PyTorch, and whether torch.compile() is used
THREADS = 2
ROUNDS = 3
TURN_S = 0.5
# A process that frees nothing asks the system for no pages twice.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "17179869184", "MALLOC_TOP_PAD_": "268435456"}


def environment(threads=THREADS):
    """Environment of PyTorch's processes: a number of threads, and an allocator that keeps its memory."""
    return {**os.environ, **ALLOCATOR, "OMP_NUM_THREADS": str(threads)}


def own_command(build, case, precision):
    """One turn of our own: the yardsticks are made small, because they are not read."""
    return [build / "tests/training_step", *case.options, f"--precision={precision}", "--rounds=1", "--gemm-size=64",
            "--array-megabytes=1"]


def job(document, precision, way):
    """Job of torch_speed.py for a document that training_step printed."""
    return json.dumps({"device": "cpu", "threads": THREADS, "precision": precision, "compiled": WAYS[way],
                       "B": document["batch"], "T": document["sequence"], "config": torch_config(document["model"])})


def peers_table(measured):
    """Tokens/s of all cases in both precisions. `measured`: (Case, precision, tokens of a step, rounds of seconds by way) each, the
    own seconds under "own"."""
    rows = [["case", "precision", "here", *(f"PyTorch {way}" for way in WAYS), "ratio", "goal"],
            ["", "", "tokens/s", *["tokens/s"] * len(WAYS), "", ""]]
    for case, precision, tokens, rounds in measured:
        rows.append([case.title, precision,
                     *(f"{tokens / statistics.median(turn[way] for turn in rounds):,.0f}" for way in ("own", *WAYS)),
                     f"{ratio_of(rounds):.2f}", against(PRECISIONS[precision], ratio_of(rounds))])
    return text_table(rows, left=2)


def ratio_of(rounds):
    """Speed relative to PyTorch's faster way; the median of the rounds' own ratios."""
    return statistics.median(min(turn[way] for way in WAYS) / turn["own"] for turn in rounds)


def picture(measured):
    """Bars of the ratios, with lines at what they are held to, as SVG."""
    left, unit, height, most = 230, 120, 22, max(3.0, *(ratio_of(rounds) for *_, rounds in measured))
    width, bottom = left + unit * most + 60, 30 + height * len(measured)
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{bottom + 30}" font-family="sans-serif" '
             'font-size="13">', '<rect width="100%" height="100%" fill="white"/>',
             f'<text x="{left}" y="18">tokens/s here over those of PyTorch\'s faster way</text>']
    for tick in range(int(most) + 1):
        x = left + unit * tick
        lines += [f'<line x1="{x}" y1="26" x2="{x}" y2="{bottom}" stroke="#ccc"/>',
                  f'<text x="{x}" y="{bottom + 16}" text-anchor="middle">{tick}</text>']
    for i, (case, precision, _, rounds) in enumerate(measured):
        y, ratio, color = 30 + height * i, ratio_of(rounds), {"f32": "#4878a8", "bf16": "#d08030"}[precision]
        goal = left + unit * PRECISIONS[precision]
        lines += [f'<text x="{left - 8}" y="{y + 14}" text-anchor="end">{case.title}, {precision}</text>',
                  f'<rect x="{left}" y="{y + 2}" width="{unit * ratio:.1f}" height="{height - 6}" fill="{color}"/>',
                  f'<text x="{left + unit * ratio - 6:.1f}" y="{y + 14}" text-anchor="end" fill="white">{ratio:.2f}</text>',
                  f'<line x1="{goal}" y1="{y}" x2="{goal}" y2="{y + height - 2}" stroke="black" stroke-dasharray="3 2"/>']
    return "\n".join([*lines, "</svg>"]) + "\n"


# ---- Data parallelism on two ranks ---------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Model:
    """A model with its batch, and how many times as fast as PyTorch each lesson is to be."""

    name: str
    sizes: dict  # as training_step prints them
    batch: list
    goals: dict


STEPS_OF_RANKS = 6  # of a turn; the first is not counted
GPT2 = {"vocabulary": 50257, "context": 1024, "channels": 768, "layers": 12, "heads": 12}
MINI = {"vocabulary": 256, "context": 256, "channels": 384, "layers": 6, "heads": 6}
MODELS = [Model("gpt2", GPT2, ["--global-batch=8", "--sequence=64"], {"DDP": 1.6, "ZeRO-3": 2.5}),
          Model("mini", MINI, ["--global-batch=8", "--sequence=256"], {"DDP": 1.3, "ZeRO-3": 1.6})]
LESSONS = {"DDP": ["03_ddp", "--bucket=25MB"], "ZeRO-3": ["06_zero3", "--prefetch=1"]}
PYTORCH = {"DDP": "ddp", "ZeRO-3": "fsdp2"}
TITLES = {"ddp": "DDP", "fsdp2": "FSDP2"}


def rank_commands(build, python, model, tokens, config):
    """Commands of each sharding, here and in PyTorch, by (sharding, where)."""
    ranks, steps = ["mpirun", "-np", 2], f"--steps={STEPS_OF_RANKS}"
    program = pathlib.Path(__file__).resolve().parents[1] / "pytorch/torch_speed.py"
    started = {}
    for sharding, [lesson, *options] in LESSONS.items():
        started[sharding, "here"] = [*ranks, build / "lessons" / lesson, f"--model={model.name}", *model.batch, steps,
                                     f"--data={tokens}", *options]
        started[sharding, "PyTorch"] = [*ranks, python, program, "ranks", PYTORCH[sharding], config, *model.batch, steps]
    return started


def peer_ranks_table(measured):
    """Tokens/s of all models and shardings. `measured`: by the model's name, the reports of each round by (sharding, where)."""
    rows = [["model", "here", "PyTorch", "here", "PyTorch", "ratio", "goal"], ["", "", "", "tokens/s", "tokens/s", "", ""]]
    for model in MODELS:
        turns = measured[model.name]
        for sharding in LESSONS:
            here, there = ([turn[sharding, where]["time"]["tokens_per_s"] for turn in turns] for where in ("here", "PyTorch"))
            ratio = statistics.median(a / b for a, b in zip(here, there))
            rows.append([f"{model.name} {' '.join(model.batch)}", sharding, TITLES[PYTORCH[sharding]],
                         f"{statistics.median(here):,.0f}", f"{statistics.median(there):,.0f}", f"{ratio:.2f}",
                         against(model.goals[sharding], ratio)])
    return text_table(rows, left=3)


# ---- llm.c (github.com/karpathy/llm.c), by a program that was built in a folder of it: train_gpt2 on the CPU, train_gpt2cu on a GPU -----
# Tokens and initial values are random, and written for the run.

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
