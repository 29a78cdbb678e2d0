"""Every program that reads files, given damaged ones: it ends with status 2 and one message, or works with what is still
valid; never by a signal, never without end.

Each kind of file goes to each lesson that reads it, in turn: tokens and checkpoints to all but lessons 00 and 02, configurations to
all. Damage is drawn at random from a seed: RANKWISE_DAMAGE=N tries N inputs of each kind, RANKWISE_DAMAGE_SEED=S others. What
runs where:

    damaged_files        24 inputs of each kind, in the tests that everybody runs
    damaged_files.all    2000 of each, nightly: a program takes a tenth of a second to start, and more where a launcher does it
    NAME.fuzz            10,000 of each kind, given to the readers themselves, in C++
    NAME.fuzz_long       1,000,000 of each, nightly

Offload files are damaged in test_damaged_blocks.py, since they live no longer than the run that reads them.
"""

import concurrent.futures
import glob
import os
import random
import subprocess
import unittest

from program_case import BUILD, TIME_LIMIT_S, ProgramCase

INPUTS = int(os.environ.get("RANKWISE_DAMAGE", "24"))  # of each kind
SEED = int(os.environ.get("RANKWISE_DAMAGE_SEED", "1"))
SMALL = ("--layers=1", "--channels=8", "--heads=2", "--context=8", "--vocabulary=256", "--global-batch=4")
COLLECTIVES = "lessons/02_collectives"  # which reads nothing but a configuration
LESSONS = [path for path in sorted(glob.glob("lessons/[0-9]*", root_dir=BUILD)) if path not in (COLLECTIVES, "lessons/00_mpi")]
FIRST = "lessons/01_single_device"
CONFIGURATION = """# A run of the smallest model.
layers = 1
channels = 8
heads = 2
context = 8
vocabulary = 256
global-batch = 4
learning-rate = 1e-3
learning-rate-schedule = cosine
mask = causal
memory-limit = 64MB
"""
CONFIGURATION_02 = """# What is called.
collective = all-reduce
collectives = ring
count = 1024
type = bf16
root = 0
repeats = 3
"""


def damaged(whole, draw):
    """One to three flipped bits, cuts, additions, or runs of zeros or of another place."""
    content = whole
    while content == whole:
        for _ in range(draw.randint(1, 3)):
            at = draw.randrange(draw.choice([len(content), min(len(content), 600)]) + 1)
            run, place = draw.randint(1, 64), draw.randrange(len(whole))
            content = draw.choice([
                lambda: content[:at] + bytes(b ^ 1 << draw.randrange(8) for b in content[at:at + 1]) + content[at + 1:],
                lambda: content[:at],
                lambda: content + bytes([draw.randrange(256)]) * run,
                lambda: content[:at] + bytes(run) + content[at + run:],
                lambda: content[:at] + whole[place:place + run] + content[at + run:],
            ])()
    return content


class DamagedFiles(ProgramCase):
    program = FIRST

    def setUp(self):
        super().setUp()
        self.text, self.tokens, self.checkpoint, self.weights = (
            os.path.join(self.folder, name) for name in ("text.txt", "tokens.h5", "run.h5", "model.safetensors"))
        with open(self.text, "w", encoding="utf-8") as file:
            file.write("the owl sees 12 cats.\n" * 200)
        for program, *options in (
                ("data/prepare", self.text, self.tokens),
                (FIRST, *SMALL, "--steps=1", f"--data={self.tokens}", f"--checkpoint={self.checkpoint}"),
                ("data/weights", "export", self.checkpoint, self.weights)):
            done = self.run_program(*options, program=program)
            self.assertEqual(done.returncode, 0, done.stderr)

    def try_all(self, whole, command, statuses):
        """Gives each of many damaged copies of @p whole to command(path, number), a program and its options."""
        def try_one(number):
            path = os.path.join(self.folder, f"damaged-{number}")
            with open(path, "wb") as file:
                file.write(damaged(whole, random.Random(f"{SEED} {number}")))
            ranks, program, *options = command(path, number)
            launcher = [] if ranks == 1 else ["mpirun", "-np", str(ranks)]
            done = subprocess.run([*launcher, os.path.join(BUILD, program), *options], capture_output=True, text=True,
                                  errors="replace", timeout=TIME_LIMIT_S)
            what = f"seed {SEED}, input {number}: {program} {options}\n{done.stdout}{done.stderr}"
            self.assertIn(done.returncode, statuses, what)
            self.assertEqual(done.stderr.count("error:"), 1 if done.returncode == 2 else 0, what)
            return done.returncode

        with concurrent.futures.ThreadPoolExecutor(max_workers=6) as pool:
            found = list(pool.map(try_one, range(INPUTS)))
        self.assertIn(2, found)

    def try_lessons(self, path, *options):
        with open(path, "rb") as file:
            whole = file.read()
        # A sealed file is whole or it is refused; each lesson has its turn, on one rank and on two.
        self.try_all(whole, lambda damaged_path, number: [
            1 + number % 2, LESSONS[number % len(LESSONS)], *SMALL, "--steps=2",
            *(option.format(file=damaged_path) for option in options)], statuses=(2,))

    def test_tokens(self):
        self.try_lessons(self.tokens, "--data={file}")

    def test_checkpoint_to_resume(self):
        self.try_lessons(self.checkpoint, f"--data={self.tokens}", "--checkpoint={file}", "--resume")

    def test_checkpoint_to_start_from(self):
        self.try_lessons(self.checkpoint, f"--data={self.tokens}", "--initial={file}")

    def test_configuration(self):
        self.try_all(CONFIGURATION.encode(), lambda path, number: [
            1 + number % 2, LESSONS[number % len(LESSONS)], f"--config={path}", "--steps=1", "--dry-run"], statuses=(0, 2))
        self.try_all(CONFIGURATION_02.encode(), lambda path, number: [
            1 + number % 2, COLLECTIVES, f"--config={path}", "--dry-run"], statuses=(0, 2))

    def test_weights(self):
        with open(self.weights, "rb") as file:
            whole = file.read()
        self.try_all(whole, lambda path, number: [1, "data/weights", "import", "--heads=2", path, path + ".h5"],
                     statuses=(0, 2))

    def test_checkpoint_to_export(self):
        with open(self.checkpoint, "rb") as file:
            whole = file.read()
        self.try_all(whole, lambda path, number: [1, "data/weights", "export", path, path + ".safetensors"],
                     statuses=(2,))


if __name__ == "__main__":
    unittest.main(verbosity=2)
