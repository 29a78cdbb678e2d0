"""Training steps beside PyTorch's: what is measured, and from seconds to a table and a picture. Nothing here measures."""

import json
import os
import statistics

from bench_tables import against, text_table, torch_config

PRECISIONS = {"f32": 1.3, "bf16": 2.0}  # and what the ratio is held to
WAYS = {"eager": False, "compiled": True}  # of PyTorch, and whether torch.compile() is used
THREADS = 2
ROUNDS = 3
TURN_S = 0.5
# A process that frees nothing asks the system for no pages twice.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "17179869184", "MALLOC_TOP_PAD_": "268435456"}


def environment():
    """Environment of PyTorch's processes: two threads, and an allocator that keeps its memory."""
    return {**os.environ, **ALLOCATOR, "OMP_NUM_THREADS": str(THREADS)}


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
