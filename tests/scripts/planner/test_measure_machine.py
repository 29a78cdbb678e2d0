"""scripts/planner/measure_machine.py: what it writes is read by lesson 17; what it refuses."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
BUILD = pathlib.Path(os.environ["RANKWISE_BUILD"])
sys.path.insert(0, str(ROOT / "scripts/planner"))
import measure_machine  # noqa: E402

FACTS = ("memory", "half", "single", "memory-rate", "network", "network-latency", "host-memory", "host-memory-rate", "host-rate",
         "disk-rate")


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.file = self.folder / "machine.conf"

    def run_script(self, *options, build=BUILD, **more):
        return subprocess.run([sys.executable, ROOT / "scripts/planner/measure_machine.py", self.file, f"--build={build}", *options],
                              capture_output=True, text=True, check=False, **more)

    def plan(self, *options):
        """Plan of lesson 17 for the machine."""
        return subprocess.run([BUILD / "lessons/17_choose_a_layout", f"--machine={self.file}", "--precision=f32", "--model=nano",
                               "--global-batch=1024", *options], capture_output=True, text=True, check=False)


@unittest.skipUnless(shutil.which("mpirun"), "without mpirun no lesson can be measured")
class Measures(Case):
    def test_lesson_17_plans_for_this_machine(self):
        self.file.write_text("an older file", encoding="utf-8")
        done = self.run_script("--name=my core")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        text = self.file.read_text(encoding="utf-8")
        self.assertEqual(done.stdout, text)
        self.assertEqual(list(self.folder.iterdir()), [self.file])  # nothing else is left

        values = measure_machine.values_of(self.file)
        cores = measure_machine.core_count()
        self.assertEqual(list(values), list(measure_machine.values_of(measure_machine.TEMPLATE)))
        self.assertEqual([values[name] for name in ("name", "device", "gpus-per-node")], ["my core", "cpu", str(cores)])
        for line in text.splitlines()[1:]:
            name = line.split(" = ")[0]
            self.assertEqual("not measured" in line, name in ("inner-length", "hidden-sums", "hidden-gathers", "slow-node-rate"), line)
        for name in FACTS:
            self.assertRegex(values[name], r"^[0-9.]+ [TGMkmun]?(B|B/s|FLOP/s|s)$")

        planned = self.plan(f"--gpus={cores}")
        self.assertEqual((planned.returncode, planned.stderr), (0, ""))
        self.assertIn(f"{cores} x my core, {cores} in a node; 32 bits", planned.stdout)
        self.assertNotIn("--device=cuda", planned.stdout)

    def test_a_lesson_that_fails(self):
        build = self.folder / "build"
        (build / "lessons").mkdir(parents=True)
        for program in (measure_machine.PRODUCTS, measure_machine.MESSAGES):
            (build / program).write_text("#!/bin/sh\necho 'error: no such thing.' >&2\nexit 2\n", encoding="utf-8")
            (build / program).chmod(0o755)
        done = self.run_script(build=build)
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertRegex(done.stderr, r"\Aerror: lessons/\w+ on \d+ ranks ended with status 2: no such thing\.\n       Try it: mpirun .*\n\Z")
        self.assertFalse(self.file.exists())


class Values(Case):
    def test_quantities(self):
        for value, unit, text in ((312e12, "FLOP/s", "312 TFLOP/s"), (1.5e9, "B/s", "1.5 GB/s"), (3.58e-5, "s", "35.8 us"),
                                  (1, "s", "1 s"), (2e-3, "s", "2 ms"), (4e-10, "s", "0.4 ns")):
            self.assertEqual(measure_machine.quantity(value, unit), text)

    def test_what_is_out_of_bounds_becomes_the_bound_and_says_so(self):
        self.assertEqual(measure_machine.within("meeting", 5e-6, "s", "as measured"), ("5 us", "as measured"))
        value, why = measure_machine.within("meeting", 5e-7, "s", "as measured")
        self.assertEqual((float(value.split()[0]), why), (1e-6, "the least that lesson 17 accepts; measured: 500 ns"))
        value, why = measure_machine.within("node-rate", 5e12, "B/s", "as measured")
        self.assertEqual((float(value.split()[0]), why), (1e12, "the most that lesson 17 accepts; measured: 5 TB/s"))

    def test_lesson_17_accepts_the_bounds(self):
        for name, bounds in measure_machine.BOUNDS.items():
            for value in (bounds[0] / 2, bounds[1] * 2):
                with self.subTest(name=name, value=value):
                    found = {name: measure_machine.within(name, value, "s" if name == "meeting" else "B/s", "")}
                    self.file.write_text(measure_machine.text_of("x", 8, found), encoding="utf-8")
                    planned = self.plan()
                    self.assertEqual((planned.returncode, planned.stderr), (0, ""))


class Refusals(Case):
    def assert_refused(self, *says, **how):
        done = self.run_script(*how.pop("options", ()), **how)
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertRegex(done.stderr, r"\Aerror: .*\n       .*\n\Z")  # one paragraph
        for word in says:
            self.assertIn(word, done.stderr)
        self.assertFalse(self.file.is_file())

    def test_no_build(self):
        self.assert_refused("lessons/03_ddp is not there", "--build", build=self.folder / "nothing")

    def test_names(self):
        for name in ("", "a#b", "a\nb"):
            self.assert_refused("cannot stand in a machine file", options=[f"--name={name}"])

    def test_files(self):
        self.file = self.folder
        self.assert_refused("is a folder")
        self.file = self.folder / "nowhere/machine.conf"
        self.assert_refused("is no folder")

    @unittest.skipUnless((BUILD / "lessons/03_ddp").is_file(), "the lessons are not built")
    def test_no_mpirun(self):
        """A path with all that the script calls, but mpirun."""
        programs = self.folder / "bin"
        programs.mkdir()
        for name in ("bash", "grep", "uname"):
            (programs / name).symlink_to(shutil.which(name))
        self.assert_refused("ended with status 127", "mpirun", env={**os.environ, "PATH": str(programs)})


class Sources(unittest.TestCase):
    def test_no_constant_is_forgotten(self):
        """The facts and constants of lesson 17 are those of the template."""
        source = (ROOT / "lessons/17_choose_a_layout/machine.cpp").read_text(encoding="utf-8")
        names = re.findall(r'Fact\{"([a-z-]+)"', source) + re.findall(r'\{"([a-z-]+)", &C::', source)
        self.assertEqual(sorted(names), sorted(set(measure_machine.values_of(measure_machine.TEMPLATE)) - {"name", "device", "gpus-per-node"}))


if __name__ == "__main__":
    unittest.main(verbosity=2)
