#!/usr/bin/env python3
"""Tests scripts/course/sandbox.py: each limit is reached."""

import os
import pathlib
import subprocess
import tempfile
import time
import unittest
import unittest.mock

from sandbox_attempts import COMPILER, WORKS, SandboxTest, alive, sandbox_walls
from processes import Deadline
from exercise_tree import Refused
from judge import LIMITS
from sandbox import Limits, Sandbox, used_bytes

# Twice as many types at each depth: a compiler that meets it needs memory and time without end.
ENDLESS_TYPES = b"""
template<int depth, long number> struct Tree {
  static constexpr long leaves = Tree<depth - 1, 2 * number>::leaves + Tree<depth - 1, 2 * number + 1>::leaves;
};
template<long number> struct Tree<0, number> { static constexpr long leaves = 1; };
int main() { return Tree<60, 1>::leaves == 0; }
"""


class Page(unittest.TestCase):
    def test_security_md_has_the_limits_of_the_judge(self):
        page = (pathlib.Path(__file__).resolve().parents[3] / "SECURITY.md").read_text(encoding="utf-8")
        for sentence in (f"{LIMITS.writable_bytes >> 20} MiB together, {LIMITS.file_bytes >> 20} MiB a file", f"{LIMITS.cpu_s} processor seconds a process",
                         f"{LIMITS.processes} processes and threads, {LIMITS.memory >> 30} GiB together"):
            self.assertIn(sentence, page)


@unittest.skipIf(WORKS is not True, f"no sandbox here: {WORKS}")
class Limited(SandboxTest):
    """Resources that a command may use."""

    def test_a_command_ends_with_its_status_and_output(self):
        box = self.sandbox()
        done = box.run(["sh", "-c", "cat; echo error >&2; exit 7"], stdin=b"some\0bytes" * 1000)
        self.assertEqual((done.status, done.reason), (7, "ended"))
        self.assertEqual((done.stdout, done.stderr), (b"some\0bytes" * 1000, b"error\n"))
        self.assertTrue(done.protection.startswith("bubblewrap"), done.protection)

    def test_a_signal_is_told_from_a_status(self):
        done = self.attempt("signal", "11")
        self.assertEqual((done.status, done.reason), (139, "killed by signal 11"))

    def test_a_command_that_is_not_there_fails(self):
        done = self.sandbox().run(["/no/such/program"])
        self.assertEqual(done.reason, "ended")
        self.assertNotEqual(done.status, 0)

    def test_a_sandbox_that_cannot_be_made(self):
        box = self.sandbox()
        box.read_only.append(self.files / "gone")
        with self.assertRaisesRegex(Refused, "bwrap ended with status 1 "):
            box.run(["true"])

    def test_fork_bomb(self):
        done = self.attempt("fork_bomb", limits={"processes": 40})
        self.assertRegex(done.stdout.decode(), r"^refused after (2|3)\d\n")
        if "control groups" in done.protection:
            self.assertEqual(done.reason, "too many processes")

    def test_memory_of_one_process(self):
        done = self.attempt("eat_memory", limits={"memory": 200 << 20})
        wanted = "too much memory" if "control groups" in done.protection else "killed by signal 6"
        self.assertEqual(done.reason, wanted)

    def test_memory_of_several_processes(self):
        if not sandbox_walls.control_groups():
            self.skipTest("only control groups add up what several processes use")
        done = self.attempt("eat_together", str(90 << 20), limits={"memory": 200 << 20, "processes": 20}, limit_s=20)
        self.assertEqual(done.reason, "too much memory")

    def test_disk(self):
        for folder, share in (("/tmp", 3), ("/dev/shm", 1)):
            done = self.attempt("fill", folder, limits={"writable_bytes": 32 << 20})
            self.assertEqual((done.reason, int(done.stdout)), ("ended", share * (8 << 20)), folder)

    def test_folder_that_stays(self):
        with tempfile.TemporaryDirectory(dir=self.files) as folder:
            box = self.sandbox(writable=folder, read_only=[self.made], limits={"writable_bytes": 64 << 20})
            done = box.run(["sh", "-c", f'while :; do "{self.program}" fill {folder}; sleep 0.01; done'])
            self.assertEqual(done.reason, "too many bytes written")
            self.assertGreater(used_bytes(folder), 64 << 20)

    def test_large_file(self):
        done = self.attempt("large_file", "/tmp/large", limits={"file_bytes": 5 << 20})
        self.assertEqual((done.reason, done.status), ("too large a file", 153))

    def test_output(self):
        done = self.attempt("flood", limits={"output_bytes": 10000})
        self.assertEqual((done.reason, len(done.stdout)), ("too much output", 10000))

    def test_output_in_a_file(self):
        for stream in ("stdin", "stdout"):
            with tempfile.TemporaryFile() as file, self.sandbox().start(["sh", "-c", f"head -c 20000000 /dev/zero >&{int(stream == 'stdout')}; sleep 60"],
                                                                        **{stream: file}) as process:
                self.assertEqual(process.wait().reason, "too much output", stream)

    def test_output_in_the_background(self):
        began = time.monotonic()
        done = self.sandbox().run(["sh", "-c", "sleep 50 & echo early"])
        self.assertEqual((done.reason, done.stdout), ("ended", b"early\n"))
        self.assertLess(time.monotonic() - began, 20)

    def test_endless_loop(self):
        done = self.attempt("spin", limit_s=1)
        self.assertEqual(done.reason, "timed out")

    def test_processor_time(self):
        done = self.attempt("spin", limits={"cpu_s": 1})
        self.assertEqual(done.reason, "too much processor time")

    def test_signals_cannot_be_ignored_when_time_is_over(self):
        done = self.attempt("ignore_signals", limit_s=1)
        self.assertEqual(done.reason, "timed out")
        self.assertEqual(alive(["ignore_signals", str(self.program)]), [])

    def test_one_deadline_for_all_commands(self):
        box = self.sandbox(limit_s=2)
        self.assertEqual(box.run(["sleep", "0.8"]).reason, "ended")
        self.assertEqual(box.run(["sleep", "30"]).reason, "timed out")
        self.assertEqual(box.run(["sleep", "30"]).reason, "timed out")

    def test_a_machine_that_becomes_slower_gives_more_time(self):
        with unittest.mock.patch("processes.slowness", return_value=1), unittest.mock.patch("processes.machine_s") as machine_s:
            machine_s.return_value = 100
            deadline = Deadline(0.01)
            time.sleep(0.02)
            self.assertLess(deadline.left_s(), 0)
            machine_s.return_value = 107 + 0.1 * os.cpu_count()
            deadline.count("a command", 7, asleep=False)
            self.assertGreater(deadline.left_s(), 0)  # others have used 0.1 s of each processor
            deadline.end("another one", 7)
            self.assertLess(deadline.left_s(), 0)
            deadline.count("a command", 7, asleep=True)
            machine_s.return_value = 1e9
            self.assertLess(deadline.left_s(), 0)  # this was taken from none of them
            deadline.end("a command")
            machine_s.return_value = 2e9
            self.assertGreater(deadline.left_s(), 0)
            self.assertLess(deadline.left_s(), 0.2)  # 20 times the time, whatever others use

    def test_sleep_is_noticed(self):
        for words in (["sleep", "1000"], [self.program, "sleep_of_parents"]):  # what the kernel counts as load, too
            with unittest.mock.patch("sandbox.ASLEEP_S", 0.5), self.sandbox(read_only=[self.made]).start(words) as process, \
                    unittest.mock.patch.object(process._box.deadline, "count") as count:
                end = time.monotonic() + 20
                while not (count.call_args and count.call_args[0][2]):
                    self.assertLess(time.monotonic(), end)
                    time.sleep(0.1)

    def test_own_load_gives_no_time(self):
        for lives in ("spin_together", "short_lives"):
            with unittest.mock.patch("processes.slowness", return_value=1):
                deadline = Deadline(1)
            done = Sandbox(self.tree, Limits(processes=100), deadline, [self.made]).run([self.program, lives])
            self.assertEqual(done.reason, "timed out")
            if "control groups" in done.protection:  # elsewhere processes that have ended are not counted
                self.assertGreater(deadline.used_s(), 0.1)
                self.assertLess(deadline.used_s(), 3 * os.cpu_count())

    def test_what_cannot_be_watched_is_ended(self):
        with tempfile.TemporaryDirectory(dir=self.files) as folder, unittest.mock.patch("sandbox.used_bytes", side_effect=KeyError("x")):
            done = self.sandbox(writable=folder).run(["sleep", "1000"])
        self.assertEqual(done.reason, "not to be watched: KeyError: 'x'")

    def test_folders_in_one_another(self):
        folder = tempfile.mkdtemp(dir=self.files)
        self.addCleanup(subprocess.run, ["rm", "-rf", folder], check=True)  # deeper than Python's own walk
        done = self.sandbox(writable=folder, read_only=[self.made]).run([self.program, "nest", folder])
        self.assertEqual(done.reason, "too many bytes written")

    def test_used_bytes_follows_no_link(self):
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as outside:
            pathlib.Path(outside, "large").write_bytes(bytes(1 << 20))
            os.symlink(outside, f"{folder}/link")
            os.mkfifo(f"{folder}/pipe")
            self.assertLess(used_bytes(folder), 1 << 20)
            self.assertEqual(used_bytes(f"{folder}/gone"), 0)

    def test_endless_types(self):
        box = self.sandbox(limit_s=10, limits={"memory": 300 << 20})
        done = box.run([COMPILER, "-x", "c++", "-std=c++20", "-o", "/tmp/a", "-"], stdin=ENDLESS_TYPES)
        wanted = ("too much memory", "timed out") if "control groups" in done.protection else ("ended", "timed out")
        self.assertIn(done.reason, wanted)
        self.assertNotEqual(done.status, 0)


if __name__ == "__main__":
    unittest.main()
