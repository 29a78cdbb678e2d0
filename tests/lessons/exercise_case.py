"""Base of the tests of exercises in a lesson's program: runs beside lesson 01, and a verdict for scripts/course/exercise.py.

    test_..._exercises.py EXERCISE PREPARE LESSON_01 LESSON
"""

import inspect
import json
import os
import random
import subprocess
import sys
import tempfile
import unittest

EXERCISE, PREPARE, LESSON_01, LESSON = sys.argv.pop(1), *map(os.path.abspath, (sys.argv.pop(1) for _ in range(3)))
SLOWNESS = float(os.environ.get("RANKWISE_SLOWNESS", "1"))  # of this machine; time limits are for an idle one
TIME_LIMIT_S = 60 * SLOWNESS
# Two blocks, six units; dropout and clipping, so that a wrong sum is a wrong step.
MODEL = ["--layers=2", "--context=16", "--channels=32", "--global-batch=8", "--steps=2", "--dropout=0.1", "--clip=0.5"]


class ExerciseCase(unittest.TestCase):
    """Runs on a short text: the validation split of the embedded corpus is long for a build without optimization."""

    OPTIONS = []  # of all runs of a case; they may replace some of MODEL

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
        """The report of a run whose checks all hold; on one rank that of lesson 01. Options may replace some of MODEL."""
        options = [*self.OPTIONS, *options]
        given = {option.split("=")[0] for option in options}
        model = [option for option in MODEL if option.split("=")[0] not in given]
        path = os.path.join(self.folder, "report.json")
        command = [LESSON_01] if ranks == 1 else ["mpirun", "-np", str(ranks), LESSON, f"--timeout={10 * SLOWNESS:.0f}"]
        done = subprocess.run([*command, f"--data={self.data}", *model, *options, f"--report={path}"],
                              capture_output=True, text=True, errors="replace", timeout=TIME_LIMIT_S, check=False)
        if done.returncode != 0:
            raise AssertionError(f"{' '.join(options)}: status {done.returncode}\n{done.stdout}{done.stderr}")
        with open(path, encoding="utf-8") as file:
            return json.load(file)

    def assert_steps_of_lesson_01(self, ranks, *options):
        """Losses, gradient norms and parameters equal lesson 01's, to the last bit; traffic agrees with the formula."""
        report = self.report(ranks, "--arithmetic=exact", *options)
        for what in ("loss", "grad_norm", "digest"):
            self.assertEqual(report[what], self.expected[what], f"{what}, {ranks} ranks, {' '.join(options)}")
        return report


class Result(unittest.TextTestResult):
    """Names the case that failed where Catch2 names it, for scripts/course/exercise.py."""

    def addFailure(self, test, err):
        line = inspect.getsourcelines(getattr(test, test._testMethodName))[1]
        name = test._testMethodName.removeprefix("test_").replace("_", " ")
        print(f"{'-' * 79}\n{name}\n{'-' * 79}\n{__file__}:{line}\n{'.' * 79}", flush=True)
        super().addFailure(test, err)


def main(cases):
    """Runs the case of the exercise that the command line names."""
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(cases[EXERCISE])
    outcome = unittest.TextTestRunner(sys.stdout, resultclass=Result, failfast=True).run(suite)
    if outcome.wasSuccessful() and outcome.testsRun > 0:
        print("All tests passed")
    sys.exit(0 if outcome.wasSuccessful() else 1)
