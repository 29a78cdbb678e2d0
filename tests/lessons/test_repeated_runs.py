"""repeated_runs: runs that the same processes make are those that processes of their own would make."""

import json
import os
import unittest

import repeated_runs
from program_case import BUILD, NO_GRACE, SLOWNESS, ShortTextCase

L03, PLANNER = "lessons/03_ddp", "lessons/17_choose_a_layout"


@unittest.skipIf(repeated_runs.LIBRARY is None, "each run has processes of its own in this build")
class RepeatedRuns(ShortTextCase):
    program = L03

    def run_repeated(self, *options, ranks=None, program=L03, limit_s=60 * SLOWNESS):
        launcher = [] if ranks is None else ["mpirun", "-np", str(ranks)]
        return repeated_runs.run(launcher, os.path.join(BUILD, program), options, {**NO_GRACE, **os.environ}, limit_s)

    def test_a_run_has_the_numbers_and_the_output_of_one_with_its_own_processes(self):
        for ranks in (None, 2, 3):
            for seed in (1, 2):
                options = [self.data, "--layers=1", "--steps=2", "--global-batch=12", f"--seed={seed}"]
                reports, sizes = [], []
                for own in (False, True):
                    self.repeated = not own
                    path = os.path.join(self.folder, "report.json")
                    done = self.run_program(*options, f"--report={path}", ranks=ranks)
                    self.assertEqual((done.returncode, done.stderr), (0, ""))
                    with open(path, encoding="utf-8") as file:
                        reports.append(json.load(file))
                    sizes.append(done.stdout.count("\n"))
                with self.subTest(ranks=ranks, seed=seed):
                    for what in ("digest", "loss", "memory", "traffic"):
                        self.assertEqual(reports[0][what], reports[1][what], what)
                    self.assertEqual(*sizes)

    def test_after_a_run_that_fails_others_follow(self):
        good = [self.data, "--layers=1", "--steps=1", "--global-batch=12"]
        for ranks in (None, 3):
            done = self.run_repeated(*good, "--steps=5", "--learning-rate=1e38", "--warmup=0", "--clip=0", ranks=ranks)
            self.assertEqual(done.returncode, 2, done.stderr)  # --steps is given twice
            done = self.run_repeated(self.data, "--layers=1", "--steps=5", "--global-batch=12", "--learning-rate=1e38",
                                     "--warmup=0", "--clip=0", ranks=ranks)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertEqual(done.stderr.count("is not finite"), 1, done.stderr)
            self.assertEqual(self.run_repeated(*good, ranks=ranks).returncode, 0)

    def test_a_process_that_ends_during_a_run_is_not_asked_again(self):
        for _ in range(2):  # it refuses what it has begun to plan, and exits
            done = self.run_repeated("--machine=nowhere.conf", program=PLANNER)
            self.assertEqual((done.returncode, done.stderr.count("error:")), (2, 1), done.stderr)

    def test_a_run_that_takes_too_long_is_ended_with_all_its_processes(self):
        self.assertEqual(self.run_repeated("--steps=-1", ranks=2).returncode, 2)
        job = next(reversed(repeated_runs.jobs.values()))
        with self.assertRaisesRegex(AssertionError, "had not ended after 1 s; it had printed:\n"):
            self.run_repeated(self.data, "--steps=1000000", ranks=2, limit_s=1)
        self.assertIsNotNone(job.process.returncode)


if __name__ == "__main__":
    unittest.main()
