#!/usr/bin/env python3
"""Holds the speed of training steps to what it was:  scripts/bench/check_ratios.py

Measures the cases of which scripts/bench/ratios.json has ratios for this
processor, as `make bench ARGS=--write` records them, and fails when one is below 0.95 of it. Status 77, skipped, where nothing is
recorded or the machine is busy."""

import bench
from bench_tables import ratios_of, text_table
from documents import plain_words, run_script

LEAST, ROUNDS = 0.95, 5
SKIPPED = 77


def compare(recorded):
    """A table of the ratios beside the recorded ones, and whether all are kept."""
    rows, kept = [["case", "ratio", "recorded", "now", "of it"]], True
    for case in bench.CASES + bench.BF16_CASES:
        if case.name not in recorded:
            continue
        document = bench.watched(case.name, bench.measure_case, case, ROUNDS)
        now = ratios_of(document)
        for name, before in recorded[case.name].items():
            kept &= now[name] >= LEAST * before
            rows.append([case.name, name, f"{before:.3f}", f"{now[name]:.3f}", f"{now[name] / before:.3f}"])
    return text_table(rows, left=2), kept


def main(words):
    plain_words(__doc__, words)
    recorded = bench.recorded_ratios().get(bench.processor())
    if not recorded:
        print(f"skipped: no ratios are recorded of this processor, {bench.processor()}")
        return SKIPPED
    try:
        table, kept = compare(recorded)
    except bench.Refused as refusal:
        print(f"skipped: {refusal}")
        return SKIPPED
    print(table, end="")
    print("All ratios are kept." if kept else f"error: a ratio is below {LEAST} of what it was.")
    return 0 if kept else 1


if __name__ == "__main__":
    run_script(main)
