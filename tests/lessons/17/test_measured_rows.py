"""Lesson 17 beside measurements of others: errors of the model of time on rows that it was not calibrated with, and memory that
logs report. Without the files of measurements nothing is tested."""

import csv
import os
import statistics
import sys
import unittest

import planner_rows
from planner_rows import ROWS, SOURCES
from program_case import BUILD

PROGRAM = os.path.join(BUILD, "lessons/17_choose_a_layout")
OTHERS = "errors of the other rows"


@unittest.skipUnless(ROWS.exists(), f"{ROWS} is not there")
class MeasuredRows(unittest.TestCase):
    def test_times_of_rows_that_were_not_calibrated_with(self):
        for name, file, machine, options, mean, most in SOURCES:
            with self.subTest(source=name):
                report = planner_rows.plan(PROGRAM, machine, f"--calibrate={ROWS / file}", *options)
                off = [abs(error) for error in planner_rows.errors(report, OTHERS)]
                self.assertLessEqual(100 * statistics.mean(off), mean)
                if most:
                    self.assertLessEqual(100 * statistics.quantiles(off, n=10)[-1], most)
                self.assertLessEqual(100 * statistics.median(report["draws"]["mean"]), mean)

    def test_memory_that_logs_report(self):
        with (ROWS / "bigscience_memory.csv").open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        for row in rows:
            if int(row["after_iter"]) < 2:  # AdamW's states are allocated in the first update
                continue
            p, t = int(row["pp"]), int(row["tp"])
            report = planner_rows.plan(
                PROGRAM, "v100-32gb-sxm", "--precision=fp16", f"--gpus={p * t}", f"--tp={t}", f"--pp={p}",
                f"--layers={p * int(row['layers_per_stage'])}", f"--channels={row['hidden']}", "--heads=32", "--sequence=1024",
                "--vocabulary=50688", f"--micro-batch={row['micro_batch']}", "--virtual-stages=1", "--recompute=full",
                "--sequence-parallel=off", f"--global-batch={int(row['m']) * int(row['micro_batch'])}")
            measured = float(row["max_allocated_MiB"]) * 2**20
            with self.subTest(run=row["run"], stage=row["stage"]):
                self.assertLessEqual(abs(report["plan"]["stage_bytes"][int(row["stage"])] / measured - 1), 0.05)


if __name__ == "__main__":
    sys.exit(unittest.main())
