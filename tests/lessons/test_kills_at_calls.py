"""A rank is killed before one of its calls that read, write or name the files of a checkpoint: while a run resumes, in its first
steps, while the checkpoint and the unfinished next one are both there, and between the two calls that give it its name. Between
two calls nothing there changes, so these are all the moments that there are. What was committed stays to the bit, and the run
goes on from it as if it had never been killed.

Here each lesson is killed at some of these calls, and all phases have their turn. RANKWISE_ALL=1 has a kill before every call that
changes something and before every 25th read, on one rank and on several. Kills at random moments are in test_kills.py.
"""

import collections
import concurrent.futures
import filecmp
import glob
import os
import shutil
import signal
import subprocess
import time
import unittest

from failing_calls import FailingCase, calls_in, failing
from program_case import BUILD, TIME_LIMIT_S, temporaries

ALL = bool(os.environ.get("RANKWISE_ALL"))
READS_EVERY = 25
Case = collections.namedtuple("Case", "lesson ranks options")
CASES = [
    Case("04_zero1", 2, ()),
    Case("06_zero3", 2, ()),
    Case("07_offload", 2, ("--offload=all", "--tier=disk:{disk}")),
    Case("09_pipeline_parallel", 2, ()),
    Case("10_3d_parallel", 2, ("--tp=2",)),
    Case("13_mesh_zero3", 2, ("--tp=2",)),
    Case("14_context_parallel", 2, ()),
    Case("15_experts", 2, ("--experts=1",)),  # the checkpoints of lesson 01
    Case("16_five_axes", 2, ("--experts=1",)),
]
if ALL:
    CASES += [case._replace(ranks=1, options=case.options if "{" in str(case) else ()) for case in CASES]
    CASES += [Case("10_3d_parallel", 4, ("--dp=2", "--tp=2"))]
FIRST, LAST = 1, 3  # steps: there is a checkpoint after the first, and one is saved after each that follows


class Calls(list):
    """The calls of a rank of a run that resumes and saves twice: name and file of each. They are numbered from 1."""

    def numbers(self, holds):
        return [number for number, (name, file) in enumerate(self, 1) if holds(name, file)]

    def reads(self):
        """Numbers of the calls that read the checkpoint from which it resumes."""
        return self.numbers(lambda name, file: name in ("pread", "read") and file.endswith("run.h5"))

    def changes(self):
        return self.numbers(lambda name, file: name not in ("pread", "read"))

    def renames(self):
        return self.numbers(lambda name, file: name == "rename")

    def unfinished(self):
        """Calls that work on a checkpoint without its name, as lists of one checkpoint each."""
        numbers, ends = self.numbers(lambda name, file: ".tmp" in file and name != "read"), [0, *self.renames(), len(self)]
        return [[n for n in numbers if begin < n <= end] for begin, end in zip(ends, ends[1:])]

    def moments(self):
        """One of each phase of rank 0, in order."""
        reads, (first, second, _), renames = self.reads(), self.unfinished(), self.renames()
        return [
            reads[0], reads[len(reads) // 2], reads[-1],
            first[0],  # after the first step
            first[1], first[len(first) // 3], first[2 * len(first) // 3], renames[0],
            renames[0] + 1,  # it has its name; does the disk know?
            second[0], second[len(second) // 2], renames[1],
            len(self),  # the lock is about to go
        ]

    def moments_elsewhere(self):
        """Some of a rank that does not commit."""
        reads, writes = self.reads(), self.numbers(lambda name, file: name == "pwrite")
        return [n[len(n) // 2] for n in (reads, writes[:len(writes) // 2]) if n]


class KillsAtCalls(FailingCase):
    layers = 2

    def setUp(self):
        super().setUp()
        self.saved = {}
        for step in range(FIRST, LAST + 2):
            self.saved[step] = os.path.join(self.folder, f"after_{step}.h5")
            done = self.run_failing(1, "01_single_device", f"--steps={step}", f"--checkpoint={self.saved[step]}",
                                    f"--report={self.folder}/whole.json", environment={})
            self.assertEqual(done.returncode, 0, done.stderr)
        self.digest = self.report_in(os.path.join(self.folder, "whole.json"))["digest"]

    def resume(self, case, folder, *options, environment=None):
        disk = folder + ".disk"
        os.makedirs(disk, exist_ok=True)
        done = self.run_failing(case.ranks, case.lesson, *(option.format(disk=disk) for option in case.options),
                                f"--checkpoint={folder}/run.h5", "--resume", *options, environment=environment or {})
        self.wait_for_all_of(folder)
        self.assertEqual(os.listdir(disk), [])
        return done

    def wait_for_all_of(self, folder):
        """A launcher may end before the ranks have that it kills."""
        end = time.monotonic() + TIME_LIMIT_S
        while any(folder.encode() in command_line(path) for path in glob.glob("/proc/[0-9]*/cmdline")):
            self.assertLess(time.monotonic(), end, "a rank lives on")
            time.sleep(0.01)

    def new_place(self, *words):
        """A folder with the checkpoint after the first step."""
        folder = self.new_folder(*words)
        shutil.copy(self.saved[FIRST], os.path.join(folder, "run.h5"))
        return folder

    def save_twice(self, case, folder, rank, **variables):
        return self.resume(case, folder, f"--steps={LAST}", "--checkpoint-every=1",
                           environment=failing(folder, how="kill", rank=rank, **variables))

    def calls(self, case, rank):
        folder = self.new_place(case, rank)
        done = self.save_twice(case, folder, rank, log=folder + ".log")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return Calls(calls_in(folder + ".log"))

    def kill_and_resume(self, case, rank, call, calls):
        folder = self.new_place(case, rank, call)
        file = os.path.join(folder, "run.h5")
        done = self.save_twice(case, folder, rank, call=call)
        with self.subTest(case=case, rank=rank, call=call, what=calls[call - 1], said=done.stdout + done.stderr):
            self.assertEqual(done.returncode, -signal.SIGKILL if case.ranks == 1 else 128 + signal.SIGKILL)
            committed = [step for step in self.saved if filecmp.cmp(file, self.saved[step], shallow=False)]
            self.assertEqual(len(committed), 1, "the checkpoint is none of those that were saved")
            if rank == 0:
                self.assertEqual(committed, [FIRST + sum(rename < call for rename in calls.renames())])
                unfinished = any(at[0] < call <= at[-1] for at in calls.unfinished() if at)
                self.assertEqual(len(temporaries(file)), unfinished)
            report = folder + ".json"
            done = self.resume(case, folder, f"--steps={LAST + 1}", f"--report={report}")
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertEqual(self.report_in(report)["first_step"], committed[0])
            self.assertEqual(self.report_in(report)["digest"], self.digest)
            self.assertTrue(filecmp.cmp(file, self.saved[LAST + 1], shallow=False))
            self.assertEqual(os.listdir(folder), ["run.h5"])
        self.remove(folder)

    def tries(self):
        for number, case in enumerate(CASES):
            for rank in {0, case.ranks - 1}:
                calls = self.calls(case, rank)
                if rank == 0:
                    self.assertEqual(len(calls.renames()), LAST - FIRST)
                if ALL:
                    chosen = sorted({*calls.changes(), *calls.reads()[::READS_EVERY]})
                else:
                    chosen = calls.moments()[number % 3::3] if rank == 0 else calls.moments_elsewhere()
                for call in chosen:
                    yield case, rank, call, calls

    def test_a_rank_that_is_killed_before_a_call(self):
        with concurrent.futures.ThreadPoolExecutor(max_workers=4) as pool:
            tries = list(pool.map(lambda arguments: self.kill_and_resume(*arguments), self.tries()))
        print(f"{len(tries)} kills")

    def test_what_gets_its_name_is_on_the_disk(self):
        """A kill cannot show that, but a power failure would: all that was written is brought to the disk before the file gets its
        name, and then the name is."""
        for case in CASES:
            calls = self.calls(case, 0)
            for rename in calls.renames():
                before = [name for name, file in calls[:rename - 1] if ".tmp" in file and name != "pread"]
                with self.subTest(case=case, calls=before[-5:]):
                    self.assertEqual(before[-2:], ["fsync", "close"])
                    self.assertEqual(calls[rename][0], "fsync")
                    self.assertNotIn("run.h5", calls[rename][1])


class KillsOfOutputs(FailingCase):
    """A program is killed before some of its calls: what it replaces has its old content or its new one."""

    def kill(self, program, old, new, every, check):
        """Kills a program with the options new(folder) in folders like `old`. check(folder, its calls until then) looks at them."""
        def run(name, **variables):
            folder = self.new_folder(name)
            shutil.copytree(old, folder, dirs_exist_ok=True)
            return folder, subprocess.run([os.path.join(BUILD, program), *new(folder)], capture_output=True, text=True,
                                          timeout=TIME_LIMIT_S, env={**os.environ, **failing(folder, how="kill", **variables)})

        folder, done = run("new", log=old + ".log")
        self.assertEqual(done.returncode, 0, done.stderr)
        calls = calls_in(old + ".log")
        names = [number for number, (name, _) in enumerate(calls) if name in ("rename", "remove")]
        for number in sorted({*range(0, len(calls), 1 if ALL else every), *names, *(n + 1 for n in names)} & {*range(len(calls))}):
            folder, done = run(number, call=number + 1)
            with self.subTest(what=calls[number], before=calls[:number][-3:]):
                self.assertEqual(done.returncode, -signal.SIGKILL)
                check(folder, calls[:number])

    def lesson(self, *options):
        done = self.run_failing(1, "01_single_device", *options, environment={})
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_record_has_the_steps_whose_files_were_complete(self):
        def tensors(path):
            done = self.run_program(path, path, program="data/compare_records")
            self.assertEqual(done.returncode, 0, done.stderr)
            return int(done.stdout.split(" ")[0].replace(",", ""))

        old = self.new_folder("old")
        self.lesson("--steps=1", "--seed=2", f"--record={old}/run.h5")
        in_a_step = tensors(f"{old}/run.h5")

        def check(folder, calls):
            complete = [name for name, _ in calls].count("rename")
            is_old = filecmp.cmp(f"{old}/run.h5", f"{folder}/run.h5", shallow=False)
            self.assertEqual((is_old, tensors(f"{folder}/run.h5")), (complete == 0, max(complete, 1) * in_a_step))
        self.kill("lessons/01_single_device", old, lambda folder: (*self.small, "--steps=2", f"--record={folder}/run.h5"), 11, check)

    def test_a_folder_of_weights_has_the_sizes_of_its_weights_or_none(self):
        for layers in (1, 2):
            self.small = (self.small[0], f"--layers={layers}", *self.small[2:])
            self.lesson("--steps=1", f"--checkpoint={self.folder}/{layers}.h5")
        old, new = self.new_folder("old"), os.path.join(self.folder, "new")
        self.assertEqual(self.run_program("export", f"{self.folder}/1.h5", old, program="data/weights").returncode, 0)

        def check(folder, _):
            names = {"config.json", "model.safetensors"} & {*os.listdir(folder)}
            self.assertIn("model.safetensors", names)
            if len(names) == 2:
                self.assertIn([], [filecmp.cmpfiles(folder, one, names, shallow=False)[1] for one in (old, new)])
        self.kill("data/weights", old, lambda folder: ("export", f"{self.folder}/2.h5", folder), 5, check)


def command_line(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:  # it has ended
        return b""


if __name__ == "__main__":
    unittest.main(verbosity=2)
