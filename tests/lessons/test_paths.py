"""The files that a run names: what is replaced, what is written to, what is refused, and two jobs on one checkpoint."""

import filecmp
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import threading
import time
import unittest

from failing_calls import failing
from program_case import BUILD, ProgramCase, temporaries

MODEL = ("--layers=1", "--channels=8", "--heads=1", "--context=8", "--vocabulary=256", "--global-batch=2", "--steps=1")
TIME_LIMIT_S = 60


class Paths(ProgramCase):
    program = "lessons/01_single_device"

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, content="content"):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(content)
        return self.path(name)

    def read(self, name):
        with open(self.path(name), encoding="utf-8") as file:
            return file.read()

    def must_run(self, *options, program=None):
        done = self.run_program(*options, program=program)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done

    def devices(self):
        """Names of the device that swallows everything: one that could be replaced where this user may make one."""
        os.symlink("/dev/null", self.path("link"))
        names = [self.path("link")]
        if os.geteuid() == 0:
            try:
                os.mknod(self.path("null"), stat.S_IFCHR | 0o666, os.makedev(1, 3))
                names.append(self.path("null"))
            except PermissionError:  # not in a container
                pass
        return names

    def test_a_device_is_written_to_and_not_replaced(self):
        for name in self.devices():
            self.must_run(*MODEL, f"--report={name}", f"--trace={name}")
            self.assertTrue(stat.S_ISCHR(os.stat(name).st_mode), name)
            self.assert_refused(*MODEL, f"--checkpoint={name}", says=[f"--checkpoint={name}", "a device or a pipe"])
        self.assertTrue(os.path.islink(self.path("link")))
        self.assertEqual(temporaries(self.path("link")), [])

    def test_a_full_device(self):
        for option in ("--report", "--trace"):
            done = self.run_program(*MODEL, f"{option}=/dev/full")
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn("/dev/full: No space left on device", done.stderr)
        self.write("text.txt", "some words " * 100)
        for program, *words in [(self.program, "--help"), (self.program, "--dry-run"),
                                ("data/prepare", self.path("text.txt"), self.path("tokens.h5"))]:
            with self.subTest(program=program, words=words), open("/dev/full", "w", encoding="utf-8") as full:
                done = subprocess.run([os.path.join(BUILD, program), *words], stdout=full, stderr=subprocess.PIPE, text=True,
                                      timeout=TIME_LIMIT_S)
                self.assertRegex(done.stderr, "cannot print the (help|report|result): No space left on device")
                self.assertEqual(done.returncode, 1)

    def test_closed_standard_streams(self):
        saved = self.path("run.h5")
        done = subprocess.run(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", os.path.join(BUILD, self.program), *MODEL, f"--checkpoint={saved}"],
                              check=False, timeout=TIME_LIMIT_S)
        self.assertEqual(done.returncode, 1)  # nothing could be printed
        self.assertEqual(os.listdir(self.folder), [])

    def test_standard_output(self):
        with open(self.path("output"), "w+", encoding="utf-8") as output:
            subprocess.run([os.path.join(BUILD, self.program), *MODEL, "--report=/dev/stdout"], stdout=output, check=True,
                           timeout=TIME_LIMIT_S)
            output.seek(0)
            text = output.read()
        self.assertIn("# lesson 01_single_device", text)  # what was printed before
        self.assertTrue(text.endswith("}\n"))

    def test_a_pipe(self):
        os.mkfifo(self.path("pipe"))
        got = []
        reader = threading.Thread(target=lambda: got.append(self.read("pipe")))
        reader.start()
        self.must_run(*MODEL, f"--report={self.path('pipe')}")
        reader.join(TIME_LIMIT_S)
        self.assertIn('"digest"', got[0])
        for option in ("checkpoint", "initial", "data"):
            self.assert_refused(*MODEL, f"--{option}={self.path('pipe')}", says=["a device or a pipe"])

    def test_a_signal_ends_the_wait_for_the_reader_of_a_pipe(self):
        os.mkfifo(self.path("pipe"))
        with subprocess.Popen([os.path.join(BUILD, self.program), *MODEL, f"--report={self.path('pipe')}"], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True) as run:
            self.addCleanup(run.kill)
            while "digest" not in run.stdout.readline() and run.poll() is None:
                pass
            for _ in range(50):  # one that comes before the wait begins does not end it
                time.sleep(0.5)
                run.terminate()
                if run.poll() is not None:
                    break
            self.assertEqual(run.wait(10), 128 + signal.SIGTERM)
            self.assertIn("no program has opened this pipe to read before a signal came", run.stderr.read())

    def test_a_pipe_whose_reader_leaves(self):
        os.mkfifo(self.path("pipe"))
        for lines, steps, status in ((1, 2000, 1), (1000, 9, 0)):
            with subprocess.Popen(["head", "-n", str(lines), self.path("pipe")], stdout=subprocess.PIPE, text=True) as reader:
                done = self.run_program(*MODEL[:-1], f"--steps={steps}", f"--log={self.path('pipe')}")
                self.assertEqual(done.returncode, status, done.stdout + done.stderr)
                self.assertEqual(len(reader.communicate()[0].splitlines()), min(lines, 11))  # the run, its steps, validation
            self.assertEqual("cannot write to" in done.stderr and "Broken pipe" in done.stderr, status == 1, done.stderr)

    def test_links(self):
        os.mkdir(self.path("far"))
        os.symlink("far/run.h5", self.path("link.h5"))
        os.symlink("loop", self.path("loop"))
        self.must_run(*MODEL, f"--checkpoint={self.path('link.h5')}")
        self.assertTrue(os.path.islink(self.path("link.h5")))
        self.assertEqual(os.listdir(self.path("far")), ["run.h5"])
        for option in ("--checkpoint", "--report", "--trace"):
            self.assert_refused(*MODEL, f"{option}={self.path('loop')}", says=["is a cyclic symbolic link"])

    def test_a_file_that_is_replaced_keeps_its_permissions_and_owner(self):
        options = {"--checkpoint": "run.h5", "--report": "run.json", "--trace": "trace.json", "--html": "run.html"}
        for name in options.values():
            os.chmod(self.write(name), 0o640)
            if os.geteuid() == 0:
                os.chown(self.path(name), 1234, 2345)
        before = {name: os.stat(self.path(name)) for name in options.values()}
        os.remove(self.path("run.h5"))  # it would be no checkpoint
        self.must_run(*MODEL, *(f"{option}={self.path(name)}" for option, name in options.items()))
        os.chmod(self.path("run.h5"), 0o600)
        before["run.h5"] = os.stat(self.path("run.h5"))
        self.must_run(*MODEL[:-1], f"--checkpoint={self.path('run.h5')}", "--resume", "--steps=2")
        for name, old in before.items():
            new = os.stat(self.path(name))
            with open(self.path(name), "rb") as file:
                self.assertNotEqual(file.read(), b"content", name)
            self.assertEqual((new.st_mode, new.st_uid, new.st_gid), (old.st_mode, old.st_uid, old.st_gid), name)

    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("setpriv"), "only root can stop being allowed to give files away")
    def test_an_owner_that_cannot_be_kept_is_found_out_before_the_first_step(self):
        without = ["setpriv", "--bounding-set=-chown"]
        if subprocess.run([*without, "true"], capture_output=True, check=False).returncode != 0:
            self.skipTest("capabilities cannot be given up here")
        os.chown(self.write("run.json"), 1234, 2345)
        done = subprocess.run([*without, os.path.join(BUILD, self.program), *MODEL,
                               f"--report={self.path('run.json')}"], capture_output=True, text=True, timeout=TIME_LIMIT_S)
        self.assert_is_refusal(done, ["--report=", "Operation not permitted", "the owner, permissions and attributes of the old file"])
        self.assertEqual((self.read("run.json"), os.listdir(self.folder)), ("content", ["run.json"]))

    def test_a_file_that_is_write_protected_is_not_replaced(self):
        os.chmod(self.write("run.json"), 0o444)
        for option in ("--report", "--checkpoint", "--trace"):
            self.assert_refused(*MODEL, f"{option}={self.path('run.json')}", says=[option, "is write-protected", "chmod u+w"])
        self.assertEqual(self.read("run.json"), "content")

    def test_names_as_long_as_they_may_be(self):
        """Temporary and lock files have names that are derived from these."""
        for length in (230, 240, 250, 255):
            names = {option: self.path((option[2:6] + "é" * (length // 2 - 2)).ljust(length - length // 2 + 2, "x"))
                     for option in ("--checkpoint", "--report", "--trace", "--html")}
            self.assertEqual({len(os.fsencode(os.path.basename(name))) for name in names.values()}, {length})
            self.must_run(*MODEL, *(f"{option}={name}" for option, name in names.items()))
            self.assertEqual(sorted(os.path.join(self.folder, name) for name in os.listdir(self.folder)), sorted(names.values()))
            for name in names.values():
                os.remove(name)
        for option in ("--checkpoint", "--report"):
            self.assert_refused(*MODEL, f"{option}={self.path('x' * 256)}", says=[option, "its name is too long", "255 bytes"])
        self.assertEqual(os.listdir(self.folder), [])

    def test_names_and_prompts_of_any_bytes(self):
        name = os.fsdecode(b"caf\xe9 \x1b[31m")
        with open(self.path(name), "wb") as file:
            file.write(b"a\0b\x1b[31m\xe9\r\n")
        made = {option: self.path(f"{name}.{option}") for option in ("report", "log", "html", "trace", "record", "checkpoint")}
        runs = [self.must_run(*MODEL, f"--prompt-file={self.path(name)}", "--sample=1", "--samples=2",
                              *(f"--{option}={path}" for option, path in made.items())),
                self.run_program(*MODEL, f"--data={self.path('none')}{name}")]
        for number in "1", "2":
            self.assertIn(f"# sample {number}:\n# a\\x00b\\x1b[31m\\xe9\\x0d\n", runs[0].stdout)
        for program, *options in ("lessons/00_mpi",), ("lessons/02_collectives", "--count=8"):
            path = made[program] = f"{made['report']}.{os.path.basename(program)}"
            runs.append(self.must_run(f"--report={path}", *options, program=program))
        for path in made.values():
            self.assertTrue(os.path.exists(path), os.fsencode(path))
            if ".report" in path:
                self.assertIn("caf\ufffd \x1b[31m", json.loads(self.read(path))["options"]["report"])
        for run in runs:
            self.assertNotRegex(run.stdout + run.stderr, r"[\ufffd\x00-\x08\x0b-\x1f\x7f]")

    def test_names_that_collide(self):
        both, data = self.path("both"), self.write("data.h5")
        os.link(data, self.path("twin.h5"))
        for options in ([f"--checkpoint={both}", f"--report={both}"], [f"--report={both}", f"--trace={both}"],
                        [f"--checkpoint={both}", f"--trace={self.folder}/./both"],
                        [f"--data={data}", f"--checkpoint={data}"], [f"--initial={data}", f"--report={data}"],
                        [f"--data={data}", f"--report={self.path('twin.h5')}"]):
            self.assert_refused(*MODEL, *options, says=["are the same file"])
        config = self.write("run.conf", f"report = {self.path('run.conf')}\n")
        self.assert_refused(*MODEL, f"--config={config}", says=["--config", "--report", "are the same file"])
        self.assertEqual(self.read("data.h5"), "content")
        self.assertEqual(sorted(os.listdir(self.folder)), ["data.h5", "run.conf", "twin.h5"])

    def test_tools_keep_their_sources(self):
        saved, weights = self.path("run.h5"), self.path("m.safetensors")
        self.must_run(*MODEL, f"--checkpoint={saved}")
        self.must_run("export", saved, weights, program="data/weights")
        # A source may be called as older programs called what they wrote.
        shutil.copy(saved, weights + ".tmp")
        self.must_run("export", weights + ".tmp", weights, program="data/weights")
        self.assertTrue(filecmp.cmp(saved, weights + ".tmp", shallow=False))
        for words in (["export", saved, saved], ["import", "--heads=1", weights, weights]):
            done = self.run_program(*words, program="data/weights")
            self.assert_is_refusal(done, ["would replace itself"])

    def test_what_others_left_is_removed_and_what_is_not_theirs_stays(self):
        saved = self.path("run.h5")
        self.write("run.h5.0123456789abcdef.tmp")
        os.symlink(self.write("precious"), self.path("run.h5.fedcba9876543210.tmp"))
        os.mkfifo(self.path("run.h5.00000000000000aa.tmp"))
        self.write("run.h5.mine.tmp")
        self.must_run(*MODEL, f"--checkpoint={saved}")
        os.symlink("around", self.path("around"))  # has nothing to do with the run
        os.symlink("run.h5.00000000000000bb.tmp", self.path("run.h5.00000000000000bb.tmp"))
        self.must_run(*MODEL, f"--initial={saved}", f"--report={saved}.json")
        os.remove(self.path("run.h5.json"))
        self.assert_refused(*MODEL, f"--checkpoint={saved}2", f"--initial={self.path('around')}", says=["cyclic symbolic link"])
        os.remove(saved)
        self.must_run(*MODEL, f"--checkpoint={saved}")
        for name in ("around", "run.h5.00000000000000bb.tmp"):
            os.remove(self.path(name))
        self.assertEqual(sorted(os.listdir(self.folder)),
                         ["precious", "run.h5", "run.h5.fedcba9876543210.tmp", "run.h5.mine.tmp"])  # no job makes a link

    # ---- Two jobs -------------------------------------------------------------------------------------------------------

    def test_the_second_job_on_a_checkpoint_is_told_who_has_it(self):
        saved, lock = self.path("run.h5"), self.path(".run.h5.lock")
        options = [*MODEL[:-1], f"--checkpoint={saved}", "--checkpoint-every=1"]
        with subprocess.Popen([os.path.join(BUILD, self.program), *options, "--steps=1000000"],
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as first:
            self.addCleanup(first.kill)
            end = time.monotonic() + TIME_LIMIT_S
            while not os.path.exists(saved) and time.monotonic() < end and first.poll() is None:
                time.sleep(0.01)
            holder = f"is being written by process {first.pid} on {socket.gethostname()}"
            for ranks in (None, 2):
                done = self.run_program(*options, "--resume", "--steps=2000000", ranks=ranks,
                                        program="lessons/03_ddp" if ranks else None)
                self.assert_is_refusal(done, [f"--checkpoint={saved}", holder])
            self.must_run(*options, "--resume", "--steps=2000000", "--dry-run")
            self.assertIsNone(first.poll(), "the first job has ended")
            self.must_run(*MODEL, f"--initial={saved}")  # reading is free
            first.kill()
        self.assertTrue(os.path.exists(lock))
        self.assertIn(str(first.pid), self.read(".run.h5.lock"))
        again = self.must_run(*options, "--resume", "--steps=1000000", "--stop-after=1000000", "--dry-run")
        self.assertNotIn("is being written", again.stderr)
        self.must_run(*MODEL, f"--initial={saved}", f"--report={self.path('report.json')}")
        done = self.run_program(*options, "--steps=1", "--resume")  # the lock of a killed job is free
        self.assert_is_refusal(done, ["nothing is left to do"])
        self.assertFalse(os.path.exists(lock))

    def test_a_file_system_without_locks_is_warned_of(self):
        saved = self.path("run.h5")
        done = subprocess.run([os.path.join(BUILD, self.program), *MODEL, f"--checkpoint={saved}"], capture_output=True,
                              text=True, timeout=TIME_LIMIT_S,
                              env={**os.environ, **failing(self.folder, locks=1)})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"warning: --checkpoint={saved} cannot be locked: No locks available", done.stderr)
        self.assertEqual(os.listdir(self.folder), ["run.h5"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
