#!/usr/bin/env python3
"""Tests scripts/course/sandbox.py: each limit is reached and each escape is tried, by attempts.cpp."""

import os
import pathlib
import pty
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parents[3] / "scripts/course"
sys.path.insert(0, str(SCRIPTS))
sys.dont_write_bytecode = True

import sandbox_walls  # noqa: E402
from exercise_tree import Refused  # noqa: E402
from sandbox import Deadline, Limits, Sandbox, used_bytes  # noqa: E402

SOURCE = pathlib.Path(__file__).with_name("attempts.cpp")
COMPILER = shutil.which("g++") or shutil.which("c++")
WORKS = sandbox_walls.bubblewrap_works()
SECRET = "RANKWISE_SECRET_OF_THE_COURSE"
os.environ[SECRET] = "the seed"

# Twice as many types at each depth: a compiler that meets it needs memory and time without end.
ENDLESS_TYPES = b"""
template<int depth, long number> struct Tree {
  static constexpr long leaves = Tree<depth - 1, 2 * number>::leaves + Tree<depth - 1, 2 * number + 1>::leaves;
};
template<long number> struct Tree<0, number> { static constexpr long leaves = 1; };
int main() { return Tree<60, 1>::leaves == 0; }
"""


def in_hurry(limit_s):
    """A deadline that does not depend on the machine."""
    deadline = Deadline(limit_s)
    deadline._end += limit_s - deadline.limit_s
    return deadline


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
        box = cls.sandbox(writable=cls.made)
        done = box.run([COMPILER, "-std=c++20", "-o", cls.made / "attempts", "attempts.cpp"])
        assert done.reason == "ended" and done.status == 0, done
        cls.program = cls.made / "attempts"

    @classmethod
    def sandbox(cls, limit_s=60, **arguments):
        limits = arguments.pop("limits", {})
        return Sandbox(cls.tree, limits=Limits(**limits), deadline=in_hurry(limit_s), **arguments)

    def attempt(self, *words, **arguments):
        """How one attempt ended in a sandbox of its own."""
        return self.sandbox(read_only=[self.made], **arguments).run([self.program, *words])

    def refused(self, *words):
        done = self.attempt(*words)
        self.assertEqual((done.status, done.reason, done.stdout[:7]), (0, "ended", b"refused"), done)


@unittest.skipIf(WORKS is not True, f"no sandbox here: {WORKS}")
class Limited(SandboxTest):
    """What a command may use."""

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
        with self.assertRaisesRegex(RuntimeError, "bwrap ended with status 1 "):
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

    def test_endless_types(self):
        box = self.sandbox(limit_s=10, limits={"memory": 300 << 20})
        done = box.run([COMPILER, "-x", "c++", "-std=c++20", "-o", "/tmp/a", "-"], stdin=ENDLESS_TYPES)
        wanted = ("too much memory", "timed out") if "control groups" in done.protection else ("ended", "timed out")
        self.assertIn(done.reason, wanted)
        self.assertNotEqual(done.status, 0)


@unittest.skipIf(WORKS is not True, f"no sandbox here: {WORKS}")
class Escapes(SandboxTest):
    """What a command may not do, and what it may not see."""

    def test_daemon_ends_with_its_command(self):
        done = self.attempt("daemon", str(self.files))
        self.assertEqual((done.status, done.reason), (0, "ended"))
        self.assertEqual(alive(["daemon", str(self.files)]), [])

    def test_killing_all(self):
        done = self.attempt("kill_all")
        self.assertEqual((done.status, done.stdout), (0, b"still here\n"), done)

    def test_killing_and_tracing_the_caller(self):
        done = self.sandbox().run(["sh", "-c", f"kill -9 {os.getpid()}"])
        self.assertIn(b"No such process", done.stderr)
        for pid in (os.getpid(), 1):
            self.refused("ptrace", str(pid))

    def test_other_processes_are_not_seen(self):
        done = self.sandbox().run(["sh", "-c", "cd /proc; ls -d [0-9]* | wc -l; cat /proc/[0-9]*/environ"])
        self.assertLess(int(done.stdout.split(b"\n")[0]), 6)
        self.assertNotIn(SECRET.encode(), done.stdout)

    def test_files_of_others(self):
        home = pathlib.Path.home() / ".profile"
        for path in ("/etc/shadow", "/etc/passwd", str(home), str(SOURCE), "/proc/kcore", "/sys/kernel/notes"):
            self.refused("read", path)
        self.assertNotEqual(self.sandbox().run(["ls", str(SOURCE.parent)]).status, 0)

    def test_what_is_read_only(self):
        tree = str(self.tree)
        for path in (f"{tree}/attempts.cpp", f"{tree}/new", "/new", "/etc/new", "/usr/new", "/dev/new", "/sys/new",
                     "/proc/sys/kernel/hostname", f"{self.program}"):
            with self.subTest(path):
                self.refused("write", path)
        self.assertEqual(self.attempt("write", "/tmp/new").stdout, b"done\n")
        self.assertEqual(sorted(os.listdir(self.tree)), ["attempts.cpp"])

    def test_a_link_leads_nowhere(self):
        with tempfile.TemporaryDirectory(dir=self.files) as folder:
            outside = self.files / "secret"
            outside.write_text("secret")
            box = self.sandbox(writable=folder)
            script = f"ln -s {outside} link; ln -s .. folder; mkfifo fifo; mkdir in; echo mine >in/file; cat link"
            done = box.run(["sh", "-c", script], cwd=folder)
            self.assertNotEqual(done.status, 0)
            self.assertEqual(box.read("in/file"), b"mine\n")
            for name in ("link", "folder/secret", "fifo", "in", "../secret", str(outside), "in/file/x", "none"):
                with self.assertRaises(Refused, msg=name):
                    box.read(name)
            with self.assertRaises(Refused):
                box.read("in/file", limit_bytes=4)

    def test_no_network_but_loopback(self):
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            server.listen(1)
            self.refused("connect", "1.1.1.1")
            self.refused("connect", "127.0.0.1")
            self.assertEqual(self.attempt("loopback").stdout, b"done\n")

    def test_environment(self):
        done = self.sandbox().run(["env"], env={"OF_THE_TEST": "1"})
        names = {line.split(b"=")[0].decode() for line in done.stdout.splitlines()}
        self.assertNotIn(SECRET, names)
        self.assertNotIn("LD_PRELOAD", names)
        self.assertLessEqual({"PATH", "HOME", "OF_THE_TEST", "OMPI_ALLOW_RUN_AS_ROOT"}, names)

    def test_no_terminal(self):
        master, slave = pty.openpty()
        box = self.sandbox(read_only=[self.made])
        with open(slave, "rb", buffering=0) as terminal, \
                box.start([self.program, "push_into_terminal"], stdin=terminal, stdout=subprocess.PIPE) as process:
            self.assertEqual(process.stdout.read()[:7], b"refused")
        os.close(master)
        self.refused("read", "/dev/tty")

    def test_user(self):
        self.assertEqual(self.attempt("user").stdout, b"65534 -1\n")
        self.refused("new_user_namespace")

    def test_set_uid_programs(self):
        program = self.files / "set_uid"
        shutil.copy(self.program, program)
        program.chmod(0o4755)
        done = self.sandbox(read_only=[program]).run([program, "user"])
        self.assertEqual(done.stdout, b"65534 -1\n")
        status = self.sandbox().run(["cat", "/proc/self/status"]).stdout.decode()
        self.assertRegex(status, r"NoNewPrivs:\s+1\n")
        self.assertRegex(status, r"CapEff:\s+0+\n")
        self.assertRegex(status, r"CapBnd:\s+0+\n" if os.getuid() == 0 else "CapBnd")

    def test_open_files(self):
        secret = os.open(SOURCE, os.O_RDONLY)
        os.set_inheritable(secret, True)
        first, second = socket.socketpair()
        with first, second:
            box = self.sandbox(read_only=[self.made])
            passed = second.fileno()
            with box.start([self.program, "open_files"], stdout=subprocess.PIPE, pass_fds=(passed,)) as process:
                self.assertEqual(process.stdout.read().split(), [b"0", b"1", b"2", str(passed).encode()])
        os.close(secret)

    def test_mpi_starts(self):
        if not shutil.which("mpirun"):
            self.skipTest("no mpirun")
        done = self.sandbox().run(["mpirun", "-np", "3", "sh", "-c", "echo $OMPI_COMM_WORLD_RANK"])
        self.assertEqual(sorted(done.stdout.split()), [b"0", b"1", b"2"], done)


@unittest.skipIf(WORKS is not True, f"no sandbox here: {WORKS}")
class Conversations(SandboxTest):
    """A command that the caller speaks with."""

    def test_through_an_inherited_socket(self):
        first, second = socket.socketpair()
        box = self.sandbox(read_only=[self.made])
        with first, box.start([self.program, "capitals", str(second.fileno())], pass_fds=(second.fileno(),)) as process:
            second.close()
            first.sendall(b"norm")
            answer = b""
            while len(answer) < 4:
                answer += first.recv(4)
            self.assertEqual((answer, process.poll()), (b"NORM", None))
            first.close()
            self.assertEqual(process.wait().reason, "ended")

    def test_the_end_of_the_context_ends_all(self):
        box = self.sandbox(read_only=[self.made])
        with box.start(["sh", "-c", f'"{self.program}" ignore_signals {self.files} & echo up; wait'],
                       stdout=subprocess.PIPE) as process:
            self.assertEqual(process.stdout.readline(), b"up\n")
            self.assertNotEqual(process.survivors(), set())
        self.assertEqual(process.survivors(), set())
        self.assertEqual(alive(["ignore_signals", str(self.files)]), [])
        self.assertEqual(process.wait().reason, "killed")

    def test_time_ends_while_the_caller_listens(self):
        box = self.sandbox(read_only=[self.made], limit_s=1)
        with box.start([self.program, "ignore_signals"], stdout=subprocess.PIPE) as process:
            self.assertEqual(process.stdout.read(), b"")
            self.assertEqual(process.wait().reason, "timed out")

    def test_the_death_of_the_caller_ends_all(self):
        program = (f"import sys; sys.path.insert(0, {str(SCRIPTS)!r})\n"
                   "from sandbox import Sandbox\n"
                   f"Sandbox({str(self.tree)!r}, read_only=[{str(self.made)!r}]).run(\n"
                   f"    [{str(self.program)!r}, 'ignore_signals', {str(self.files)!r}])")
        with subprocess.Popen([sys.executable, "-B", "-c", program]) as caller:
            end = time.monotonic() + 20
            while not alive(["ignore_signals", str(self.files)], first=self.program) and time.monotonic() < end:
                time.sleep(0.05)
            self.assertNotEqual(alive(["ignore_signals", str(self.files)], first=self.program), [])
            caller.kill()
        while left := alive(["ignore_signals", str(self.files)]):
            self.assertLess(time.monotonic(), end, left)


class Unprotected(SandboxTest):
    """--no-sandbox: limits of each process, an end to all processes, and nothing else."""

    @classmethod
    def sandbox(cls, limit_s=60, **arguments):
        return super().sandbox(limit_s, protected=False, **arguments)

    def test_status_output_and_environment(self):
        done = self.sandbox().run(["sh", "-c", "cat; env; exit 3"], stdin=b"in\n")
        self.assertEqual((done.status, done.stdout[:3]), (3, b"in\n"))
        self.assertNotIn(SECRET.encode(), done.stdout)
        self.assertTrue(done.protection.startswith("no sandbox"), done.protection)

    def test_limits(self):
        self.assertEqual(self.attempt("spin", limit_s=1).reason, "timed out")
        self.assertEqual(self.attempt("flood", limits={"output_bytes": 10000}).reason, "too much output")
        done = self.attempt("large_file", str(self.files / "large"), limits={"file_bytes": 5 << 20})
        self.assertEqual(done.reason, "too large a file")

    def test_daemon_ends_with_its_command(self):
        self.assertEqual(self.attempt("daemon", str(self.files)).reason, "ended")
        self.assertEqual(alive(["daemon", str(self.files)]), [])


class Machines(unittest.TestCase):
    """Machines that allow less."""

    def test_without_bubblewrap_there_is_no_sandbox(self):
        script = (f"import sys; sys.path.insert(0, {str(SCRIPTS)!r})\n"
                  "import os; os.environ['PATH'] = '/nowhere'\n"
                  "from sandbox import Sandbox, Refused\n"
                  "try:\n  Sandbox('/usr')\nexcept Refused as error:\n  print(error)")
        done = subprocess.run([sys.executable, "-B", "-c", script], stdout=subprocess.PIPE, text=True, check=True)
        self.assertRegex(done.stdout, "bwrap is not on the path(.|\n)*--no-sandbox")

    @unittest.skipIf(os.getuid() != 0 or WORKS is not True, "only root can be refused a tree that is private")
    def test_a_private_tree_is_refused(self):
        with tempfile.TemporaryDirectory() as folder, self.assertRaisesRegex(Refused, r"chmod o\+rX"):
            Sandbox(folder)

    @unittest.skipIf(os.getuid() != 0, "only root can become another user")
    def test_another_user_than_root(self):
        python = next((path for path in ("/usr/bin/python3", "/usr/local/bin/python3") if os.path.exists(path)), None)
        user = ["setpriv", "--reuid=1234", "--regid=1234", "--clear-groups", "env", "HOME=/tmp"]
        me = pathlib.Path(__file__).resolve()
        if not python or subprocess.run([*user, "head", "-c1", me], stdout=subprocess.DEVNULL).returncode != 0:
            self.skipTest("no Python, or not this file, for other users")
        done = subprocess.run([*user, python, "-B", me, "-q"], stderr=subprocess.PIPE, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main()
