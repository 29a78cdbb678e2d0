"""Every program that writes a file, on a disk that is full: it ends with status 1 and names the file and the reason, or
refuses to start; the file that was there before stays as it was to the bit; and nothing unfinished is left.

The disk is full in two ways. A library that is loaded first fails the k-th call that changes a file, once or from then on,
for every k. And a small file system in memory is really full, for many sizes.
"""

import concurrent.futures
import filecmp
import os
import shutil
import subprocess
import sys
import unittest

from failing_calls import calls_in, failing
from program_case import BUILD, TIME_LIMIT_S, ProgramCase, temporaries

MODEL = ("--layers=1", "--channels=8", "--heads=1", "--context=16", "--vocabulary=256", "--global-batch=2",
         "--arithmetic=exact")
NO_SPACE = "No space left on device"
ONCE_EVERY = int(os.environ.get("RANKWISE_ONCE_EVERY", "4"))  # each of so many calls fails alone, too
INSIDE = "RANKWISE_IN_OWN_MOUNTS"  # set where mounting concerns nobody else


class FullDisk(ProgramCase):
    """Files of each program, by name: its command with the file as {out}, and the file that is there before."""

    def setUp(self):
        super().setUp()
        self.good = os.path.join(self.folder, "good.h5")
        self.better = os.path.join(self.folder, "better.h5")
        self.weights = os.path.join(self.folder, "model.safetensors")
        self.text = os.path.join(self.folder, "text.txt")
        with open(self.text, "w", encoding="utf-8") as file:
            file.write("the owl sees 12 cats.\n" * 9000)
        lesson = "lessons/01_single_device"
        self.must_run(lesson, *MODEL, "--steps=1", f"--checkpoint={self.good}")
        shutil.copy(self.good, self.better)
        self.must_run(lesson, *MODEL, "--steps=2", f"--checkpoint={self.better}", "--resume")
        self.must_run("data/weights", "export", self.good, self.weights)
        self.imported = os.path.join(self.folder, "imported.h5")
        self.must_run("data/weights", "import", "--heads=1", self.weights, self.imported)
        self.commands = {
            "checkpoint": (self.good, None, lesson, *MODEL, "--steps=2", "--checkpoint={out}", "--resume"),
            "report": (self.text, None, lesson, *MODEL, "--steps=1", "--report={out}"),
            "trace": (self.text, None, lesson, *MODEL, "--steps=1", "--trace={out}"),
            "import": (self.text, None, "data/weights", "import", "--heads=1", self.weights, "{out}"),
            "export": (self.text, None, "data/weights", "export", self.good, "{out}"),
            "record": (self.text, None, lesson, *MODEL, "--steps=2", "--record={out}"),
            "prepare": (self.text, None, "data/prepare", self.text, "{out}"),
            "checkpoint of two ranks": (self.good, 2, "lessons/04_zero1", *MODEL, "--steps=2", "--checkpoint={out}",
                                        "--resume"),
        }

    def must_run(self, program, *options):
        done = self.run_program(*options, program=program)
        self.assertEqual(done.returncode, 0, done.stderr)

    def try_it(self, name, folder, environment=None):
        """Runs the command on the file `out.h5` in this folder, which contains `before`. Returns its status and output."""
        before, ranks, program, *options = self.commands[name]
        out = os.path.join(folder, "out.h5")
        if not os.path.exists(out):
            shutil.copy(before, out)
        launcher = [] if ranks is None else ["mpirun", "-np", str(ranks)]
        command = [*launcher, os.path.join(BUILD, program), *(option.replace("{out}", out) for option in options)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=TIME_LIMIT_S,
                              env={**os.environ, **(environment or {})})
        return done.returncode, done.stdout + done.stderr

    def assert_nothing_lost(self, name, folder, status, text):
        """After a run on a full disk: what was there is there; or all that was to be written is, where the disk was
        full only for what came after."""
        before, out = self.commands[name][0], os.path.join(folder, "out.h5")
        self.assertIn(status, (0, 1, 2), text)
        self.assertEqual(temporaries(out), [], text)
        if status != 0:
            self.assertIn(NO_SPACE, text)
            self.assertIn(out, text)
            self.assertEqual(text.count("error:") if status == 2 else text.count("rank 0 of ") + text.count("rank 1 of "), 1, text)
        if status != 0 and filecmp.cmp(before, out, shallow=False):
            return
        if name.startswith("checkpoint"):
            self.assertTrue(filecmp.cmp(self.better, out, shallow=False), text)
        elif name == "import":
            self.assertTrue(filecmp.cmp(self.imported, out, shallow=False), text)
        elif name == "export":
            self.assertTrue(filecmp.cmp(self.weights, out, shallow=False), text)
        else:  # reports have times in them
            self.assertFalse(filecmp.cmp(before, out, shallow=False), text)
            self.assertGreater(os.path.getsize(out), 0)


class FailingCalls(FullDisk):
    program = "lessons/01_single_device"

    def folder_for(self, *words):
        path = os.path.join(self.folder, "-".join(str(word) for word in words))
        os.makedirs(path)
        return path

    def count(self, name):
        """Number of calls when none fails."""
        folder, log = self.folder_for(name, "count"), os.path.join(self.folder, f"calls of {name}")
        status, text = self.try_it(name, folder, failing(folder, log=log))
        self.assertEqual(status, 0, text)
        return len(calls_in(log))

    def fail_at(self, name, call, once):
        folder, log = self.folder_for(name, call, once), os.path.join(self.folder, f"calls of {name} {call} {once}")
        more = {"once": 1} if once else {}
        status, text = self.try_it(name, folder, failing(folder, call=call, log=log, **more))
        with self.subTest(name=name, call=call, once=once):
            self.assert_nothing_lost(name, folder, status, text)
            if status == 0:  # only calls on the lock have failed, or the first, which closes the old file unchanged
                failed = calls_in(log)[max(call, 2) - 1:call if once else None]
                self.assertEqual([file for _, file in failed if ".lock" not in file], [], text)
        return status

    def test_every_call(self):
        for name in self.commands:
            if self.commands[name][1] is not None:
                continue  # below
            calls = self.count(name)
            self.assertGreater(calls, 5, name)
            tries = [(name, call, False) for call in range(1, calls + 1)]
            tries += [(name, call, True) for call in range(1, calls + 1, ONCE_EVERY)]
            with concurrent.futures.ThreadPoolExecutor(max_workers=8) as pool:
                statuses = list(pool.map(lambda arguments: self.fail_at(*arguments), tries))
            print(f"{name}: {calls} calls; " + ", ".join(f"status {s}: {statuses.count(s)}" for s in sorted(set(statuses))))

    def test_calls_of_two_ranks(self):
        for call in (3, 6, 12, 20, 28, 33, 36):
            self.fail_at("checkpoint of two ranks", call, False)


class SmallFileSystem(FullDisk):
    program = "lessons/01_single_device"

    def test_every_size(self):
        if not os.environ.get(INSIDE):
            self.skipTest("this system does not let the test mount a file system")
        mount = os.path.join(self.folder, "mount")
        os.makedirs(mount)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", mount], check=True)
        self.addCleanup(subprocess.run, ["umount", "-l", mount], check=True)
        for name in self.commands:
            before, statuses = self.commands[name][0], []
            kib = (os.path.getsize(before) + 4095) // 4096 * 4
            while True:
                subprocess.run(["mount", "-o", f"remount,size={kib}k", mount], check=True)
                status, text = self.try_it(name, mount)
                statuses.append(status)
                with self.subTest(name=name, kib=kib):
                    self.assert_nothing_lost(name, mount, status, text)
                    self.assertEqual(os.listdir(mount), ["out.h5"], text)
                if status == 0 or kib > 4000:
                    break
                kib += 4
            self.assertEqual(statuses[-1], 0, text)
            self.assertGreater(len(statuses), 1, f"{name} was never on a full disk")
            os.remove(os.path.join(mount, "out.h5"))


def own_mounts():
    """The words that start a program where its mounts are its own; None where that is not allowed."""
    for words in (["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"]):
        probe = [*words, "sh", "-c", "mount -t tmpfs tmpfs /mnt"]
        try:
            if subprocess.run(probe, capture_output=True, check=False).returncode == 0:
                return words
        except OSError:
            return None
    return None


if __name__ == "__main__":
    if not os.environ.get(INSIDE) and (words := own_mounts()) is not None:
        os.environ[INSIDE] = "1"
        os.execvp(words[0], [*words, sys.executable, *sys.argv])
    unittest.main(verbosity=2)
