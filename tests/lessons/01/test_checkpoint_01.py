"""Lesson 01: a run that stops and resumes equals an uninterrupted one; checkpoints that do not fit are refused."""

import os
import random
import resource
import shutil
import signal
import subprocess
import time
import unittest

from program_case import BUILD, SLOWNESS, ProgramCase, temporaries

SMALL = "layers = 1\nchannels = 16\nheads = 2\nsequence = 16\nglobal-batch = 4\n"  # the command line may say otherwise
KILLS = int(os.environ.get("RANKWISE_KILLS", "20"))
TIME_LIMIT_S = 60 * SLOWNESS
LOOK_S = 0.0002  # between two looks for a file; writing a checkpoint takes some milliseconds


class Lesson(ProgramCase):
    program = "lessons/01_single_device"

    def setUp(self):
        super().setUp()
        self.checkpoint = os.path.join(self.folder, "run.h5")
        path = os.path.join(self.folder, "small.conf")
        with open(path, "w", encoding="utf-8") as file:
            file.write(SMALL)
        self.small = f"--config={path}"

    def start(self, *options, **arguments):
        return subprocess.Popen([os.path.join(BUILD, self.program), *options], text=True, **arguments)

    def saved(self, *options):
        """Makes a checkpoint after 4 steps."""
        self.report(self.small, "--steps=4", f"--checkpoint={self.checkpoint}", *options)


class Resume(Lesson):
    def test_a_stopped_run_ends_where_the_whole_one_ends(self):
        for options in [
            ["--arithmetic=fast", "--steps=12"],
            ["--arithmetic=exact", "--steps=12"],
            ["--arithmetic=fast", "--steps=12", "--dropout=0.1", "--learning-rate-schedule=cosine", "--clip=0.3"],
            ["--arithmetic=exact", "--steps=12", "--dropout=0.1", "--learning-rate-schedule=cosine", "--warmup=8"],
        ]:
            with self.subTest(options=options):
                name = f"--checkpoint={self.checkpoint}"
                whole = self.report(self.small, *options)
                first = self.report(self.small, *options, name, "--stop-after=6")
                second = self.report(self.small, *options, name, "--resume")
                self.assertEqual((first["first_step"], second["first_step"]), (0, 6))
                self.assertEqual(first["loss"] + second["loss"], whole["loss"])
                self.assertEqual(second["validation"], whole["validation"])
                self.assertEqual(second["digest"], whole["digest"])
                self.assertNotEqual(first["digest"], whole["digest"])
                os.remove(self.checkpoint)

    def test_in_the_second_epoch_of_three(self):
        options = [self.small, "--sequence=64", "--global-batch=64", "--epochs=3"]
        whole = self.report(*options)
        name = f"--checkpoint={self.checkpoint}"
        self.report(*options, name, "--stop-after=100")  # an epoch is 65.9 steps
        self.assertEqual(self.report(*options, name, "--resume")["digest"], whole["digest"])

    def test_how_it_is_computed_may_change(self):
        exact = [self.small, "--arithmetic=exact", f"--checkpoint={self.checkpoint}"]
        self.report(*exact, "--steps=3", "--micro-batch=1")
        digest = self.report(*exact, "--steps=6", "--resume", "--recompute=block", "--threads=2")["digest"]
        self.assertEqual(digest, self.report(self.small, "--arithmetic=exact", "--steps=6")["digest"])

    def test_checkpoints_on_the_way_change_nothing(self):
        plain = self.report(self.small, "--steps=5")
        saving = self.report(self.small, "--steps=5", f"--checkpoint={self.checkpoint}", "--checkpoint-every=2")
        for name in ("digest", "loss", "memory"):
            self.assertEqual(saving[name], plain[name])
        self.assertEqual(os.listdir(self.folder).count("run.h5"), 1)
        self.assertEqual(temporaries(self.checkpoint), [])

    def test_initial_takes_the_parameters_and_nothing_else(self):
        self.saved()
        first = self.report(self.small, "--steps=4", "--evaluate-every=1")
        tuned = self.report(self.small, "--steps=1", "--seed=9", f"--initial={self.checkpoint}", "--learning-rate=0")
        self.assertEqual(tuned["digest"], first["digest"])
        self.assertEqual(tuned["first_step"], 0)
        # A step with learning rate 0 leaves the parameters as they are, and other moments.
        other = os.path.join(self.folder, "other.h5")
        self.report(self.small, "--steps=1", "--learning-rate=0", f"--initial={self.checkpoint}",
                    f"--checkpoint={other}")
        digests = {self.report(self.small, "--steps=3", f"--initial={path}")["digest"]
                   for path in (self.checkpoint, other)}
        self.assertEqual(len(digests), 1)

    @unittest.skipUnless(shutil.which("h5dump"), "h5dump is not here")
    def test_h5dump_reads_it(self):
        self.saved()
        done = subprocess.run(["h5dump", "-d", "/parameters/h.0.attn.c_attn.weight", "-a", "/step", self.checkpoint],
                              capture_output=True, text=True, timeout=TIME_LIMIT_S)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("( 16, 48 )", done.stdout)
        self.assertIn("(0): 4", done.stdout)


class Refusals(Lesson):
    def test_what_cannot_go_on(self):
        self.saved()
        name = f"--checkpoint={self.checkpoint}"
        for options, says in [
            (["--resume"], ["--resume", "--checkpoint=FILE.h5"]),
            (["--checkpoint-every=2"], ["--checkpoint-every=2", "--checkpoint=FILE.h5"]),
            ([f"--checkpoint={self.folder}/none.h5", "--resume"], ["none.h5 does not exist"]),
            ([name], ["exists already", "--resume"]),
            ([name, "--resume", "--steps=4"], ["after step 4", "nothing is left"]),
            ([name, "--resume", "--stop-after=3"], ["after step 3", "nothing is left"]),
            ([name, "--resume", "--layers=2", "--vocabulary=300"],
             ["another model", "--layers=1 --vocabulary=256 there", "--layers=2 --vocabulary=300 here"]),
            ([name, "--resume", "--heads=4"], ["--heads=2 there, --heads=4 here"]),
            ([name, "--resume", "--seed=2", "--global-batch=8", "--dropout=0.1"],
             ["--seed=1 --global-batch=4 --dropout=0 there", "--seed=2 --global-batch=8 --dropout=0.1 here"]),
            ([name, "--resume", "--learning-rate=2e-3"], ["--learning-rate=0.001 there", "0.002 here"]),
            ([name, "--resume", "--learning-rate-schedule=cosine"], ["constant", "cosine", "another run"]),
            ([name, "--resume", f"--initial={self.folder}/other.h5"], ["--resume", "--initial"]),
            ([name, "--resume", f"--initial={self.checkpoint}"], ["--checkpoint", "--initial", "are the same file"]),
            ([name, "--resume", "--compare=2"], ["--compare=2", "--resume"]),
            ([f"--initial={self.checkpoint}", "--channels=32"], ["another model", "--channels=16 there"]),
            ([f"--initial={self.folder}"], ["is a folder"]),
            ([f"--data={self.checkpoint}"], ["rankwise checkpoint", "prepare"]),
            (["--checkpoint=/nowhere/run.h5"], ["/nowhere", "--checkpoint"]),
            (["--stop-after=-1"], ["--stop-after=-1"]),
        ]:
            with self.subTest(options=options):
                self.assert_refused(self.small, *options, says=says)

    def test_a_longer_cosine_schedule_is_another_run(self):
        self.saved("--learning-rate-schedule=cosine", "--stop-after=2")
        self.assert_refused(self.small, "--learning-rate-schedule=cosine", "--steps=8", "--resume",
                            f"--checkpoint={self.checkpoint}", says=["--steps=4 there, --steps=8 here"])

    def test_other_data(self):
        self.saved()
        text, tokens = os.path.join(self.folder, "other.txt"), os.path.join(self.folder, "other.h5")
        with open(text, "w", encoding="utf-8") as file:
            file.write("Another text. " * 400)
        done = self.run_program("--tokenizer=byte", text, tokens, program="data/prepare")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assert_refused(self.small, f"--data={tokens}", f"--checkpoint={self.checkpoint}", "--resume",
                            says=["another run", "data-sha256="])

    def test_damage(self):
        self.saved()
        with open(self.checkpoint, "rb") as file:
            whole = file.read()
        middle = len(whole) // 2
        for content, says in [
            (whole[:middle], "is cut short"),
            (whole[:100], "is cut short"),
            (whole + b"x", "is damaged"),
            (whole[:middle] + bytes([whole[middle] ^ 4]) + whole[middle + 1:], "is damaged"),
            (whole[512:], "without Rankwise's seal"),
            (b"", "is empty"),
        ]:
            with open(self.checkpoint, "wb") as file:
                file.write(content)
            for option in ("--initial", "--resume --checkpoint"):
                self.assert_refused(self.small, *f"{option}={self.checkpoint}".split(), says=[says])


class Breakdown(Lesson):
    def wait_for_checkpoint(self, process):
        end = time.monotonic() + TIME_LIMIT_S
        while not os.path.exists(self.checkpoint) and process.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        self.assertTrue(os.path.exists(self.checkpoint))

    def test_a_full_disk_ends_the_run_and_leaves_the_checkpoint_before(self):
        # The limit stands for the disk. It comes when the run has begun, because MPI makes large files as it starts.
        ignore = lambda: signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        name = f"--checkpoint={self.checkpoint}"
        process = self.start(self.small, "--steps=1000000", "--checkpoint-every=1", name, stdout=subprocess.DEVNULL,
                             stderr=subprocess.PIPE, preexec_fn=ignore, restore_signals=False)
        self.wait_for_checkpoint(process)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (50000, 50000))
        _, error = process.communicate(timeout=TIME_LIMIT_S)
        self.assertEqual(process.returncode, 1, error)
        self.assertEqual(error.count("rank 0 of 1:"), 1, error)
        self.assertIn("File too large", error)
        self.assertEqual(temporaries(self.checkpoint), [])
        done = self.run_program(self.small, "--steps=1", "--initial=" + self.checkpoint)
        self.assertEqual(done.returncode, 0, done.stderr)

    def kill_while_writing(self, process, left):
        """Kills a run that has committed a checkpoint, and has begun another and not committed that. It is stopped before
        the last look, so that it cannot commit between that and the kill. `left`: the files that runs before it have left."""
        end = time.monotonic() + TIME_LIMIT_S
        writes = lambda: set(temporaries(self.checkpoint)) - left
        committed = os.stat(self.checkpoint).st_mtime_ns
        while process.poll() is None and time.monotonic() < end:
            if os.stat(self.checkpoint).st_mtime_ns == committed or not writes():
                time.sleep(LOOK_S)
                continue
            process.send_signal(signal.SIGSTOP)
            os.waitpid(process.pid, os.WUNTRACED)
            if writes():
                process.kill()
                return
            process.send_signal(signal.SIGCONT)
        process.kill()
        self.fail("no checkpoint is written under a temporary name")

    def test_after_kills_at_random_moments_the_run_goes_on_from_the_last_commit(self):
        # Each run saves after every step, and is killed; the next goes on. Saving takes most of the time of a step. Every
        # second run is killed while it saves.
        draw = random.Random(7)
        options = [self.small, "--steps=1000000", f"--checkpoint={self.checkpoint}"]
        saving = [*options, "--checkpoint-every=1"]
        process = self.start(*saving, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.wait_for_checkpoint(process)
        steps, left = [], set()
        for number in range(KILLS):
            time.sleep(draw.uniform(0, 0.1))
            if number % 2 == 0:
                process.kill()
            else:
                self.kill_while_writing(process, left)
            process.wait()
            left = set(temporaries(self.checkpoint))
            if number % 2 == 1:
                self.assertNotEqual(left, set())
            process = self.start(*saving, "--resume", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            rows = (line.split() for line in process.stdout)
            first = next((int(row[0]) for row in rows if row and row[0].isdigit()), None)
            self.assertIsNotNone(first, "a checkpoint could not be loaded")
            steps.append(first)
        process.kill()
        process.wait()
        process.stdout.close()
        self.assertEqual(steps, sorted(steps))
        self.assertGreaterEqual(steps[-1], KILLS // 2)  # every second run has come a step further at least
        last = steps[-1] + 200
        resumed = self.report(*options, "--resume", f"--stop-after={last}")
        self.assertEqual(resumed["digest"], self.report(self.small, f"--steps={last}")["digest"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
