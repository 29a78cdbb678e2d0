#!/usr/bin/env python3
"""Tests the tables and the picture of all-reduce with canned measurements, and the program that measures."""

import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "scripts/bench"), str(ROOT / "tests/scripts/bench")]
sys.dont_write_bytecode = True

import plot_bandwidth  # noqa: E402
from documents import status_of  # noqa: E402
from all_reduce_document import SPEEDS, all_reduce_document  # noqa: E402
from bench_collectives import (CSV_COLUMNS, KIB, MIB, RUNS, Run, bandwidth_table, collective_blocks,  # noqa: E402
                               csv_rows, figures_of, floor_of, sharing_table, size_text)
from bench_tables import append_csv  # noqa: E402

BUILD = pathlib.Path(os.environ.get("RANKWISE_BUILD", ROOT / "build"))
WARM = Run("warm", 4, True, 4 * KIB, 64 * MIB, 4)
DEFAULT = Run("default", 4, False, 4 * KIB, 64 * MIB, 4)


def row_of(table, name):
    """The cells of the line that begins with a name."""
    return next(line for line in table.split("\n") if line.startswith(name)).removeprefix(name).split()


class Figures(unittest.TestCase):
    def test_bandwidths_of_the_median_round(self):
        figure = figures_of(WARM, all_reduce_document(WARM))[MIB, "ring"]
        self.assertAlmostEqual(figure.seconds, 1e-9 * MIB / 1.25)
        self.assertAlmostEqual(figure.algorithm_gbps, 1.25)
        self.assertAlmostEqual(figure.bus_gbps, 1.5 * 1.25)  # 2 (N-1)/N at N = 4
        self.assertAlmostEqual(figure.ratio, 1.25)

    def test_the_ratio_is_taken_within_each_round(self):
        document = all_reduce_document(WARM)
        for i, turn in enumerate(document["sizes"][0]["rounds"]):  # the machine gets slower; one ratio is another one
            turn.update(library=2.0 + i, ring=(1.0 + i / 2) * (1, 1, 0.4)[i])
        self.assertAlmostEqual(figures_of(WARM, document)[4 * KIB, "ring"].ratio, 2)

    def test_sizes(self):
        self.assertEqual([size_text(size) for size in (MIB, 96 * KIB, 1000)], ["1 MiB", "96 KiB", "1000 B"])


class Floors(unittest.TestCase):
    def test_where_there_are_floors(self):
        self.assertEqual([floor_of("shared", "warm", size) for size in (4 * KIB, 64 * KIB, MIB, 256 * MIB)],
                         [1.0, 0, 2.5, 2.5])
        self.assertEqual([floor_of("shared", "default", size) for size in (4 * KIB, MIB)], [1.0, 4.0])
        self.assertEqual([floor_of("shared-other", heap, MIB) for heap in ("warm", "default")], [1.5, 0])
        self.assertEqual([floor_of("ring", "warm", size) for size in (4 * MIB, 16 * MIB)], [0, 1.0])
        self.assertEqual([floor_of(name, "warm", 64 * MIB) for name in ("tree", "halving", "library")], [0, 0, 0])

    def test_met_and_below(self):
        table = bandwidth_table(WARM, all_reduce_document(WARM))
        self.assertIn("# N = 4, warm heap\n", table)
        self.assertEqual(row_of(table, "16 MiB"),
                         ["15.00", "1.50", "1.88", "1.25", "1.00", "met", "0.75", "0.50", "1.20", "0.80",
                          "4.50", "3.00", "2.50", "met", "3.00", "2.00", "1.50", "met"])
        slower = bandwidth_table(WARM, all_reduce_document(WARM, {"ring": 0.99, "shared": 2.49, "shared-other": 1.49}))
        for name, missed in (("16 MiB", 3), ("4 MiB", 2), ("256 KiB", 0), ("4 KiB", 0)):
            self.assertEqual(row_of(slower, name).count("below"), missed, name)
        self.assertEqual(row_of(bandwidth_table(DEFAULT, all_reduce_document(DEFAULT)), "1 MiB").count("below"), 1)


class Sharing(unittest.TestCase):
    def test_times_of_the_same_work_are_compared(self):
        runs = [run for run in RUNS if run.total]
        self.assertEqual([run.ranks for run in runs], [2, 4, 8])
        self.assertEqual({(run.ranks * run.least, run.ranks * run.most) for run in runs}, {(MIB, 64 * MIB)})
        # A vector of 1/N of the bytes in the same time: half as fast at 4 ranks; at 8 ranks twice as slow again.
        speeds = {2: 1.0, 4: 0.5, 8: 0.125}
        table = sharing_table([(run, all_reduce_document(run, {"shared": speeds[run.ranks]})) for run in runs])
        self.assertEqual(row_of(table, "8 MiB           shared "), ["4.194", "4.194", "8.389", "1.00", "2.00"])
        self.assertEqual(row_of(table, "8 MiB           ring"), ["3.355", "1.678", "0.839", "0.50", "0.25"])


class Outputs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.table = pathlib.Path(folder.name) / "collectives.csv"
        self.measured = [(run, all_reduce_document(run)) for run in RUNS]
        for date, ring in (("yesterday", 7.0), ("today", 1.25)):
            measured = [(run, all_reduce_document(run, {"ring": ring})) for run in RUNS]
            append_csv(self.table, csv_rows(measured, date, "abc"), CSV_COLUMNS)

    def test_blocks(self):
        blocks = collective_blocks(self.measured)
        self.assertEqual(blocks["all-reduce"].count("heap\n"), 4)
        self.assertIn("8 to 2", blocks["more ranks than cores"])

    def test_csv(self):
        lines = self.table.read_text(encoding="utf-8").split("\n")
        self.assertEqual(lines[0], "date,commit,ranks,bytes,algorithm,heap,seconds,algorithm_GBps,bus_GBps,ratio")
        self.assertIn("today,abc,4,1048576,shared,default,0.0003495,3,4.5,3", lines)
        self.assertEqual(len(lines), 1 + 2 * 4 * 9 * len(SPEEDS) + 1)

    def test_the_picture_has_the_last_run(self):
        rows = plot_bandwidth.read(self.table)
        self.assertEqual({row["date"] for row in rows}, {"today"})
        picture = xml.etree.ElementTree.fromstring(plot_bandwidth.draw(rows))
        space = "{http://www.w3.org/2000/svg}"
        texts = [element.text for element in picture.iter(space + "text")]
        for expected in ("2 ranks", "4 ranks", "4 KiB", "256 MiB", "library, default heap", "ring", "copying"):
            self.assertIn(expected, texts)
        # Twice as fast is one step of the axis higher, and a straight line stays straight.
        scale = plot_bandwidth.Scale(1, 1024, 0, 100)
        self.assertEqual([scale.place(value) for value in (1, 2, 1024)], [0, 10, 100])
        curves = [element.get("d") for element in picture.iter(space + "path") if element.get("stroke") == "#d55e00"]
        heights = {point.split()[1] for point in curves[0].lstrip("M").split("L")}
        self.assertEqual(len(heights), 1)
        self.assertEqual(len(curves), 2 + 1)  # panels and legend

    def test_a_table_without_bandwidths_is_refused(self):
        for content in ("", "date,x\n1,2\n", ",".join(CSV_COLUMNS) + "\n"):
            self.table.write_text(content, encoding="utf-8")
            errors = io.StringIO()
            with contextlib.redirect_stderr(errors):
                self.assertEqual(status_of(plot_bandwidth.main, [str(self.table)]), 2)
            self.assertEqual(errors.getvalue().count("error:"), 1)


class Program(unittest.TestCase):
    """A few small vectors through build/tests/all_reduce."""

    def start(self, ranks, *options):
        return subprocess.run(["mpirun", "-np", str(ranks), BUILD / "tests/all_reduce", *options], capture_output=True,
                              text=True, check=False)

    def test_it_prints_what_the_tables_are_made_of(self):
        for ranks in (1, 2, 3):
            done = self.start(ranks, "--least-bytes=4KiB", "--most-bytes=1MiB", "--factor=256", "--rounds=2",
                              "--least-turn=0")
            self.assertEqual(done.returncode, 0, done.stderr)
            document = json.loads(done.stdout)
            self.assertEqual([size["bytes"] for size in document["sizes"]], [4 * KIB, MIB])
            run = Run("test", ranks, True, 4 * KIB, MIB, 256)
            self.assertIn("1 MiB", bandwidth_table(run, document))
            for size in document["sizes"]:
                self.assertEqual(len(size["rounds"]), 2)
                for turn in size["rounds"]:
                    self.assertEqual(set(turn), set(SPEEDS))
                    self.assertTrue(all(seconds > 0 for seconds in turn.values()))

    def test_a_run_starts_it_with_the_options_of_the_program(self):
        run = Run("test", 2, False, 64, 64, 2)
        done = subprocess.run([str(part) for part in run.command(BUILD, 1)], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([len(size["rounds"]) for size in json.loads(done.stdout)["sizes"]], [1])

    def test_what_cannot_be_is_refused(self):
        for option in ("--least-bytes=6", "--most-bytes=1KiB", "--factor=1", "--rounds=0", "--least-turn=-1"):
            done = self.start(2, option)
            self.assertEqual(done.returncode, 2, option)
            self.assertEqual(done.stderr.count("error:"), 1, done.stderr)


if __name__ == "__main__":
    unittest.main()
