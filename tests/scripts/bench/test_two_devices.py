"""scripts/bench/two_devices.py: its table from runs of a tiny model, and what it refuses."""

import os
import pathlib
import re
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
TINY = ("--layers=1", "--heads=1", "--channels=16", "--context=16", "--global-batch=4")


class TwoDevices(unittest.TestCase):
    def run_script(self, *options):
        return subprocess.run([ROOT / "scripts/bench/two_devices.py", f"--build={os.environ['RANKWISE_BUILD']}", *options],
                              capture_output=True, text=True, check=False)

    def test_three_rows(self):
        done = self.run_script("--steps=2", *TINY)
        self.assertEqual(done.returncode, 0, done.stderr)
        *_, published, machine, clock = done.stdout.splitlines()
        self.assertRegex(published, r"^published +5\.57 +3\.12 +1\.785 +0\.893 +- +- +44 %$")
        for row in (machine, clock):
            numbers = [float(number) for number in re.findall(r"[0-9.]+", row)]
            one, two, speed_up, efficiency, memory_one, memory_two, less = numbers
            self.assertAlmostEqual(efficiency, speed_up / 2, delta=0.001)
            self.assertGreater(memory_one, memory_two)
            self.assertAlmostEqual(less, 100 * (1 - memory_two / memory_one), delta=20)  # of rounded megabytes

    def test_refusals(self):
        for option, text in (("--steps=1", "the first step is not counted"), ("--heads=7", "--heads=7 does not divide"),
                             ("--report=r.json", "--report=r.json cannot be given")):
            with self.subTest(option=option):
                done = self.run_script(option)
                self.assertEqual(done.returncode, 2)
                self.assertIn(text, done.stderr)


if __name__ == "__main__":
    unittest.main()
