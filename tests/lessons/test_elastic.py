"""Runs of lessons 03, 04 and 06 whose ranks are killed: they go on with the rest, and end with the digest of a run that nothing
disturbed.

RANKWISE_KILLS says how many runs to kill ranks of, at random moments: one rank or two at once, also rank 0, also while a
checkpoint is written. The build must be with an MPI that has ULFM, and its mpirun in PATH; else only refusals are tested."""

import os
import random
import re
import subprocess
import time
import unittest

from program_case import BUILD, TIME_LIMIT_S, ProgramCase

LESSONS = ("lessons/03_ddp", "lessons/04_zero1", "lessons/06_zero3")
RANKS = 4
STEPS = 12
FIXED = [f"--steps={STEPS}", "--arithmetic=exact", "--global-batch=12", "--layers=2", "--dropout=0.1"]
P = 220544  # parameters of nano
KILLS = int(os.environ.get("RANKWISE_KILLS", "9"))
LAUNCHER = ["mpirun", "--oversubscribe", "--with-ft", "ulfm"]


def can_survive():
    """True if a lesson takes --elastic."""
    done = subprocess.run([*LAUNCHER, "-np", "2", os.path.join(BUILD, LESSONS[0]), "--elastic", "--steps=1"],
                          capture_output=True, text=True, errors="replace", check=False, timeout=TIME_LIMIT_S)
    return done.returncode == 0


def processes_of(job):
    """The processes of a job by their ranks: those of this launcher's descendants that MPI has numbered."""
    parents, ranks = {}, {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                parents[int(name)] = int(file.read().rsplit(")", 1)[1].split()[1])
            with open(f"/proc/{name}/environ", encoding="utf-8", errors="replace") as file:
                rank = re.search(r"(?:^|\0)OMPI_COMM_WORLD_RANK=(\d+)", file.read())
        except OSError:
            continue
        if rank:
            ranks[int(name)] = int(rank.group(1))

    def descends(process):
        while process in parents and process != job:
            process = parents[process]
        return process == job

    return {rank: process for process, rank in ranks.items() if descends(process)}


class Refusals(ProgramCase):
    program = "lessons/04_zero1"

    def test_where_it_is_not_possible(self):
        self.assert_refused("--elastic", "--copies=4", ranks=2, says=["--copies=4", "0 to 1"])
        self.assert_refused("--elastic", "--collectives=shared", ranks=2, says=["--elastic", "--collectives=shared"])
        self.assert_refused("--elastic", ranks=2, says=["--elastic", "ulfm" if can_survive() else "ULFM"])

        if not can_survive():
            self.assert_refused("--elastic", "--dry-run", ranks=2, says=["--elastic is not possible here"])

    def test_a_dry_run_plans_the_copies(self):
        plans = [self.report("--dry-run", "--ranks=4", *options)["plan"]["ranks"] for options in ([], ["--elastic", "--copies=2"])]

        def more_of_all_ranks(category):
            without, copied = (sum(rank["memory"]["device"][category]["peak"] for rank in plan) for plan in plans)
            return copied - without

        self.assertEqual(more_of_all_ranks("optimizer"), 2 * 12 * P)
        self.assertEqual(more_of_all_ranks("communication"), 2 * 4 * P)
        self.assertEqual(sum(rank["sent"]["copies"]["bytes"] for rank in plans[1]), 2 * 4 * P)


class Kills(ProgramCase):
    @classmethod
    def setUpClass(cls):
        if not can_survive():
            raise unittest.SkipTest("this build's MPI has no ULFM")

    def start(self, *options):
        command = [*LAUNCHER, "-np", str(RANKS), os.path.join(BUILD, self.program), *FIXED, *options]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")

    def finish(self, process):
        try:
            output, _ = process.communicate(timeout=TIME_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
            self.fail(f"the run had not ended after {TIME_LIMIT_S:.0f} s:\n{output}")
        return output

    def digest_in(self, output):
        found = re.findall(r"^ ?# digest (\w+)", output, re.MULTILINE)
        self.assertTrue(found, output)
        return found[-1]

    def killed(self, victims, steps, delay_s, *options):
        """Output of a run of which these ranks were killed so long after that step was printed."""
        process = self.start("--elastic", *options)
        printed = []
        for line in process.stdout:
            printed.append(line)
            if re.match(rf" *{steps} +\d", line):
                break
        time.sleep(delay_s)
        there = processes_of(process.pid)
        for victim in victims:
            if victim in there:  # it may have ended
                os.kill(there[victim], 9)
        return "".join(printed) + self.finish(process)

    def test_a_run_that_loses_ranks_has_the_digest_of_one_that_does_not(self):
        draw = random.Random(1)
        expected = {self.digest_in(self.finish(self.start("--elastic"))) for self.program in LESSONS}
        self.assertEqual(len(expected), 1)
        recoveries = []
        for number in range(KILLS):
            self.program = LESSONS[number % len(LESSONS)]
            victims = draw.sample(range(RANKS), 1 + number // 3 % 2)
            options = ["--copies=2"] if self.program != LESSONS[0] and len(victims) == 2 else []
            if number // 6 % 2:  # a checkpoint after each step
                options += [f"--checkpoint={self.folder}/{number}.h5", "--checkpoint-every=1"]
            step, delay_s = draw.randrange(STEPS), draw.uniform(0, 0.2)
            with self.subTest(program=self.program, victims=victims, options=options, step=step, delay_s=delay_s):
                output = self.killed(victims, step, delay_s, *options)
                self.assertEqual(self.digest_in(output), *expected, output)
                self.assertNotRegex(output, "FAIL")
                recoveries += re.findall(r"^ ?# ranks? .* died in step .* after ([\d.]+) s", output, re.MULTILINE)
        self.assertGreater(len(recoveries), KILLS // 3)
        print(f"{len(recoveries)} recoveries, {max(map(float, recoveries)):.3f} s at most", flush=True)

    def test_a_shard_without_a_copy_ends_the_run(self):
        self.program = LESSONS[1]
        output = self.killed((1, 2), 3, 0)
        self.assertRegex(output, r"error: ranks 1 and 2 of 4 died in step \d+, and with them a shard")
        self.assertIn("--copies=2", output)


if __name__ == "__main__":
    unittest.main(verbosity=2)
