"""Exercises 03.1 and 03.3: the program with sums of gradients that somebody wrote, beside lesson 01.

    test_ddp_exercises.py 03.1|03.3 PREPARE LESSON_01 LESSON_03
"""

import inspect
import json
import os
import random
import subprocess
import sys
import tempfile
import unittest

EXERCISE, PREPARE, LESSON_01, LESSON_03 = sys.argv.pop(1), *map(os.path.abspath, (sys.argv.pop(1) for _ in range(3)))
TIME_LIMIT_S = 60
# Two blocks, six units; dropout and clipping, so that a wrong sum is a wrong step.
MODEL = ["--layers=2", "--context=16", "--channels=32", "--global-batch=8", "--steps=2", "--dropout=0.1", "--clip=0.5"]
STRATEGIES = ["per-tensor", "flat", "bucketed", "overlapped"]


class Case(unittest.TestCase):
    """Runs on a text of its own: the validation split of the embedded corpus is long for a build without optimization."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder, cls.data = folder.name, os.path.join(folder.name, "text.h5")
        text = os.path.join(cls.folder, "text.txt")
        characters = random.Random(3).choices("abcdefgh \n", k=3000)
        with open(text, "w", encoding="utf-8") as file:
            file.write("".join(characters))
        subprocess.run([PREPARE, "--tokenizer=byte", text, cls.data], check=True, capture_output=True)
        cls.expected = cls.report(cls, 1, "--arithmetic=exact")

    def report(self, ranks, *options):
        """The report of a run whose checks all hold; on one rank that of lesson 01."""
        path = os.path.join(self.folder, "report.json")
        command = [LESSON_01] if ranks == 1 else ["mpirun", "-np", str(ranks), LESSON_03, "--timeout=10"]
        done = subprocess.run([*command, f"--data={self.data}", *MODEL, *options, f"--report={path}"],
                              capture_output=True, text=True, errors="replace", timeout=TIME_LIMIT_S, check=False)
        if done.returncode != 0:
            raise AssertionError(f"{' '.join(options)}: status {done.returncode}\n{done.stdout}{done.stderr}")
        with open(path, encoding="utf-8") as file:
            return json.load(file)

    def assert_steps_of_lesson_01(self, ranks, *options):
        """The same losses, gradient norms and parameters, to the last bit; what was sent agrees with the formula."""
        report = self.report(ranks, "--arithmetic=exact", *options)
        for what in ("loss", "grad_norm", "digest"):
            self.assertEqual(report[what], self.expected[what], f"{what}, {ranks} ranks, {' '.join(options)}")
        return report


class Exercise1(Case):
    def test_sum_gradients_after_it_each_rank_has_the_sums_of_all(self):
        for strategy in STRATEGIES:
            self.assert_steps_of_lesson_01(2, f"--strategy={strategy}", "--bucket=20kB")
        self.assert_steps_of_lesson_01(4, "--strategy=bucketed", "--bucket=1B", "--micro-batch=1")

    def test_sum_gradients_waits_for_what_is_on_its_way(self):
        self.assert_steps_of_lesson_01(4, "--strategy=overlapped", "--bucket=20kB", "--chaos=5")
        self.assert_steps_of_lesson_01(2, "--strategy=overlapped", "--bucket=1B", "--link=1ms,1MB/s")


class Exercise3(Case):
    def test_send_if_full_accumulation_sends_nothing_more(self):
        for micro_batch in (2, 1):
            self.assert_steps_of_lesson_01(2, f"--micro-batch={micro_batch}", "--bucket=20kB")

    def test_send_if_full_sends_each_bucket_once_its_last_gradient_is_there(self):
        for ranks, bucket, seed in ((4, "20kB", 1), (2, "60kB", 2), (4, "1B", 3)):
            self.assert_steps_of_lesson_01(ranks, f"--bucket={bucket}", "--micro-batch=1", f"--chaos={seed}")

    def test_send_if_full_the_sums_overlap_with_the_backward_pass(self):
        # On these links a bucket is sent before the next one is computed: only the last one is exposed.
        link = ["--bucket=20kB", "--micro-batch=2", "--link=1us,1GB/s", "--flops=100MFLOP/s"]
        step = self.report(2, *link)["virtual"][-1]
        self.assertLess(step["exposed_ps"], 0.5 * step["communication_ps"])


class Result(unittest.TextTestResult):
    """Names the case that failed where Catch2 names it, for scripts/exercise.py."""

    def addFailure(self, test, err):
        line = inspect.getsourcelines(getattr(test, test._testMethodName))[1]
        name = test._testMethodName.removeprefix("test_").replace("_", " ")
        print(f"{'-' * 79}\n{name}\n{'-' * 79}\n{__file__}:{line}\n{'.' * 79}", flush=True)
        super().addFailure(test, err)


if __name__ == "__main__":
    case = {"03.1": Exercise1, "03.3": Exercise3}[EXERCISE]
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(case)
    outcome = unittest.TextTestRunner(sys.stdout, resultclass=Result, failfast=True).run(suite)
    if outcome.wasSuccessful() and outcome.testsRun > 0:
        print("All tests passed")
    sys.exit(0 if outcome.wasSuccessful() else 1)
