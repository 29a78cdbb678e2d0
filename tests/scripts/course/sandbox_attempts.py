"""Base of the tests of scripts/course/sandbox.py: attempts.cpp, compiled in a sandbox, and ways to start it."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parents[3] / "scripts/course"
sys.path.insert(0, str(SCRIPTS))
sys.dont_write_bytecode = True

import sandbox_walls  # noqa: E402
from sandbox import Deadline, Limits, Sandbox  # noqa: E402

SOURCE = pathlib.Path(__file__).with_name("attempts.cpp")
COMPILER = shutil.which("g++") or shutil.which("c++")
WORKS = sandbox_walls.bubblewrap_works()
SECRET = "RANKWISE_SECRET_OF_THE_COURSE"
os.environ[SECRET] = "the seed"


class InHurry(Deadline):
    """A deadline that does not depend on the machine."""

    def left_s(self):
        return self._began + self.idle_s - time.monotonic()


def alive(words, first=""):
    """The processes of this machine whose command has all the words, and begins with the first."""
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().split(b"\0")
        except OSError:
            continue
        if all(word.encode() in line for word in words) and (not first or line[0] == str(first).encode()):
            found.append(entry.parent.name)
    return found


class SandboxTest(unittest.TestCase):
    """The attempts, compiled once, in a sandbox."""

    @classmethod
    def setUpClass(cls):
        holder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(holder.cleanup)
        cls.files = pathlib.Path(holder.name)
        cls.files.chmod(0o755)
        cls.tree, cls.made = cls.files / "tree", cls.files / "made"
        for folder in (cls.tree, cls.made):
            folder.mkdir()
        shutil.copy(SOURCE, cls.tree)
        (cls.tree / SOURCE.name).chmod(0o666)  # what may be written is read-only inside all the same
        cls.tree.chmod(0o777)
        box = cls.sandbox(writable=cls.made)
        done = box.run([COMPILER, "-std=c++20", "-o", cls.made / "attempts", "attempts.cpp"])
        assert done.reason == "ended" and done.status == 0, done
        cls.program = cls.made / "attempts"

    @classmethod
    def sandbox(cls, limit_s=60, **arguments):
        limits = arguments.pop("limits", {})
        return Sandbox(cls.tree, limits=Limits(**limits), deadline=InHurry(limit_s), **arguments)

    def attempt(self, *words, **arguments):
        """Runs one attempt in a sandbox of its own and returns how it ended."""
        return self.sandbox(read_only=[self.made], **arguments).run([self.program, *words])

    def refused(self, *words):
        done = self.attempt(*words)
        self.assertEqual((done.status, done.reason, done.stdout[:7]), (0, "ended", b"refused"), done)

    def kill_the_caller(self, **arguments):
        """Starts a caller, kills it once its command runs, and waits until that has ended too."""
        program = (f"import sys; sys.path.insert(0, {str(SCRIPTS)!r})\n"
                   "from sandbox import Sandbox\n"
                   f"Sandbox({str(self.tree)!r}, read_only=[{str(self.made)!r}], **{arguments!r}).run(\n"
                   f"    [{str(self.program)!r}, 'ignore_signals', {str(self.files)!r}])")
        with subprocess.Popen([sys.executable, "-B", "-c", program]) as caller:
            end = time.monotonic() + 20
            while not alive(["ignore_signals", str(self.files)], first=self.program) and time.monotonic() < end:
                time.sleep(0.05)
            self.assertNotEqual(alive(["ignore_signals", str(self.files)], first=self.program), [])
            caller.kill()
        while left := alive(["ignore_signals", str(self.files)]):
            self.assertLess(time.monotonic(), end, left)
