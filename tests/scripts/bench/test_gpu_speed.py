#!/usr/bin/env python3
"""Tests the speed part of scripts/bench/gpu_check.py with a canned measurement; and that gpu_speed, on an emulated GPU, prints
what the tables need.

RANKWISE_GPU says which GPUs the build has: off, on or emulated. Only emulated ones are run on.
"""

import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts/bench"))
sys.dont_write_bytecode = True

import gpu_check  # noqa: E402
from gpu_speed_tables import gpu_blocks, kernels_table, speed_table, where_table  # noqa: E402

BUILD = pathlib.Path(os.environ.get("RANKWISE_BUILD", ROOT / "build"))
EMULATED = os.environ.get("RANKWISE_GPU") == "emulated"
FAKE_TORCH = """
import contextlib, math, types
__version__ = "9.9"
bfloat16 = "bfloat16"
calls = []
def randn(shape, device, dtype, requires_grad=False):
    assert (shape, device, dtype) == ((2, 3, 8, 4), "cuda", bfloat16)
    return object()
cuda = types.SimpleNamespace(is_available=lambda: AVAILABLE, synchronize=lambda: None)
no_grad = contextlib.nullcontext
autograd = types.SimpleNamespace(grad=lambda y, inputs, dy, retain_graph: None)
"""
FAKE_FUNCTIONAL = """
from torch.nn import attention
def scaled_dot_product_attention(q, k, v, is_causal):
    assert is_causal and attention.chosen == "flash"
"""
FAKE_ATTENTION = """
import contextlib, types
SDPBackend = types.SimpleNamespace(FLASH_ATTENTION="flash")
chosen = None
@contextlib.contextmanager
def sdpa_kernel(backend):
    global chosen
    chosen = backend
    yield
"""


def turn(step_s, bf16=1e12, copy=1e9):
    return {"matmul_flops": {"bf16": bf16, "f32": bf16 / 10, "tf32": bf16 / 2}, "copy_bytes_per_s": copy,
            "step_s": step_s}


def document():
    """A step of 0.8 TFLOP beside 1 TFLOP/s, in three rounds of which the GPU was slow in the last."""
    groups = [{"name": "matmul", "calls": 4, "seconds": 1.0, "queued_s": 0.1, "flops": 0.7e12, "bytes": 1e8},
              {"name": "norm", "calls": 2, "seconds": 0.5, "queued_s": 0.1, "flops": 1e9, "bytes": 4e8},
              {"name": "GELU", "calls": 0, "seconds": 0, "queued_s": 0, "flops": 0, "bytes": 0}]
    return {
        "gpu": {"name": "some GPU", "memory_bytes": 1000000}, "precision": "bf16", "sequence": 8,
        "model": {"vocabulary": 100, "context": 8, "channels": 12, "layers": 1, "heads": 3}, "gemm_size": 64,
        "copy_bytes": 4096,
        "attention": {"B": 2, "H": 3, "T": 8, "D": 4, "flops": {"forward": 4e12, "backward": 10e12},
                      "rounds": [{"forward_s": 2.0, "backward_s": 4.0}]},
        "training": {
            "micro_batch": 16, "flops": {"model": 0.8e12, "causal": 0.7e12},
            "rounds": [turn(1.6), turn(1.6, copy=2e9), turn(8.0, bf16=0.2e12, copy=2e9)],
            "memory": {"ledger_bytes": 100000, "in_use_bytes": 105100},
            "where": {"step_s": 2.0, "groups": groups},
            "kernels": {"cases": [{"name": "norm forward", "bytes": 8e8}, {"name": "GELU forward", "bytes": 1e9}],
                        "rounds": [{"copy_bytes_per_s": 1e9, "seconds": {"norm forward": 1.0, "GELU forward": 2.0}},
                                   {"copy_bytes_per_s": 5e8, "seconds": {"norm forward": 2.0, "GELU forward": 4.0}}]}},
        "precisions": {"micro_batch": 8, "rounds": [{"f32": 4.0, "tf32": 2.0, "bf16": 1.0}]},
    }


def row_of(table, name):
    """The cells of the line that begins with a name."""
    line = next(line for line in table.split("\n") if line.startswith(name))
    return line.removeprefix(name).split()


class Tables(unittest.TestCase):
    def test_the_step_stands_beside_the_product_of_its_own_round(self):
        table = speed_table(document())
        self.assertEqual(row_of(table, "  over matrix product"),
                         ["0.5", "TFLOP/s", "0.500", "0.40", "met", "0.55", "below"])
        self.assertEqual(row_of(table, "step, bf16, B=16 T=8"), ["1600.0", "ms"])
        self.assertIn("  80  tokens/s", table)
        self.assertEqual(row_of(table, "matrix product 64, f32"), ["0.1", "TFLOP/s"])
        self.assertEqual(row_of(table, "copy, 4,096 bytes"), ["2.0", "GB/s"])
        for name, ratio in (("f32", "1.00"), ("tf32", "2.00"), ("bf16", "4.00")):
            self.assertEqual(row_of(table, f"step, {name}, B=8, beside f32")[-1], ratio)

    def test_memory_has_a_ceiling(self):
        self.assertEqual(row_of(speed_table(document()), "memory in use, over ledger"),
                         ["105,100", "bytes", "1.051", "1.05", "above"])
        less = document()
        less["training"]["memory"]["in_use_bytes"] = 104900
        self.assertEqual(row_of(speed_table(less), "memory in use, over ledger")[-1], "met")

    def test_attention_stands_beside_that_of_pytorch_where_there_is_one(self):
        name = "attention forward, B=2 H=3 T=8 D=4"
        self.assertEqual(row_of(speed_table(document()), name), ["2.0", "TFLOP/s"])
        self.assertIn("PyTorch is not here", speed_table(document()))
        both = document()
        both["torch"] = {"name": "PyTorch 9.9", "turns": [
            {"own": {"forward_s": 4.0, "backward_s": 8.0}, "torch": {"forward_s": 1.6, "backward_s": 2.0}}] * 3}
        self.assertEqual(row_of(speed_table(both), name), ["1.0", "TFLOP/s", "0.400", "0.30", "met", "0.50", "below"])
        self.assertEqual(row_of(speed_table(both), "attention backward, B=2 H=3 T=8 D=4"), ["1.2", "TFLOP/s", "0.250"])
        self.assertIn("flash attention of PyTorch 9.9", speed_table(both))

    def test_the_step_stands_beside_that_of_pytorch(self):
        both = document()
        both["torch"] = {"name": "PyTorch 9.9", "turns": [],
                         "step": {"name": "PyTorch 9.9", "micro_batch": 4, "rounds": [0.4, 0.8, 0.8]}}
        self.assertEqual(row_of(speed_table(both), "step of PyTorch 9.9, compiled, B=4"), ["40", "tokens/s", "2.000"])

    def test_the_step_stands_beside_that_of_llmc(self):
        both = {**document(), "torch": {"name": "", "turns": [], "step": {}}, "llmc": {"micro_batch": 4, "rounds": [0.8, 0.8, 1.6]}}
        self.assertEqual(row_of(speed_table(both), "step of llm.c, B=4"), ["40", "tokens/s", "2.000", "1.10", "met"])

    def test_kernels_stand_beside_the_copy_of_their_own_round(self):
        table = kernels_table(document())
        self.assertEqual(row_of(table, "norm forward"), ["800.0", "1500.000", "0.5", "0.800", "0.80", "met"])
        self.assertEqual(row_of(table, "GELU forward")[-3:], ["0.500", "0.80", "below"])

    def test_where_the_time_goes(self):
        table = where_table(document())
        self.assertIn("# 1.0 TFLOP/s and 2.0 GB/s meet at 500.0 FLOP/byte", table)
        self.assertEqual(row_of(table, "matmul"),
                         ["4", "1000.00", "50.0", "700.0", "0.1", "7000.0", "700.00", "arithmetic", "70"])
        self.assertEqual(row_of(table, "between kernels"), ["500.00", "25.0"])
        self.assertIn("# 6 calls; the host takes 200.00 ms", table)
        self.assertIn("takes 1600.00 ms", table)

    def test_attention_alone_has_one_table(self):
        alone = document()
        del alone["training"], alone["precisions"]
        self.assertEqual(list(gpu_blocks(alone)), ["machine of the GPU", "GPU"])

    def test_precisions_that_do_not_fit_are_left_out(self):
        large = document()
        large["precisions"] = None
        self.assertNotIn("beside f32", speed_table(large))


class Script(unittest.TestCase):
    """gpu_check.py with a program that prints the canned measurement, and a PyTorch that does nothing."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.page = self.folder / "performance.md"
        self.page.write_bytes((ROOT / "docs/performance.md").read_bytes())
        (self.folder / "tests").mkdir()
        (self.folder / "canned.json").write_text(json.dumps(document()), encoding="utf-8")
        self.program(f"#!/bin/sh\necho \"$@\" >> {self.folder}/calls\ncat {self.folder}/canned.json\n")
        environment = {key: value for key, value in os.environ.items() if key != "OUTSIDE_LD_LIBRARY_PATH"}
        for patch in (mock.patch.object(gpu_check, "PAGE", str(self.page)),
                      mock.patch.object(gpu_check, "TORCH_TURN_S", 0),
                      mock.patch.dict(os.environ, {**environment, "PYTHONPATH": str(self.folder)}, clear=True)):
            patch.start()
            self.addCleanup(patch.stop)
        self.make_torch(available=False)

    def program(self, text):
        path = self.folder / "tests/gpu_speed"
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)

    def make_torch(self, available):
        for name, text in (("", f"AVAILABLE = {available}\n" + FAKE_TORCH), ("nn", ""),
                           ("nn/functional", FAKE_FUNCTIONAL), ("nn/attention", FAKE_ATTENTION)):
            package = self.folder / "torch" / name
            package.mkdir(parents=True, exist_ok=True)
            (package / "__init__.py").write_text(text, encoding="utf-8")

    def leave_out_the_step(self):
        patch = mock.patch.object(gpu_check, "torch_step", lambda *_: {})
        patch.start()
        self.addCleanup(patch.stop)

    def run_script(self, *arguments):
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            status = gpu_check.main([str(self.folder), *arguments])
        return status, output.getvalue()

    def test_the_speed_alone_is_printed_and_kept(self):
        before = self.page.read_text(encoding="utf-8")
        status, output = self.run_script("--speed", "--", "--rounds=1")
        self.assertEqual(status, 0)
        self.assertEqual((self.folder / "calls").read_text(encoding="utf-8"), "--rounds=1\n")
        for text in ("0.500", "some GPU", "norm forward", "PyTorch is not here", "calls; the host"):
            self.assertIn(text, output)
        self.assertEqual(self.page.read_text(encoding="utf-8"), before)
        kept = json.loads((self.folder / "gpu_speed.json").read_text(encoding="utf-8"))
        self.assertEqual({**kept, "torch": 0, "machine": 0}, {**document(), "torch": 0, "machine": 0})

    def test_pytorch_takes_turns(self):
        self.make_torch(available=True)
        self.leave_out_the_step()
        status, output = self.run_script("--speed", "--", "--rounds=3", "--model=nano")
        self.assertEqual(status, 0)
        self.assertEqual((self.folder / "calls").read_text(encoding="utf-8").split("\n")[1:-1],
                         ["--part=attention --rounds=1 --model=nano"] * gpu_check.TORCH_TURNS)
        self.assertIn("over flash attention of PyTorch 9.9", output)

    def test_a_step_of_pytorch_has_a_turn_for_each_line(self):
        path = self.folder / "torch_speed.py"
        path.write_text("import json, sys\nprint(json.dumps({'name': 'PyTorch 9.9', **json.loads(sys.argv[3])}))\n"
                        "for line in sys.stdin: print('{\"step_s\": 2.0}')\n", encoding="utf-8")
        checks = gpu_check.Checks(str(self.folder), [])
        with mock.patch.object(gpu_check, "TORCH_SPEED", str(path)):
            self.assertEqual(gpu_check.torch_step(checks, document()),
                             {"name": "PyTorch 9.9", "micro_batch": 16, "rounds": [2.0] * gpu_check.TORCH_TURNS})
            path.write_text("raise SystemExit(3)", encoding="utf-8")
            self.assertEqual(gpu_check.torch_step(checks, document()), {})
        self.assertEqual(len(checks.failures), 1)

    def test_llmc_makes_steps_of_as_many_sequences_as_fit(self):
        program = self.folder / "train_gpt2cu"
        program.write_text('#!/bin/sh\necho "$*" >> calls\ncase "$*" in *"-b 16 "*) exit 1;; esac\n'
                           'for i in 1 2 3 4 5 6 7 8 9; do\n'
                           '  echo "step $i/9 | loss 11.0 (+nanz)| norm 1.0 (+nanz)| lr 1e-4 | $i.50 ms | 9.0% bf16 MFU | 5 tok/s"\ndone\n',
                           encoding="utf-8")
        program.chmod(0o755)
        both, checks = {**document(), "torch": {"step": {}}}, gpu_check.Checks(str(self.folder), [])
        self.assertEqual(gpu_check.llmc_step(checks, str(program), both),
                         {"micro_batch": 8, "rounds": [6e-3] * gpu_check.LLMC_TURNS})
        program.write_text("#!/bin/sh\nexit 3\n", encoding="utf-8")
        self.assertEqual(gpu_check.llmc_step(checks, str(program), both), {})
        self.assertEqual(len(checks.failures), 1)

    def test_a_pytorch_without_its_libraries_is_none(self):
        (self.folder / "torch/__init__.py").write_text("raise OSError('libcudart.so')", encoding="utf-8")
        status, output = self.run_script("--speed")
        self.assertEqual(status, 0)
        self.assertIn("PyTorch is not here", output)

    def test_a_pytorch_that_fails_is_a_failure(self):
        self.make_torch(available=True)
        (self.folder / "torch/nn/attention/__init__.py").write_text("raise RuntimeError('no flash')", encoding="utf-8")
        self.leave_out_the_step()
        status, output = self.run_script("--speed")
        self.assertEqual(status, 1)
        self.assertIn("no flash", output)

    def test_a_program_that_fails_is_a_failure(self):
        self.program("#!/bin/sh\necho broken >&2\nexit 3\n")
        status, output = self.run_script("--speed")
        self.assertEqual(status, 1)
        self.assertIn("broken", output)

    def test_figures_of_another_machine_come_into_the_page(self):
        status, output = self.run_script(f"--figures={self.folder}/canned.json", "--write")
        self.assertEqual(status, 0)
        self.assertFalse((self.folder / "calls").exists())
        page = self.page.read_text(encoding="utf-8")
        for line in output.split("\n"):
            self.assertIn(line, page)

    def test_quick_leaves_the_speed_out(self):
        with contextlib.redirect_stderr(io.StringIO()) as errors, self.assertRaises(SystemExit):
            self.run_script("--quick", "--write")
        self.assertIn("--quick leaves the speed out", errors.getvalue())


@unittest.skipUnless(EMULATED, "needs emulated GPUs")
class Program(unittest.TestCase):
    """A few tiny steps of build/tests/gpu_speed."""

    small = ["--model=nano", "--layers=1", "--heads=2", "--channels=16", "--context=16", "--vocabulary=41",
             "--rounds=2", "--gemm-size=32", "--copy-bytes=4KiB", "--least-turn=0", "--attention-batch=2"]

    def run_program(self, *options, memory=256 << 20):
        environment = {**os.environ, "EMULATED_CUDA_MEMORY": str(memory)}
        said = {option.split("=")[0] for option in options}
        all_options = [option for option in self.small if option.split("=")[0] not in said] + list(options)
        return subprocess.run([BUILD / "tests/gpu_speed", *all_options], capture_output=True, text=True, check=False,
                              env=environment)

    def measured(self, *options, **more):
        done = self.run_program(*options, **more)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_it_prints_what_the_tables_are_made_of(self):
        for precision in ("bf16", "f32"):
            with self.subTest(precision=precision):
                found = self.measured(f"--precision={precision}", "--micro-batch=3")
                blocks = gpu_blocks(found)
                self.assertEqual(len(found["training"]["rounds"]), 2)
                self.assertIn(f"step, {precision}, B=3 T=16", blocks["GPU"])
                self.assertIn("matmul + GELU", blocks["where the time of a GPU goes"])
                for kernel in ("norm", "GELU", "loss", "token", "position"):
                    self.assertIn(f"{kernel} backward", blocks["kernels of the GPU"])
                s, R, C = (2 if precision == "bf16" else 4), 3 * 16, 16
                sizes = {case["name"]: case["bytes"] for case in found["training"]["kernels"]["cases"]}
                self.assertEqual(sizes["norm forward"], 2 * s * R * C + 2 * 4 * R + 2 * s * C)
                P = (41 + 7) * C + 16 * C + 12 * C * C + 13 * C + 2 * C  # parameters, the vocabulary padded
                self.assertEqual(sizes["AdamW"], (28 if s == 4 else 30) * P)

    def test_attention_counts_what_a_causal_mask_shows(self):
        attention = self.measured("--part=attention")["attention"]
        pairs = 2 * 2 * 16 * 17 // 2  # B H T (T + 1) / 2
        self.assertEqual(attention["flops"], {"forward": 4 * 8 * pairs, "backward": 10 * 8 * pairs})
        self.assertEqual((attention["B"], attention["H"], attention["T"], attention["D"]), (2, 2, 16, 8))

    def test_the_largest_micro_batch_fits_and_the_next_does_not(self):
        families = 2 * (36 << 20)  # of kernels, for the yardsticks
        found = self.measured("--rounds=1", memory=families + (37 << 20))["training"]
        memory = found["memory"]
        self.assertLessEqual(memory["planned_bytes"], memory["capacity_bytes"])
        self.assertGreater(memory["next_planned_bytes"], memory["capacity_bytes"])
        self.assertEqual(memory["ledger_bytes"], memory["planned_bytes"])
        self.assertGreater(found["micro_batch"], 8)
        self.assertEqual(found["micro_batch"] % 8, 0)
        self.assertLess(memory["in_use_bytes"] / memory["ledger_bytes"], 1.05)

    def test_what_does_not_fit_is_refused(self):
        for options, text in ((["--micro-batch=1000000"], "are free"), (["--gemm-size=0"], "--gemm-size=0"),
                              (["--least-turn=-1"], "--least-turn=-1"), (["--micro-batch=-1"], "--micro-batch=-1")):
            done = self.run_program(*options)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(text, done.stderr)


if __name__ == "__main__":
    unittest.main()
