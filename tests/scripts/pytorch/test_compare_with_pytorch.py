"""scripts/pytorch/compare_with_pytorch.py: what it repeats of a lesson, its table and verdict, what it refuses; short runs with PyTorch."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "scripts/pytorch")]
import compare_with_pytorch  # noqa: E402
from compare_with_pytorch import Row  # noqa: E402
from program_case import BUILD, ProgramCase  # noqa: E402
from training_rules import learning_rate, windows_of  # noqa: E402

SMALL = ("--layers=2", "--heads=2", "--channels=256", "--context=16", "--learning-rate=3e-3", "--clip=0.5")
HAS_TORCH = importlib.util.find_spec("torch") is not None


def row(title, losses, **more):
    """A row that has run."""
    return Row(title, "kind", ours=False, processes=2, losses=losses, seconds=[0.25, 0.5, 0.75], memory=3_000_000,
               resident=50_000_000, **more)


class Rules(ProgramCase):
    program = "lessons/01_single_device"

    def test_the_order_of_the_data_is_the_programs(self):
        """Few and many windows, seeds of more than 32 bits, and steps beyond the first epoch."""
        for tokens, T, G, seed in [(2, 1, 1, 0), (100, 7, 3, 1), (5000, 16, 8, 12345678901), (300_000, 64, 16, 7), (70_000, 1, 5, 1)]:
            with self.subTest(tokens=tokens, seed=seed):
                steps = 2 * (tokens - 1) // T // G + 2 if tokens <= 5000 else 40
                done = self.run_program(*(str(number) for number in (tokens, T, G, seed, steps)), program="tests/windows")
                expected = [[int(window) for window in line.split()] for line in done.stdout.splitlines()]
                self.assertEqual(len(expected), steps)
                self.assertEqual([windows_of(step, tokens, T, G, seed) for step in range(steps)], expected)

    def test_the_learning_rate_is_the_programs(self):
        log = os.path.join(self.folder, "log.jsonl")
        for more in [(), ("--learning-rate-schedule=cosine", "--min-learning-rate=1e-4"),
                     ("--learning-rate-schedule=cosine", "--warmup=8")]:
            with self.subTest(more=more):
                report = self.report(*SMALL, "--steps=9", *more, f"--log={log}")
                lines = [json.loads(line) for line in pathlib.Path(log).read_text(encoding="utf-8").splitlines()]
                rates = [line["learning_rate"] for line in lines if "loss" in line]
                self.assertEqual(len(rates), 9)
                for step, rate in enumerate(rates):
                    self.assertAlmostEqual(learning_rate(report["options"], step), rate, delta=1e-12)


class Results(unittest.TestCase):
    """The table, the verdict and the picture of rows that have run."""

    def setUp(self):
        self.rows = [row("first", [5.0, 4.0, 3.0]), row("second", [5.0, 4.000002, 3.0]), row("third", [], unavailable="it needs a GPU")]

    def test_table(self):
        *_, first, second, third, reason = compare_with_pytorch.table(self.rows, 1000).splitlines()
        self.assertEqual(first.split(), ["first", "2", "5.000000", "3.000000", "0.0e+00", "500.0", "2,000", "3.0", "50.0"])
        self.assertEqual(second.split()[4], "5.0e-07")
        self.assertEqual(third.split(), ["third", "2", *["-"] * 7])
        self.assertEqual(reason, "# third: it needs a GPU")

    def test_curves(self):
        lines = compare_with_pytorch.curves(self.rows).splitlines()
        self.assertEqual([line.split() for line in lines], [["step", "first", "second"], ["0", "5.0000000", "5.0000000"],
                                                            ["1", "4.0000000", "4.0000020"], ["2", "3.0000000", "3.0000000"]])

    def test_one_loss_that_is_too_far_fails(self):
        self.assertEqual(compare_with_pytorch.judge(self.rows), (True, "PASS  losses off by 5.0e-07  expected at most 1e-06 of first"))
        self.rows[1].losses[1] = 4.0000052
        self.assertEqual(compare_with_pytorch.judge(self.rows), (False, "FAIL  losses off by 1.3e-06  expected at most 1e-06 of first"))
        self.rows[1].losses[1] = float("nan")
        self.assertFalse(compare_with_pytorch.judge(self.rows)[0])

    def test_a_run_that_is_too_short_is_not_compared(self):
        self.rows[1].losses.pop()
        with self.assertRaises(ValueError):
            compare_with_pytorch.judge(self.rows)

    def test_picture(self):
        root = xml.etree.ElementTree.fromstring(compare_with_pytorch.plot_baselines.draw(self.rows, 1e-6))
        words = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
        self.assertTrue({"first", "second", "step, ms", "500", "memory of a process, MB", "3", "1e-6"} <= set(words))
        self.assertNotIn("third", words)


class Script(unittest.TestCase):
    def run_script(self, *options):
        return subprocess.run([sys.executable, ROOT / "scripts/pytorch/compare_with_pytorch.py", f"--build={BUILD}", *options],
                              capture_output=True, text=True, check=False)

    def assert_refused(self, *options, says):
        done = self.run_script(*options)
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        self.assertIn(says, done.stderr)

    def test_refusals(self):
        self.assert_refused("--build=/no/such/folder", says="/no/such/folder has no lessons")
        for option, says in (("--ranks=0", "--ranks=0 is too small"), ("--threads=0", "--threads=0 is too small"),
                             ("--rounds=0", "--rounds=0 is too small"), ("--rows=01,jax", "--rows has no 'jax'"),
                             ("--dropout=0.1", "unrecognized arguments: --dropout=0.1"), ("--steps=1", "--steps=1 is too small"),
                             ("--picture=no/such/folder/a.svg", "no folder for no/such/folder/a.svg")):
            with self.subTest(option=option):
                self.assert_refused(option, says=says)

    @unittest.skipIf(HAS_TORCH, "this Python has PyTorch")
    def test_without_pytorch(self):
        self.assert_refused(says="pip install torch")

    @unittest.skipUnless(HAS_TORCH, "this Python has no PyTorch")
    def test_refusals_of_the_lessons(self):
        self.assert_refused("--heads=7", says="--heads=7 does not divide")
        self.assert_refused("--ranks=3", says="--global-batch")
        self.assert_refused("--text=/dev/null", says="error: ")

    @unittest.skipUnless(HAS_TORCH, "this Python has no PyTorch")
    def test_losses_agree(self):
        """On 2 ranks with two micro-batches on each, and on 3 ranks."""
        for ranks, more in ((2, ["--global-batch=8", "--micro-batch=2"]), (3, ["--global-batch=6", "--rows=torch,03,ddp,06,fsdp2"])):
            with self.subTest(ranks=ranks), tempfile.TemporaryDirectory() as folder:
                report, picture = (pathlib.Path(folder) / name for name in ("report.json", "picture.svg"))
                done = self.run_script(*SMALL, "--steps=5", "--warmup=2", *more, f"--ranks={ranks}", f"--report={report}", f"--picture={picture}")
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                self.assertIn("\nPASS  losses off by ", done.stdout)
                rows = {one["title"]: one for one in json.loads(report.read_text(encoding="utf-8"))["rows"]}
                for one in ("ours, lesson 01", "PyTorch", "ours, lesson 03 (DDP)", "PyTorch DDP", "ours, lesson 06 (ZeRO-3)",
                            "PyTorch FSDP2"):
                    self.assertEqual((rows[one]["unavailable"], len(rows[one]["losses"])), ("", 5), one)
                self.assertLess(rows["PyTorch"]["losses"][-1], rows["PyTorch"]["losses"][0] - 0.01)
                xml.etree.ElementTree.fromstring(picture.read_text(encoding="utf-8"))


if __name__ == "__main__":
    unittest.main()
