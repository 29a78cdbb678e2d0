#!/usr/bin/env python3
"""Holds the planner of lesson 17 against measurements of others, and prints tables for docs/planner.md.

    scripts/planner/planner_tables.py times            errors of each source, in short
    scripts/planner/planner_tables.py rows SOURCE      predicted and measured time of each of its rows
    scripts/planner/planner_tables.py memory           predicted and logged memory
    scripts/planner/planner_tables.py constants        constants that were fitted to each source

The measurements are not part of the project: they lie in the folder RANKWISE_PLANNER, or in ../shared/planner beside the project.
Programs are those of RANKWISE_BUILD, or of build.
"""

import csv
import dataclasses
import os
import pathlib
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "scripts/lib"))
from documents import Refused, plain_words, run_script  # noqa: E402
from with_mpi import report_of  # noqa: E402

ROWS = pathlib.Path(os.environ.get("RANKWISE_PLANNER", ROOT.parent / "shared/planner"))
MACHINES = ROOT / "lessons/17_choose_a_layout/machines"
PROGRAM = pathlib.Path(os.environ.get("RANKWISE_BUILD", ROOT / "build")) / "lessons/17_choose_a_layout"
REST = "errors of the other rows"


@dataclasses.dataclass(frozen=True)
class Source:
    """Rows that were measured together, and what their errors are held to, in percent."""

    name: str
    title: str
    file: str
    machine: str
    options: list
    calibrated: int = 10
    mean: float = 0
    most_of: float = 0  # the 90th percentile; 0: no goal


SOURCES = [
    Source("one-node", "vTrain, one node of A100", "vtrain_single_node.csv", "a100-40gb-sxm", ["--measured-with=none"], 10, 8, 18),
    Source("nodes", "vTrain, 8 to 64 nodes of A100", "vtrain_multi_node.csv", "a100-40gb-sxm", ["--measured-with=full"], 10, 9, 18),
    Source("bigscience", "BigScience, 4 to 32 nodes of V100", "seeds_bigscience.csv", "v100-32gb-sxm",
           ["--skip=BATCH_MISMATCH,cpu,offload"], 10, 6),
    Source("sc21", "Narayanan et al. 2021, Tables 1 and 2", "megatron_sc21.csv", "a100-80gb-sxm", ["--only=SC21"], 6, 4),
    Source("korthikanti", "Korthikanti et al. 2022, Tables 4 and 5", "megatron_sc21.csv", "a100-80gb-sxm", ["--only=Korthikanti"], 4, 5),
]


def plan(machine, *options):
    """The report of a run of the planner."""
    return report_of(PROGRAM, 1, options, f"--machine={MACHINES / machine}.conf", "--system=megatron")


def calibrated(source):
    """The report of a calibration with the rows of a source."""
    return plan(source.machine, f"--calibrate={ROWS / source.file}", f"--rows={source.calibrated}", *source.options)


def errors(report):
    """Predicted over measured time, less 1, of the rows that were not calibrated with."""
    return [row["predicted_s"] / row["measured_s"] - 1 for row in report["rows"] if row["of"] == REST]


def largest_tenth(values):
    """The 90th percentile."""
    return statistics.quantiles(values, n=10, method="inclusive")[-1]


def memory_rows():
    """(what was measured, predicted bytes, logged bytes) of the stages whose memory BigScience's logs report."""
    with (ROWS / "bigscience_memory.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if int(row["after_iter"]) < 2:  # AdamW's states are allocated in the first update
                continue
            p, t, m, layers = (int(row[name]) for name in ("pp", "tp", "m", "layers_per_stage"))
            report = plan("v100-32gb-sxm", "--precision=fp16", f"--gpus={p * t}", f"--tp={t}", f"--pp={p}", f"--layers={p * layers}",
                          f"--channels={row['hidden']}", "--heads=32", "--context=1024", "--vocabulary=50688",
                          f"--micro-batch={row['micro_batch']}", "--virtual-stages=1", "--recompute=full", "--sequence-parallel=off",
                          f"--global-batch={m * int(row['micro_batch'])}")
            yield (f"{p * layers} layers, {row['hidden']} channels, tp={t} pp={p}, stage {row['stage']}",
                   report["plan"]["stage_bytes"][int(row["stage"])], float(row["max_allocated_MiB"]) * 2**20)


# ---- Tables ----------------------------------------------------------------------------------------------------------


def table(head, rows):
    """Lines of a Markdown table; all columns but the first are numbers."""
    return ["| " + " | ".join(cells) + " |" for cells in [head, ["---"] + ["---:"] * (len(head) - 1), *rows]]


def times_table():
    rows = []
    for source in SOURCES:
        report = calibrated(source)
        off = [abs(error) for error in errors(report)]
        goal = f"{source.mean}" + (f", {source.most_of}" if source.most_of else "")
        draws = report["draws"]
        rows.append([source.title, f"{source.calibrated} of {source.calibrated + len(off)}", f"{100 * statistics.mean(off):.1f}",
                     f"{100 * largest_tenth(off):.1f}", f"{100 * statistics.median(draws['mean']):.1f}",
                     f"{100 * statistics.median(draws['most_of']):.1f}", goal])
    return table(["measured by", "calibrated with", "mean, %", "90th percentile, %", "median mean of 20 draws, %",
                  "median 90th percentile of 20 draws, %", "goal, %"], rows)


def rows_table(name):
    source = next(source for source in SOURCES if source.name == name)
    rows = [row for row in calibrated(source)["rows"] if row["of"] == REST]
    return table(["layout", "measured, s", "predicted, s", "error, %"],
                 [[row["text"], f"{row['measured_s']:.4g}", f"{row['predicted_s']:.4g}",
                   f"{100 * (row['predicted_s'] / row['measured_s'] - 1):+.1f}"] for row in rows])


def memory_table():
    return table(["rank of", "logged, GiB", "predicted, GiB", "error, %"],
                 [[what, f"{logged / 2**30:.2f}", f"{predicted / 2**30:.2f}", f"{100 * (predicted / logged - 1):+.1f}"]
                  for what, predicted, logged in memory_rows()])


def constants_table():
    reports = [calibrated(source)["constants"] for source in SOURCES]
    return table(["constant"] + [source.title for source in SOURCES],
                 [[name] + [f"{report[name]:.3g}" for report in reports] for name in reports[0]])


def main(arguments):
    tables = {"times": times_table, "rows": rows_table, "memory": memory_table, "constants": constants_table}
    kind, *names = plain_words(__doc__, arguments, 2) or [""]
    if kind not in tables or names not in ([[source.name] for source in SOURCES] if kind == "rows" else [[]]):
        raise Refused(f"there is no table {' '.join(arguments)}.\n       Ask for times, rows SOURCE, memory or constants.")
    if not ROWS.exists():
        raise Refused(f"there are no measurements in {ROWS}.\n       Name their folder: export RANKWISE_PLANNER=FOLDER")
    print("\n".join(tables[kind](*names)))


if __name__ == "__main__":
    run_script(main)
