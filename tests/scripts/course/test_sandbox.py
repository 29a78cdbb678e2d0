#!/usr/bin/env python3
"""Tests scripts/course/sandbox.py: each escape is tried, by attempts.cpp."""

import os
import pathlib
import platform
import pty
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

from sandbox_attempts import SCRIPTS, SECRET, SOURCE, WORKS, SandboxTest, alive, sandbox_walls
from exercise_tree import Refused
from sandbox import Sandbox


@unittest.skipIf(WORKS is not True, f"no sandbox here: {WORKS}")
class Escapes(SandboxTest):
    """Acts that a command may not do, and files that it may not see."""

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

    def test_calls_of_the_kernel(self):
        if not sandbox_walls.system_call_filter():
            self.skipTest("no filter for this processor")
        _, denied, _ = sandbox_walls.DENIED[platform.machine()]
        for name, number in denied.items():
            with self.subTest(name):
                self.assertEqual(self.attempt("call", str(number)).stdout, b"refused: Operation not permitted\n")
        for command in sandbox_walls.SEEN_BY_ALL:
            self.assertEqual(self.attempt("fcntl", str(command)).stdout, b"refused: Operation not permitted\n")
        self.assertEqual(self.attempt("call", str(sandbox_walls.FLOCK[platform.machine()])).stdout, b"done\n")  # without a lock

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
        self.kill_the_caller()


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

    def test_the_death_of_the_caller_ends_the_command(self):
        self.kill_the_caller(protected=False)

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

    @unittest.skipIf(WORKS is not True, "no sandbox here")
    def test_bubblewrap_is_that_of_the_path_wherever_it_is(self):
        with tempfile.TemporaryDirectory() as folder:
            bwrap, called = pathlib.Path(folder, "bwrap"), pathlib.Path(folder, "called")
            bwrap.write_text(f'#!/bin/sh\necho >>{called}\nexec {shutil.which("bwrap")} "$@"\n')
            bwrap.chmod(0o755)
            with unittest.mock.patch.dict(os.environ, PATH=f"{folder}:{os.environ['PATH']}"):
                done = Sandbox("/usr").run(["echo", "inside"])
            self.assertEqual((done.stdout, called.exists()), (b"inside\n", True))

    def test_who_forbids_namespaces_is_named_with_what_allows_them(self):
        with tempfile.NamedTemporaryFile("w+") as switch:
            ubuntu = [(switch.name, *sandbox_walls.SWITCHES[0][1:])]
            self.assertIn("outside of it, or start it with docker run", sandbox_walls.how_to_allow_namespaces(ubuntu))
            switch.write("1\n")
            switch.flush()
            self.assertRegex(sandbox_walls.how_to_allow_namespaces(ubuntu), "^AppArmor, as on Ubuntu 24.04 .* sudo sysctl -w "
                             "kernel.apparmor_restrict_unprivileged_userns=0; .*/etc/sysctl.d/")

    @unittest.skipIf(os.getuid() != 0 or WORKS is not True, "only root can be refused a tree that is private")
    def test_a_private_tree_is_refused(self):
        with tempfile.TemporaryDirectory() as folder, self.assertRaisesRegex(Refused, r"chmod o\+rX"):
            Sandbox(folder)

    @unittest.skipIf(os.getuid() != 0 or WORKS is not True, "only root gives folders away")
    def test_only_the_folder_itself_is_given_away(self):
        with tempfile.TemporaryDirectory() as outside, tempfile.TemporaryDirectory() as holder:
            folder, other, victim = pathlib.Path(holder, "folder"), pathlib.Path(holder, "other"), pathlib.Path(outside, "victim")
            for made in (folder, other):
                made.mkdir()
            victim.touch()
            Sandbox("/usr", writable=folder)
            os.link(victim, folder / "mine")  # what another command of the same folder could have put there since
            os.symlink(outside, folder / "link")
            Sandbox("/usr", writable=folder)
            self.assertEqual([os.lstat(path).st_uid for path in (folder, victim, folder / "link")], [65534, 0, 0])
            os.link(victim, other / "mine")
            with self.assertRaisesRegex(Refused, "other is not empty. Name an empty folder"):
                Sandbox("/usr", writable=other)
            self.assertEqual(os.stat(outside).st_uid, 0)

    @unittest.skipIf(os.getuid() != 0, "only root can become another user")
    def test_another_user_than_root(self):
        python = next((path for path in ("/usr/bin/python3", "/usr/local/bin/python3") if os.path.exists(path)), None)
        user = ["setpriv", "--reuid=1234", "--regid=1234", "--clear-groups", "env", "HOME=/tmp"]
        me = pathlib.Path(__file__).resolve()
        if not python or subprocess.run([*user, "head", "-c1", me], stdout=subprocess.DEVNULL).returncode != 0:
            self.skipTest("no Python, or not this file, for other users")
        for test in (me, me.with_name("test_sandbox_limits.py")):
            done = subprocess.run([*user, python, "-B", test, "-q"], stderr=subprocess.PIPE, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main()
