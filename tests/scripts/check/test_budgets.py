"""scripts/check/budgets.py: it counts code, files and seconds, and says what is beyond a budget."""

import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parents[3] / "scripts"


class Budgets(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        for name in ("check/budgets.py", "lib/documents.py"):
            (self.root / "scripts" / name).parent.mkdir(parents=True)
            shutil.copy(SCRIPTS / name, self.root / "scripts" / name)
        self.write("common/a.cpp", '#include "a.hpp"\n\n// A comment.\n  int a = 1;  // one\n')
        self.write("common/a.md", "no code\n")
        self.write("build/times/common/partition", "1.5 2.25 0.75\n")
        self.write("build/times/lessons/06/06_zero3", "60 70 30\n")
        self.write("build/times/common/cut_off", "")  # by a signal
        self.write("build/times/emulated_cuda/emulated_gpus", "9 8 2\n")
        subprocess.run(["git", "init", "-q", self.root], check=True)
        subprocess.run(["git", "-C", self.root, "add", "common"], check=True)

    def write(self, path, text):
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text, encoding="utf-8")

    def run_script(self, *words):
        return subprocess.run([sys.executable, self.root / "scripts/check/budgets.py", *words], capture_output=True, text=True, check=False)

    def test_within(self):
        self.write("scripts/check/budgets.txt", "# folder\ncommon 2 2 3\nlessons - - 100\ntests - - 10\n")
        done = self.run_script()
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        rows = [line.split() for line in done.stdout.splitlines()[2:]]
        self.assertEqual(rows, [["common", "2", "2", "2", "2", "3", "3"], ["lessons", "0", "-", "0", "-", "100", "100"],
                                ["tests", "0", "-", "0", "-", "10", "10"]])

    def test_beyond(self):
        self.write("scripts/check/budgets.txt", "common 1 1 3\nlessons - - 99\n")
        done = self.run_script()
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr, "error: common has 2 code lines, 1 beyond its budget (scripts/check/budgets.txt).\n"
                                      "error: common has 2 files, 1 beyond its budget (scripts/check/budgets.txt).\n"
                                      "note: lessons has 100 seconds of tests, 1 beyond its budget (scripts/check/budgets.txt).\n")

    def test_a_slow_machine_is_no_failure(self):
        self.write("scripts/check/budgets.txt", "lessons - - 99\n")
        self.assertEqual(self.run_script().returncode, 0)

    def test_times_begin_with_the_longest(self):
        done = self.run_script("times")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([line.split()[-1] for line in done.stdout.splitlines()[1:4]],
                         ["lessons/06/06_zero3", "emulated_cuda/emulated_gpus", "common/partition"])
        self.assertIn("3 tests took 113 s", done.stdout)
        self.assertEqual(self.run_script("times", "elsewhere").returncode, 2)
        self.assertEqual(self.run_script("--fast").returncode, 2)


if __name__ == "__main__":
    unittest.main()
