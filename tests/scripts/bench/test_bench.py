#!/usr/bin/env python3
"""Tests scripts/bench/bench.py with canned measurements, and that the program behind it prints what the tables need."""

import contextlib
import importlib.util
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest
import xml.etree.ElementTree
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "scripts/check"), str(ROOT / "scripts/bench"), str(ROOT / "tests/scripts/bench")]
sys.dont_write_bytecode = True

import bench  # noqa: E402
import bench_collectives  # noqa: E402
import bench_lessons  # noqa: E402
import bench_peers  # noqa: E402
import check_ratios  # noqa: E402
import update_output  # noqa: E402
from all_reduce_document import all_reduce_document  # noqa: E402
from documents import status_of  # noqa: E402
from bench_tables import (CSV_COLUMNS, Case, append_csv, bf16_tables, csv_rows, figures_of,  # noqa: E402
                          machine_rates_table, memory_table, replace_block, training_steps_table, ways_table, where_table)

CASE = Case("tiny", "tiny B=2 T=8", ["--model=nano"], rounds=3, floor=0.80, speed_up_floor=1.7, pytorch=0.5)


def turn(gemm, step_s, read=10.0):
    """One round; `gemm` has GFLOP/s by (library, size)."""
    products = [{"library": library, "precision": "f32", "size": size, "gflops_per_s": rate}
                for (library, size), rate in gemm.items()]
    return {"gemm": products, "read_GBps": read, "triad_GBps": 15.0, "update_GBps": 20.0, "step_s": step_s}


def document():
    """A step of 64 and 60 GFLOP beside 100 GFLOP/s, in three rounds of which the last was slow."""
    groups = [{"name": "matmul", "calls": 4, "seconds": 0.50, "flops": 45e9, "bytes": 1e9},
              {"name": "AdamW", "calls": 2, "seconds": 0.24, "flops": 1e9, "bytes": 4e9},
              {"name": "gradient norm", "calls": 0, "seconds": 0, "flops": 0, "bytes": 0}]
    return {
        "batch": 2, "sequence": 8, "precision": "f32", "threads": [1, 2], "compiler": "GNU 12", "libraries": ["A 1", "B 2"],
        "flops": {"model": 64e9, "causal": 60e9},
        "memory": {"ledger_peak_bytes": 1000, "max_resident_bytes": 2000, "stored_attention_bytes": 3000},
        "allocations": [
            {"operator_new": 7, "malloc": 9, "ledger_growth_bytes": 0, "ledger_peak_growth_bytes": 0},
            {"operator_new": 6, "malloc": 8, "ledger_growth_bytes": 3, "ledger_peak_growth_bytes": 2}],
        "rounds": [turn({("A", 8): 98.0, ("B", 8): 90.0, ("A", 16): 60.0}, [0.8, 0.4]),
                   turn({("A", 8): 100.0, ("B", 8): 91.0}, [0.79, 0.5]),
                   turn({("A", 8): 101.0, ("B", 8): 92.0}, [1.6, 1.0])],
        "where": {"step_s": 0.80, "groups": groups},
    }


def bf16_document():
    """document() in bf16, beside an f32 that takes 2, 1.62 and 1.5 times as long at one thread."""
    both = {**document(), "precision": "bf16"}
    for measured in both["rounds"]:
        measured["gemm"] += [{"library": "own", "precision": "bf16", "size": 8, "gflops_per_s": 160.0},
                             {"library": "A", "precision": "bf16", "size": 16, "gflops_per_s": 100.0}]
    for measured, f32_step_s in zip(both["rounds"], ([1.6, 0.4], [1.28, 0.5], [2.4, 1.0])):
        measured["f32_step_s"] = f32_step_s
    both["where_f32"] = {"step_s": 1.6, "groups": [{**group, "seconds": 3 * group["seconds"]}
                                                   for group in both["where"]["groups"]]}
    return both


def row_of(table, name):
    """The cells of the line that begins with a name."""
    line = next(line for line in table.split("\n") if line.startswith(name))
    return line.removeprefix(name).split()


class Tables(unittest.TestCase):
    def test_figures_are_medians_of_the_rounds(self):
        figures = figures_of(document())
        self.assertEqual(figures.gemm, {("A", 8): 100, ("B", 8): 91, ("A", 16): 60})
        self.assertEqual(figures.best_gemm, 100)
        self.assertEqual(figures.best_bandwidth, 20)
        self.assertEqual(figures.step_s, [0.8, 0.5])
        self.assertEqual(figures.speed_up, 1.6)  # of 2, 1.58, 1.6; 0.8 / 0.5 only by chance
        self.assertAlmostEqual(figures.tokens_per_s, 20)
        self.assertAlmostEqual(figures.model_gflops, 80)
        self.assertAlmostEqual(figures.causal_gflops, 75)

    def test_the_speed_up_is_taken_within_each_round(self):
        drifting = document()
        drifting["rounds"] = [turn({("A", 8): 100.0}, [step, step / 2]) for step in (1.0, 2.0, 3.0)]
        drifting["rounds"][1]["step_s"][1] = 1.5
        self.assertEqual(figures_of(drifting).speed_up, 2)

    def test_training_steps(self):
        cells = row_of(training_steps_table([(CASE, document())]), CASE.title)
        self.assertEqual(cells, ["100.0", "800.0", "20", "80.0", "0.800", "0.80", "met", "75.0", "0.750", "500.0",
                                 "1.600", "1.70", "below", "0.50", "-"])

    def test_a_floor_is_missed_by_however_little(self):
        slower = document()
        slower["flops"]["model"] = 63.99e9
        self.assertIn("0.800  0.80 below", training_steps_table([(CASE, slower)]))

    def test_one_core_and_no_floor(self):
        alone = document()
        for measured in alone["rounds"]:
            del measured["step_s"][1]
        alone["allocations"][0]["malloc"] = -1
        del alone["allocations"][1]
        self.assertEqual(row_of(memory_table([(CASE, alone)]), CASE.title)[3:], ["-", "-", "7", "0"])
        cells = row_of(training_steps_table([(Case("c", "c", [], 1, floor=0), alone)]), "c ")
        self.assertEqual(cells[5:], ["-", "75.0", "0.750", "-", "-", "-", "-", "-"])

    def test_machine_rates_and_memory(self):
        self.assertEqual(row_of(machine_rates_table([(CASE, document())]), CASE.title),
                         ["100.0", "60.0", "91.0", "10.0", "15.0", "20.0"])
        self.assertEqual(row_of(memory_table([(CASE, document())]), CASE.title),
                         ["1,000", "2,000", "3,000", "9", "8", "7", "5"])

    def test_each_group_stands_under_the_lower_roof(self):
        table = where_table(CASE, document())
        self.assertIn("100.0 GFLOP/s and 20.0 GB/s meet at 5.0 FLOP/byte", table)
        self.assertEqual(row_of(table, "matmul"),
                         ["4", "500.00", "62.5", "90.0", "2.0", "45.0", "450.00", "arithmetic", "90"])
        self.assertEqual(row_of(table, "AdamW"), ["2", "240.00", "30.0", "4.2", "16.7", "0.2", "200.00", "memory", "83"])
        self.assertEqual(row_of(table, "between kernels"), ["60.00", "7.5"])
        self.assertNotIn("gradient norm", table)

    def test_ways(self):
        turns = [{"one": (1.0, 0.5), "two": (2.0, 0.2)}, {"one": (2.0, 0.5), "two": (6.0, 0.2)},
                 {"one": (3.0, 0.4), "two": (6.0, 0.2)}]
        self.assertEqual(row_of(ways_table(turns), "two"), ["6000.0", "200.0", "2.00"])


class Bf16(unittest.TestCase):
    def test_the_ratio_is_taken_within_each_round(self):
        lines = bf16_tables([(CASE, bf16_document())], True).split("\n")
        self.assertEqual(lines[2].removeprefix(CASE.title).split(),
                         ["1", "1600.0", "800.0", "10", "20", "1.62", "1.60", "met"])
        self.assertEqual(lines[3].removeprefix(CASE.title).split(),
                         ["2", "500.0", "500.0", "32", "32", "1.00", "1.60", "below"])

    def test_a_processor_without_such_instructions_has_no_floor(self):
        self.assertEqual(bf16_tables([(CASE, bf16_document())], False).split("\n")[2].split()[-1], "-")
        self.assertTrue(bench.multiplies_bf16({"flags": "avx2 amx_bf16"}))
        self.assertTrue(bench.multiplies_bf16({"flags": "avx512_bf16 avx2"}))
        self.assertFalse(bench.multiplies_bf16({"flags": "avx2 bf16"}))
        self.assertFalse(bench.multiplies_bf16({}))

    def test_the_step_is_held_to_the_best_product_of_bf16(self):
        table = bf16_tables([(CASE, bf16_document())], True)
        self.assertEqual(row_of(table, "own"), ["8", "160.0", "80.0", "0.500", "0.50", "met"])
        self.assertEqual(row_of(table, "A "), ["16", "100.0", "80.0", "0.800", "-"])

    def test_groups_stand_beside_those_of_f32(self):
        table = bf16_tables([(CASE, bf16_document())], True)
        self.assertEqual(row_of(table, "matmul"), ["1500.00", "500.00", "62.5", "3.00"])
        self.assertEqual(row_of(table, "step"), ["1600.00", "800.00", "100.0", "2.00"])
        self.assertNotIn("gradient norm", table)


PEERS = [(CASE, "f32", 16, [{"own": 0.5, "eager": 0.8, "compiled": 0.7}, {"own": 0.5, "eager": 0.6, "compiled": 0.65},
                            {"own": 1.0, "eager": 1.6, "compiled": 1.5}]),
         (CASE, "bf16", 16, [{"own": 0.5, "eager": 0.8, "compiled": 0.7}])]


class Peers(unittest.TestCase):
    def test_the_ratio_is_to_the_faster_way_within_each_round(self):
        lines = bench_peers.peers_table(PEERS).split("\n")
        self.assertEqual(lines[2].removeprefix(CASE.title).split(), ["f32", "32", "20", "23", "1.40", "1.30", "met"])
        self.assertEqual(lines[3].removeprefix(CASE.title).split(), ["bf16", "32", "20", "23", "1.40", "2.00", "below"])

    def test_llmc_stands_beside_the_median_of_its_ratios(self):
        line = bench_peers.cpu_table([{"own": 0.5, "llm.c": 1.0}, {"own": 0.5, "llm.c": 2.0}, {"own": 1.0, "llm.c": 4.0}]).split("\n")[2]
        self.assertEqual(line.split(), ["gpt2", "B=4", "T=64,", "f32", "512", "128", "4.00"])

    def test_llmc_needs_a_program_that_makes_steps(self):
        with self.assertRaisesRegex(bench.Refused, "Name its train_gpt2"):
            bench.parse(["--case=llm.c"])

    def test_the_model_of_llmc_has_all_its_parameters(self):
        with tempfile.TemporaryDirectory() as folder, mock.patch.multiple(bench_peers, PADDED=64, CONTEXT=8, LAYERS=2, CHANNELS=16):
            bench_peers.write_model(f"{folder}/model.bin")
            self.assertEqual(os.path.getsize(f"{folder}/model.bin"),
                             1024 + 4 * ((64 + 8) * 16 + 2 * (12 * 16 * 16 + 13 * 16) + 2 * 16))

    def test_the_picture_has_a_bar_for_each_and_a_line_at_its_goal(self):
        root = xml.etree.ElementTree.fromstring(bench_peers.picture(PEERS))
        names = [element.tag.split("}")[1] for element in root.iter()]
        self.assertEqual(names.count("rect"), 1 + len(PEERS))
        dashed = [element for element in root.iter() if element.get("stroke-dasharray")]
        self.assertEqual([float(line.get("x1")) for line in dashed], [230 + 120 * 1.3, 230 + 120 * 2.0])

    def test_pytorch_repeats_the_step_of_the_document(self):
        model = {"vocabulary": 256, "context": 64, "channels": 32, "layers": 2, "heads": 2}
        job = json.loads(bench_peers.job({**document(), "model": model}, "bf16", "compiled"))
        self.assertEqual((job["B"], job["T"], job["compiled"], job["precision"]), (2, 8, True, "bf16"))
        self.assertEqual((job["config"]["n_embd"], job["config"]["vocab_size"]), (32, 256))

    def test_a_turn_of_each(self):
        torch = importlib.util.find_spec("torch") is not None
        tiny = Case("tiny", "tiny", ["--model=nano", "--batch=2", "--sequence=8"], rounds=1)
        if not torch:
            with self.assertRaisesRegex(bench.Refused, "has no PyTorch"):
                bench.measure_peer(tiny, "f32", sys.executable, 1)
            return
        with mock.patch.object(bench_peers, "WAYS", {"eager": False}):
            tokens, [turn] = bench.measure_peer(tiny, "bf16", sys.executable, 1)
        self.assertEqual((tokens, sorted(turn)), (16, ["eager", "own"]))
        self.assertTrue(all(0 < seconds < 60 for seconds in turn.values()), turn)


def peer_ranks(here, there):
    """Two rounds of tokens/s; the second of PyTorch is half as fast."""
    def turn(there):
        return {(sharding, where): {"time": {"tokens_per_s": 100 * speed}} for sharding in bench_peers.LESSONS
                for where, speed in (("here", here), ("PyTorch", there))}

    return {model.name: [turn(there), turn(there), turn(there / 2)] for model in bench_peers.MODELS}


class PeerRanks(unittest.TestCase):
    def test_the_table_has_the_median_of_the_rounds_ratios(self):
        table = bench_peers.peer_ranks_table(peer_ranks(2, 1))
        self.assertEqual(table.count(" 2.00 "), 4)
        self.assertEqual(table.count("met"), 3)
        self.assertIn("2.50 below", table)

    def test_every_way_of_every_model_is_started_on_two_ranks_and_reported(self):
        started = []

        def report(command, folder, environment):
            started.append(command)
            self.assertEqual(environment["OMP_NUM_THREADS"], "1")
            return {"config": json.loads((pathlib.Path(folder) / "config.json").read_text(encoding="utf-8"))["n_embd"]}

        @contextlib.contextmanager
        def tokens():
            with tempfile.TemporaryDirectory() as folder:
                yield folder, pathlib.Path(folder) / "text.h5"

        with mock.patch.multiple(bench, report_of=report, folder_with_tokens=tokens, kept=lambda name, text: None):
            measured = bench.measure_peer_ranks("some", 2)
        self.assertEqual([len(turns) for turns in measured.values()], [2, 2])
        self.assertEqual({report["config"] for turn in measured["mini"] for report in turn.values()}, {384})
        self.assertEqual(len(started), 2 * 2 * 4)
        for command in started:
            self.assertEqual(command[:3], ["mpirun", "-np", 2])
        self.assertEqual([command[6] for command in started[:4] if command[3] == "some"], ["ddp", "fsdp2"])


def sharding_turn(*step_s):
    """One round in which a step of the stages took so long."""
    return {stage.title: {"time": {"step_s": seconds, "tokens_per_s": 512 / seconds},
                          "memory": {name: {"current": 1000 * (i + 1), "peak": 9000, "formula": 0} for name in
                                     ("parameters", "gradients", "optimizer", "activations")}}
            for i, (stage, seconds) in enumerate(zip(bench_lessons.SHARDING.ways, step_s))}


class Sharding(unittest.TestCase):
    def test_the_ratio_is_taken_within_each_round(self):
        table = bench_lessons.SHARDING.table([sharding_turn(1, 1, 1.25, 1), sharding_turn(2, 1.6, 2.2, 2.5),
                                               sharding_turn(4, 4, 4, 6)])
        self.assertEqual(row_of(table, "DDP"), ["2000.0", "256", "1.000", "-", "3,000"])
        self.assertEqual(row_of(table, "ZeRO-1"), ["1600.0", "320", "1.000", "1.00", "met", "6,000"])
        self.assertEqual(row_of(table, "ZeRO-2"), ["2200.0", "233", "0.909", "1.00", "below", "9,000"])
        self.assertEqual(row_of(table, "ZeRO-3"), ["2500.0", "205", "0.800", "0.85", "below", "12,000"])

    def test_each_stage_is_run_on_two_ranks_with_the_same_batch_and_text(self):
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(bench, "BUILD", pathlib.Path(folder)), \
                mock.patch.object(bench, "run_program", self.run_program):
            self.commands = []
            turns = bench.measure_turns("sharding", bench_lessons.SHARDING, 2)
            self.assertEqual(json.loads((pathlib.Path(folder) / "bench/sharding.json").read_text()), turns)
        self.assertEqual(turns, [{stage.title: {"of": stage.lesson} for stage in bench_lessons.SHARDING.ways}] * 2)
        prepare, *runs = self.commands
        self.assertEqual(prepare[0].name, "prepare")
        self.assertEqual([command[3].name for command in runs], [stage.lesson for stage in bench_lessons.SHARDING.ways] * 2)
        for command in runs:
            self.assertEqual(command[:3], ["mpirun", "-np", 2])
            self.assertIn(f"--data={prepare[-1]}", command)
            self.assertIn("--global-batch=8", command)

    def run_program(self, command, _environment=None):
        self.commands.append(command)
        if command[0] == "mpirun":
            report = next(part for part in command[4:] if part.startswith("--report=")).removeprefix("--report=")
            pathlib.Path(report).write_text(json.dumps({"of": command[3].name}), encoding="utf-8")

    def test_every_lesson_takes_the_options(self):
        for stage in bench_lessons.SHARDING.ways:
            _, _, _, program, *options = stage.command(bench.BUILD, "x.h5")
            options = [option for option in options if not option.startswith("--data=")]
            done = subprocess.run([program, *options, "--dry-run"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stdout)


def offload_turn(zero3_s, host_s, disk_s, bytes_of_a_step=1e9, clipping_s=4.0):
    """One round in which steps took this long for any batch, and the disk reaches 1 GB/s by itself."""
    links = {"disk to host": {"bytes": bytes_of_a_step / 2}, "host to disk": {"bytes": bytes_of_a_step / 2},
             "disk": {"GBps": 1.0}}
    return {(n, place): {"time": {"step_s": seconds}, "links": links} for n in bench_lessons.SEQUENCES
            for place, seconds in zip(bench_lessons.PLACES, (zero3_s, host_s, disk_s, clipping_s))}


class Offload(unittest.TestCase):
    def test_the_disk_is_held_to_the_longer_of_arithmetic_and_transfers(self):
        table = bench_lessons.offload_table([offload_turn(1, 1, 2.5, 2e9), offload_turn(1, 1.25, 2.2, 2e9),
                                             offload_turn(1, 1.25, 2.8, 2e9)])
        self.assertEqual(row_of(table, "4"), ["1000", "1250", "0.800", "0.90", "below", "2500", "2000", "1.25", "1.25", "met",
                                              "4000", "2000", "2.00"])
        table = bench_lessons.offload_table([offload_turn(2, 2, 2.6, 1e9)])
        self.assertEqual(row_of(table, "1"), ["2000", "2000", "1.000", "0.90", "met", "2600", "1000", "1.30", "1.25", "above",
                                              "4000", "1000", "2.00"])

    def test_every_lesson_takes_the_options(self):
        for command in bench_lessons.offload_commands(bench.BUILD, "x.h5", "/tmp").values():
            _, _, _, program, *options = command
            options = [option for option in options if not option.startswith("--data=")]
            done = subprocess.run([program, *options, "--dry-run"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stdout)


def tensor_turn(*step_s):
    """One round in which a step of the ways took so long."""
    return {way.title: {"time": {"step_s": seconds, "tokens_per_s": 1024 / seconds},
                        "memory": {name: {"current": 1000 // way.ranks, "peak": 9000, "formula": 0} for name in
                                   ("parameters", "gradients", "optimizer", "activations")},
                        **({"traffic": {"tp": {"bytes": 4096}}} if way.ranks > 1 else {})}
            for way, seconds in zip(bench_lessons.TENSOR.ways, step_s)}


class Tensor(unittest.TestCase):
    def test_the_ratio_is_taken_within_each_round_to_the_faster_run_of_one_rank(self):
        table = bench_lessons.TENSOR.table([tensor_turn(1, 1.25, 1.25, 1.6, 2), tensor_turn(2, 1, 2, 1, 2),
                                           tensor_turn(4, 4, 5, 5, 5)])
        self.assertEqual(row_of(table, "lesson 01, two threads"), ["2000.0", "512", "1.000", "-", "3,000", "1,000", "0"])
        self.assertEqual(row_of(table, "lesson 08, two threads")[2], "1.000")
        self.assertEqual(row_of(table, "t = 2  "), ["2000.0", "512", "0.800", "0.80", "met", "1,500", "500", "4,096"])
        self.assertEqual(row_of(table, "t = 2, --sequence-parallel"),
                         ["1600.0", "640", "0.800", "0.80", "met", "1,500", "500", "4,096"])
        self.assertEqual(row_of(table, "t = 2, and --regather")[2:4], ["0.500", "-"])
        table = bench_lessons.TENSOR.table([tensor_turn(1, 1, 1.3, 1.2, 1)])
        self.assertIn("0.80 below", table)

    def test_every_way_has_two_cores_and_the_same_batch_and_text(self):
        for way in bench_lessons.TENSOR.ways:
            command = way.command(pathlib.Path("build"), "x.h5")
            threads = [int(part.removeprefix("--threads=")) for part in command if str(part).startswith("--threads=")]
            ranks = command[2] if command[0] == "mpirun" else 1
            self.assertEqual([ranks * threads[0]], [2])
            for option in ("--global-batch=4", "--sequence=256", "--data=x.h5"):
                self.assertIn(option, command)

    def test_every_lesson_takes_the_options(self):
        for way in bench_lessons.TENSOR.ways:
            command = [part for part in way.command(bench.BUILD, "x.h5") if not str(part).startswith("--data=")]
            done = subprocess.run([*map(str, command), "--dry-run"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stdout)


def pipeline_turn(*step_s, wall=0.15, virtual=0.135):
    """One round with these times of a step for each way, and these idle shares."""
    idle = {"formula": 1 / 9, "planned": 0.135, "virtual": virtual, "wall": wall}
    return {way.title: {"time": {"step_s": seconds, "tokens_per_s": 2048 / seconds},
                        "memory": {"activations": {"current": 1000 * way.ranks, "peak": 9000, "formula": 0}},
                        **({"schedule": {"idle": idle}} if way.ranks > 1 else {})}
            for way, seconds in zip(bench_lessons.PIPELINE.ways, step_s)}


class PipelineBench(unittest.TestCase):
    def test_the_floor_is_what_the_bubble_leaves_times_0_85(self):
        self.assertAlmostEqual(bench_lessons.PIPELINE_FLOOR, 0.85 * 8 / 9)

    def test_the_ratio_is_taken_within_each_round(self):
        table = bench_lessons.PIPELINE.table([pipeline_turn(1, 1.25, 2), pipeline_turn(2, 2, 2), pipeline_turn(4, 8, 5)])
        self.assertEqual(row_of(table, "lesson 01, two threads"),
                         ["2000.0", "1,024", "1.000", "-", "1,000", "-", "-", "-", "-", "-", "-"])
        self.assertEqual(row_of(table, "p = 2, 1f1b"), ["2000.0", "1,024", "0.800", "0.76", "met", "2,000", "11.1", "13.5", "13.5", "1",
                                                       "within", "15.0", "5", "within"])
        self.assertEqual(row_of(table, "p = 2, zero bubble"),
                         ["2000.0", "1,024", "0.800", "-", "2,000", "11.1", "13.5", "13.5", "-", "15.0", "-"])
        self.assertIn("0.76 below", bench_lessons.PIPELINE.table([pipeline_turn(3, 4, 4)]))

    def test_idle_shares_are_held_to_the_plan(self):
        for shares, words in (({"wall": 0.19}, ["1 within", "5 beyond"]), ({"wall": 0.08}, ["1 within", "5 beyond"]),
                              ({"virtual": 0.15}, ["1 beyond", "5 within"]), ({"virtual": 0.12}, ["1 beyond", "5 within"])):
            table = bench_lessons.PIPELINE.table([pipeline_turn(1, 1, 1, **shares)])
            for word in words:
                self.assertEqual(table.count(word), 1, shares)

    def test_every_way_has_two_cores_and_the_same_batch_and_text(self):
        for way in bench_lessons.PIPELINE.ways:
            command = way.command(pathlib.Path("build"), "x.h5")
            threads = [int(part.removeprefix("--threads=")) for part in command if str(part).startswith("--threads=")]
            ranks = command[2] if command[0] == "mpirun" else 1
            self.assertEqual([ranks * threads[0]], [2])
            for option in ("--global-batch=8", "--micro-batch=1", "--sequence=256", "--data=x.h5"):
                self.assertIn(option, command)

    def test_every_lesson_takes_the_options(self):
        for way in bench_lessons.PIPELINE.ways:
            command = [part for part in way.command(bench.BUILD, "x.h5") if not str(part).startswith("--data=")]
            done = subprocess.run([*map(str, command), "--dry-run"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stdout)

    def test_a_report_of_a_tiny_model_has_what_the_table_needs(self):
        with tempfile.TemporaryDirectory() as folder:
            turn_of_tiny = {}
            for way in bench_lessons.PIPELINE.ways:
                command = [part for part in way.command(bench.BUILD, "x.h5") if not str(part).startswith("--data=")]
                command += ["--model=nano", "--sequence=64", "--steps=2", f"--report={folder}/report.json"]
                large = {"--model=gpt2", "--sequence=256", "--steps=4"}
                subprocess.run([str(part) for part in command if part not in large], check=True, stdout=subprocess.DEVNULL)
                turn_of_tiny[way.title] = json.loads((pathlib.Path(folder) / "report.json").read_text(encoding="utf-8"))
        row = row_of(bench_lessons.PIPELINE.table([turn_of_tiny]), "p = 2, 1f1b")
        self.assertEqual(row[6], "11.1")  # (p-1) / (m+p-1)
        self.assertEqual(row[9:11], ["1", "within"])  # the virtual clock


def startup_turn(empty, lesson):
    """One round in which the programs took so long to start, whatever launched them."""
    return {launch: (empty, lesson) for launch in bench_lessons.LAUNCHES}


class StartUp(unittest.TestCase):
    def test_more_is_the_median_of_differences_within_each_round(self):
        table = bench_lessons.startup_table([startup_turn(0.1, 0.14), startup_turn(0.2, 0.25), startup_turn(0.3, 0.36)])
        for launch in bench_lessons.LAUNCHES:
            self.assertEqual(row_of(table, launch), ["0.200", "0.250", "0.050", "0.05", "met"])
        self.assertEqual(row_of(bench_lessons.startup_table([startup_turn(0.1, 0.2)]), "mpirun -np 1")[3:], ["0.05", "above"])

    def test_the_start_of_both_programs_is_noticed(self):
        [turn] = bench.measure_startup(1)
        for empty, lesson in turn.values():
            self.assertGreater(empty, 0)
            self.assertGreater(lesson, 0)

    def test_the_time_of_the_first_step_itself_is_not_counted(self):
        line = "       0    5.458765     5.5076      5.000e+29    1000000.0"
        self.assertLess(bench.seconds_to_first_step(["echo", line]), 0)
        self.assertGreater(bench.seconds_to_first_step(["echo", line.replace("1000000.0", "0.0")]), 0)

    def test_a_program_that_does_not_start_is_refused(self):
        with self.assertRaisesRegex(bench.Refused, "false failed to start"):
            bench.seconds_to(bench_lessons.FIRST_LINE, ["false"])


def busy_turn(active, passive, brief):
    """One round in which a step took so long by each policy, everywhere."""
    steps = {"active": active, "passive": passive, "brief": brief}
    return {situation.title: {way: dict(steps) for way in bench_lessons.BUSY_WAYS} for situation in bench_lessons.SITUATIONS}


class Busy(unittest.TestCase):
    def test_the_ratio_is_to_the_better_policy_within_each_round(self):
        table = bench_lessons.busy_table([busy_turn(1, 2, 1.1), busy_turn(2, 4, 2), busy_turn(4, 3, 5)])
        for way in bench_lessons.BUSY_WAYS:
            for situation in bench_lessons.SITUATIONS:
                self.assertEqual(row_of(table, f"{way}, {situation.title}"),
                                 ["2000.0", "3000.0", "2000.0", "1.10", "1.20", "met"])
        self.assertEqual(row_of(bench_lessons.busy_table([busy_turn(2, 1, 1.25)]), "two ranks, idle")[3:], ["1.25", "1.20", "above"])

    def test_every_way_has_two_cores_and_takes_the_options(self):
        for way in bench_lessons.BUSY_WAYS:
            for situation in bench_lessons.SITUATIONS:
                command = [part for part in bench_lessons.busy_command(way, bench.BUILD, "x.h5", situation) if part != "--data=x.h5"]
                self.assertEqual((command[2] if command[0] == "mpirun" else 1) * bench_lessons.BUSY_WAYS[way][2], 2)
                self.assertIn(f"--threads={bench_lessons.BUSY_WAYS[way][2]}", command)
                done = subprocess.run([*map(str, command), "--dry-run"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                      text=True, check=False)
                self.assertEqual(done.returncode, 0, done.stdout)

    def test_each_policy_is_one_that_programs_know(self):
        command = [str(part) for part in bench_lessons.busy_command("two threads", bench.BUILD, "x.h5", bench_lessons.SITUATIONS[0])]
        for policy, status in [*((policy, 0) for policy in [*bench_lessons.OTHER_POLICIES, bench_lessons.POLICY]), ("another", 2)]:
            done = subprocess.run([command[0], "--dry-run"], env={**os.environ, **bench_lessons.waits(policy)},
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
            self.assertEqual(done.returncode, status, policy)

    def test_all_situations_are_measured_and_no_process_is_left(self):
        def measured(command, _, environment):
            started.append((command, environment, [process.poll() for process in processes]))
            return {"time": {"step_s": 1.0}}

        def popen(*arguments, **more):
            processes.append(real_popen(*arguments, **more))
            return processes[-1]

        started, processes, real_popen = [], [], subprocess.Popen
        tokens = contextlib.nullcontext(("folder", "x.h5"))
        with mock.patch.object(bench, "report_of", measured), mock.patch.object(bench, "folder_with_tokens", lambda: tokens), \
                mock.patch.object(bench, "kept", lambda _, text: json.loads(text)), \
                mock.patch.object(bench.subprocess, "Popen", popen):
            turns = bench.measure_busy(1)
        self.assertEqual(turns, [busy_turn(1, 1, 1)])
        running = [running.count(None) for _, _, running in started]
        policies = len(bench_lessons.BUSY_WAYS) * (len(bench_lessons.OTHER_POLICIES) + 1)
        self.assertEqual(running, [situation.processes for situation in bench_lessons.SITUATIONS for _ in range(policies)])
        self.assertEqual([process.poll() is None for process in processes], [False] * len(processes))


class Page(unittest.TestCase):
    text = "a\n<!-- bench: one -->\n```\nold\n```\nb\n<!-- bench: one more -->\n```\nkept\n```\n"

    def test_only_the_named_block_changes(self):
        self.assertEqual(replace_block(self.text, "one", "\\1 new\n"), self.text.replace("old", "\\1 new"))

    def test_a_block_must_be_there_once(self):
        for text in ("", self.text + self.text):
            with self.assertRaises(ValueError):
                replace_block(text, "one", "new\n")

    def test_the_page_has_every_block_and_none_for_update_output(self):
        bench.check_page(bench.PAGE)
        self.assertEqual(update_output.BLOCK.findall(bench.PAGE.read_text(encoding="utf-8")), [])


class Csv(unittest.TestCase):
    def test_a_header_once_and_a_row_a_round(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "bench/bench.csv"
            for _ in range(2):
                append_csv(path, csv_rows(CASE, document(), "today", "abc"))
            lines = path.read_text(encoding="utf-8").split("\n")
        self.assertEqual(lines[0], ",".join(CSV_COLUMNS))
        self.assertEqual(lines[1], "today,abc,tiny,0,98.0,10.0,15.0,20.0,0.8,0.4")
        self.assertEqual([line.split(",")[3] for line in lines[1:-1]], ["0", "1", "2"] * 2)

    def test_what_one_core_cannot_measure_is_empty(self):
        alone = document()
        alone["rounds"] = [turn({("A", 8): 1.0}, [2.0])]
        row = next(csv_rows(CASE, alone, "", ""))
        self.assertEqual(len(row), len(CSV_COLUMNS))
        self.assertEqual(row[-2:], [2.0, ""])


class Processors(unittest.TestCase):
    def test_what_this_script_does_is_its_own(self):
        busy, own = bench.busy_seconds(), bench.own_seconds()
        subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.05: pass"], check=True)
        self.assertGreater(bench.own_seconds(), own + 0.04)
        if busy is not None:
            self.assertGreaterEqual(bench.busy_seconds(), busy)


# A turn of each case that has a table for itself and needs no other programs.
TURNS = {"sharding": sharding_turn(1, 1, 1, 1), "offload": offload_turn(1, 1, 1), "tensor": tensor_turn(1, 1, 1, 1, 1),
         "pipeline": pipeline_turn(1, 1, 1), "start-up": startup_turn(0.1, 0.2), "busy": busy_turn(1, 1, 1)}


def block_of(page, name):
    """The content of one block."""
    return page.split(f"<!-- bench: {name} -->")[1].split("```\n")[1]


class Script(unittest.TestCase):
    """The script with canned measurements, on a machine that is as busy as the test says."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.page = self.folder / "performance.md"
        self.page.write_bytes(bench.PAGE.read_bytes())
        self.measured = []
        self.now = self.own = self.busy = 0.0  # seconds on the clock; for which this script, and anybody, was busy
        self.processors = 0.0                  # that others keep busy
        clock = types.SimpleNamespace(monotonic=lambda: self.now, sleep=self.pass_time)
        for name, value in (("BUILD", self.folder), ("PAGE", self.page), ("RATIOS", self.folder / "ratios.json"), ("time", clock),
                            ("busy_seconds", lambda: self.busy), ("own_seconds", lambda: self.own),
                            ("measure_case", self.measure_case), ("measure_ways", self.measure_ways),
                            ("measure_run", self.measure_run),
                            *((f"measure_{case.replace('-', '')}", lambda rounds, case=case: self.measure_turns(case, None, rounds))
                              for case in ("offload", "start-up", "busy")), ("measure_turns", self.measure_turns),
                            ("measure_peers", self.measure_peers), ("measure_peer_ranks", self.measure_peer_ranks)):
            patch = mock.patch.object(bench, name, value)
            patch.start()
            self.addCleanup(patch.stop)

    def pass_time(self, seconds, own=0):
        """Time passes, in which this script keeps `own` processors busy."""
        self.now += seconds
        self.own += own * seconds
        self.busy += (own + self.processors) * seconds

    def measure_case(self, case, rounds):
        self.pass_time(10, own=1.5)
        self.measured.append((case.name, rounds))
        return bf16_document() if case in bench.BF16_CASES else document()

    def measure_ways(self, rounds, options):
        self.pass_time(10, own=1)
        self.measured.append(("ways", rounds, *options))
        return [{way: (1.0, 0.1) for way in bench.WAYS}]

    def measure_turns(self, case, _, rounds):
        """Measures a case in one turn."""
        self.pass_time(10, own=2)
        self.measured.append((case, rounds))
        return [TURNS[case]]

    def measure_run(self, run, rounds):
        self.pass_time(10, own=2)
        self.measured.append((run.name, rounds))
        return all_reduce_document(run)

    def measure_peers(self, python, rounds):
        self.pass_time(10, own=2)
        self.measured.append(("peers", python, rounds))
        return PEERS

    def measure_peer_ranks(self, python, rounds):
        self.pass_time(10, own=2)
        self.measured.append(("peer-ranks", python, rounds))
        return peer_ranks(2, 1)

    def run_script(self, *arguments):
        output, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            status = status_of(bench.main, list(arguments))
        return status, output.getvalue(), errors.getvalue()

    def test_all_cases_and_the_ways_are_measured_printed_and_recorded(self):
        before = self.page.read_text(encoding="utf-8")
        status, output, _ = self.run_script("--rounds=2")
        self.assertEqual(status, 0)
        self.assertEqual(self.measured, [(case.name, 2) for case in bench.CASES + bench.BF16_CASES] +
                         [(name, 2) for name in ("ways", *TURNS)] +
                         [(run.name, 2) for run in bench_collectives.RUNS])
        for text in [case.title for case in bench.CASES] + list(bench.WAYS) + ["below", "GNU 12", "256 MiB", "Some MPI",
                                                                                    "ZeRO-2"]:
            self.assertIn(text, output)
        self.assertEqual(len((self.folder / "bench/bench.csv").read_text(encoding="utf-8").split("\n")), 1 + 6 * 3 + 1)
        self.assertEqual(self.page.read_text(encoding="utf-8"), before)
        self.assertFalse((self.folder / "collectives.svg").exists())

    def test_write_keeps_the_tables_in_the_page(self):
        status, output, _ = self.run_script("--write")
        self.assertEqual(status, 0)
        page = self.page.read_text(encoding="utf-8")
        for line in output.split("\n"):
            self.assertIn(line, page)
        bench.check_page(self.page)
        self.assertTrue((self.folder / "collectives.svg").exists())

    def test_the_collectives_have_a_table_file_tables_and_a_picture_for_themselves(self):
        before = self.page.read_text(encoding="utf-8")
        for _ in range(2):
            self.assertEqual(self.run_script("--case=collectives", "--write")[0], 0)
        page = self.page.read_text(encoding="utf-8")
        self.assertEqual([name for name in bench.BLOCKS if block_of(before, name) != block_of(page, name)],
                         ["machine of all-reduce", "all-reduce", "more ranks than cores"])
        lines = (self.folder / "bench/collectives.csv").read_text(encoding="utf-8").split("\n")
        self.assertEqual(lines[0], ",".join(bench_collectives.CSV_COLUMNS))
        self.assertEqual(len(lines), 1 + 2 * 4 * 9 * 7 + 1)  # two times two numbers of ranks, two heaps, 9 sizes, 7 names
        self.assertIn("4 ranks", (self.folder / "collectives.svg").read_text(encoding="utf-8"))

    def test_ratios_are_recorded_and_later_held_to(self):
        self.assertEqual(self.check()[0], 77)
        self.assertEqual(self.run_script("--write")[0], 0)
        recorded = json.loads((self.folder / "ratios.json").read_text(encoding="utf-8"))[bench.processor()]
        self.assertEqual(recorded["gpt2-1x1024-bf16"], {"model FLOP/s over the best product": 0.5, "two threads over one": 1.6,
                                                        "bf16 over f32": 1.62})
        status, output = self.check()
        self.assertEqual((status, output.count("1.000")), (0, 2 * len(bench.CASES) + 3 * len(bench.BF16_CASES)))
        for factor, expected in ((1.04, 0), (1.06, 1)):
            with mock.patch.object(bench, "recorded_ratios", lambda factor=factor: {bench.processor(): {"gpt2-4x64": {
                    name: factor * value for name, value in recorded["gpt2-4x64"].items()}}}):
                self.assertEqual(self.check()[0], expected)
        self.processors = 1
        self.assertEqual(self.check()[0], 77)

    def check(self):
        """Status and output of check_ratios.py."""
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(io.StringIO()):
            return check_ratios.main([]), output.getvalue()

    def test_peers_are_measured_when_asked_for_and_have_a_table_and_a_picture(self):
        before = self.page.read_text(encoding="utf-8")
        self.assertEqual(self.run_script("--case=peers", "--python=some", "--write")[0], 0)
        self.assertEqual(self.measured, [("peers", "some", None)])
        page = self.page.read_text(encoding="utf-8")
        self.assertEqual([name for name in bench.BLOCKS if block_of(before, name) != block_of(page, name)],
                         ["machine of peers", "peers"])
        self.assertIn("tiny B=2 T=8, bf16", (self.folder / "peers.svg").read_text(encoding="utf-8"))

    def test_peers_on_ranks_have_a_table_for_themselves(self):
        before = self.page.read_text(encoding="utf-8")
        self.assertEqual(self.run_script("--case=peer-ranks", "--python=some", "--write")[0], 0)
        self.assertEqual(self.measured, [("peer-ranks", "some", None)])
        page = self.page.read_text(encoding="utf-8")
        self.assertEqual([name for name in bench.BLOCKS if block_of(before, name) != block_of(page, name)],
                         ["machine of peers on ranks", "peers on ranks"])

    def test_cases_that_have_tables_for_themselves(self):
        for case, block, *_ in bench.TABLES:
            if case in TURNS:
                with self.subTest(case=case):
                    before = self.page.read_text(encoding="utf-8")
                    self.assertEqual(self.run_script(f"--case={case}", "--write")[0], 0)
                    page = self.page.read_text(encoding="utf-8")
                    self.assertEqual([name for name in bench.BLOCKS if block_of(before, name) != block_of(page, name)],
                                     [f"machine of {block}", block])

    def test_a_busy_machine_is_refused(self):
        self.processors = 1.5
        status, output, errors = self.run_script()
        self.assertEqual((status, output, self.measured), (2, "", []))
        self.assertRegex(errors, r"^error: 1\.5 processors of this machine are busy .* before gpt2-4x64 ")

    def test_others_may_finish_before_a_case(self):
        def pass_time(seconds):
            self.pass_time(seconds)
            self.processors = 0.0

        self.processors = 1.5
        with mock.patch.object(bench.time, "sleep", pass_time):
            self.assertEqual(self.run_script("--case=small-12x64")[0], 0)

    def test_a_machine_that_gets_busy_meanwhile_is_refused(self):
        def disturbed(case, rounds):
            self.processors = 0.5
            return self.measure_case(case, rounds)

        with mock.patch.object(bench, "measure_case", disturbed):
            status, output, errors = self.run_script("--case=small-12x64")
        self.assertEqual((status, output), (2, ""))
        self.assertIn("error: 0.5 processors", errors)
        self.assertIn("while small-12x64 was measured", errors)
        self.assertFalse((self.folder / "bench/bench.csv").exists())

    def test_options_of_the_lesson_go_to_the_ways_only(self):
        self.assertEqual(self.run_script("--case=ways", "--model=mini")[0], 0)
        self.assertEqual(self.measured, [("ways", None, "--model=mini")])
        for arguments in (["--model=mini"], ["--case=small-12x64", "--steps=3"], ["--rounds=0"],
                          ["--write", "--case=ways"]):
            status, _, errors = self.run_script(*arguments)
            self.assertEqual(status, 2, arguments)
            self.assertEqual(errors.count("error:"), 1, errors)
        self.page.write_text("no marks", encoding="utf-8")
        self.assertEqual(self.run_script("--write")[0], 2)
        self.assertEqual(len(self.measured), 1)


def cleared_parameters(model):
    """Parameters whose gradients a step clears; it writes those of the token embedding and of the blocks' matrices."""
    C = model["channels"]
    return model["parameters"] - model["vocabulary"] * C - 12 * model["layers"] * C * C


class Program(unittest.TestCase):
    """A few tiny steps of build/tests/training_step."""

    program = bench.BUILD / "tests/training_step"
    L, H, C, V, B, T = 4, 4, 64, 256, 2, 32  # of nano

    def run_program(self, *options):
        return subprocess.run([self.program, *options], capture_output=True, text=True, check=False)

    def test_it_prints_what_the_tables_are_made_of(self):
        done = self.run_program("--model=nano", f"--batch={self.B}", f"--sequence={self.T}", "--rounds=2",
                                "--gemm-size=256", "--array-megabytes=4")
        self.assertEqual(done.returncode, 0, done.stderr)
        measured = json.loads(done.stdout)
        self.assertEqual(len(measured["rounds"]), 2)
        for table in (training_steps_table, machine_rates_table, memory_table):
            self.assertIn(CASE.title, table([(CASE, measured)]))
        self.assertIn("matmul", where_table(CASE, measured))
        self.assertEqual(measured["memory"]["stored_attention_bytes"],
                         4 * self.L * self.H * self.B * self.T * self.T)
        self.assertEqual(len(measured["allocations"]), len(measured["rounds"][0]["step_s"]))
        for step in measured["allocations"]:
            self.assertEqual((step["ledger_growth_bytes"], step["ledger_peak_growth_bytes"]), (0, 0))
        self.check_arithmetic(measured)

    def test_a_step_in_micro_batches(self):
        done = self.run_program("--model=nano", "--batch=4", "--micro-batch=2", "--sequence=8", "--rounds=1",
                                "--gemm-size=64", "--array-megabytes=1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["micro_batch"], 2)

    def test_steps_in_bf16_stand_beside_steps_in_f32(self):
        self.check_bf16_beside_f32()

    def test_a_library_without_bf16_for_the_processor_gives_no_rate(self):
        with mock.patch.dict(os.environ, {"ONEDNN_MAX_CPU_ISA": "AVX2"}):
            measured = self.check_bf16_beside_f32()
        self.assertEqual({product["library"] for turn in measured["rounds"] for product in turn["gemm"]
                          if product["precision"] == "bf16"}, {"own"})

    def check_bf16_beside_f32(self):
        done = self.run_program("--model=nano", f"--batch={self.B}", f"--sequence={self.T}", "--rounds=1",
                                "--gemm-size=64", "--array-megabytes=1", "--precision=bf16", "--beside-f32")
        self.assertEqual(done.returncode, 0, done.stderr)
        measured = json.loads(done.stdout)
        self.assertIn(f"# {CASE.title}, one thread", bf16_tables([(CASE, measured)], True))
        P = measured["model"]["parameters"]
        for where, bytes_of_adamw in (("where", 28 * P + 2 * P), ("where_f32", 28 * P)):  # the rounded copy is written
            groups = {group["name"]: group for group in measured[where]["groups"]}
            self.assertEqual(groups["AdamW"]["bytes"], bytes_of_adamw)
            self.assertEqual(groups["gradient sum"]["bytes"], 4 * cleared_parameters(measured["model"]))
        return measured

    def check_arithmetic(self, measured):
        """The arithmetic of a step and of its groups, from the sizes alone."""
        L, C, V, T, R = self.L, self.C, self.V, self.T, self.B * self.T
        weights = 12 * L * C * C + V * C
        parameters = measured["model"]["parameters"]
        attention = 12 * L * C * T * R
        self.assertEqual(measured["flops"]["model"], 6 * R * (parameters - measured["model"]["context"] * C) + attention)
        self.assertEqual(measured["flops"]["causal"], measured["flops"]["model"] - attention * (T - 1) / (2 * T))

        groups = {group["name"]: group for group in measured["where"]["groups"]}
        self.assertEqual(groups["matmul"]["calls"], 3 * (4 * L + 1))
        self.assertEqual(groups["matmul"]["flops"], 6 * R * weights + 3 * L * R * C)  # bias of q, k, v
        self.assertEqual(groups["attention"]["flops"], 14 * L * C * self.B * T * (T + 1) / 2)
        self.assertEqual(groups["AdamW"]["bytes"], 28 * parameters)
        self.assertEqual(groups["gradient sum"]["bytes"], 4 * cleared_parameters(measured["model"]))
        self.assertLess(sum(group["seconds"] for group in groups.values()), measured["where"]["step_s"])

    def test_what_cannot_be_is_refused(self):
        for option in ("--rounds=0", "--batch=0", "--sequence=65", "--gemm-size=3", "--model=none"):
            done = self.run_program(option)
            self.assertEqual(done.returncode, 2, option)
            self.assertEqual(done.stderr.count("error:"), 1, done.stderr)


if __name__ == "__main__":
    unittest.main()
