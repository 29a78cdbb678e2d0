"""Lesson 05: the bits of lessons 01 and 03, 1/N of the gradients too, traffic after each micro-batch, buckets alive."""

import unittest

import zero_case
from zero_case import P, P_OF_A_LAYER

PROGRAM = "lessons/05_zero2"


class Exactness(zero_case.Exactness):
    program = PROGRAM


class AnyNumber(zero_case.AnyNumber):
    program = PROGRAM


class FastSums(zero_case.FastSums):
    program = PROGRAM


class Memory(zero_case.Memory):
    program = PROGRAM

    def state_of(self, ranks):
        self.assertEqual(4 * P + 12 * P // 4, 1543808)  # the figure of the design
        return 4 * P + 12 * P // ranks

    def test_two_buckets_and_the_embedding_s_are_alive_at_most(self):
        attention, mlp, head, embedding = 4 * (4 * 64**2 + 6 * 64), 4 * (8 * 64**2 + 7 * 64), 4 * 128, 4 * 320 * 64
        for options, alive in [
            (["--bucket=1B"], attention + mlp + embedding),
            (["--bucket=50kB"], attention + mlp + head + embedding),
            (["--bucket=1GB"], 4 * P),
            (["--bucket=1B", "--arithmetic=exact"], attention + mlp + embedding + 4 * 256 * 64),
        ]:
            with self.subTest(options=options):
                report = self.report(self.data, "--steps=1", "--micro-batch=1", *options, ranks=4)
                self.assertEqual(report["memory"]["gradients"]["peak"] - report["memory"]["gradients"]["current"], alive)


class Traffic(zero_case.Traffic):
    program = PROGRAM

    def test_a_step_sends_what_the_paper_says_to_the_byte(self):
        for ranks in (1, 2, 4):
            for passes in (1, 4):
                for bucket in ("1B", "200kB"):
                    self.assertEqual(
                        self.sent("--layers=1", f"--bucket={bucket}", f"--micro-batch={16 // ranks // passes}", ranks=ranks),
                        4 * (passes + 1) * P_OF_A_LAYER * (ranks - 1) // ranks, (ranks, passes, bucket))


class Checkpoints(zero_case.Checkpoints):
    program = PROGRAM


class Output(zero_case.Output):
    program = PROGRAM

    def test_a_dry_run_plans_the_buckets_that_are_alive_too(self):
        done = self.run_program("--dry-run", "--bucket=1B", ranks=4)
        self.assertEqual(done.returncode, 0, done.stderr)
        alive = 4 * (12 * 64**2 + 13 * 64) + 4 * 320 * 64
        self.assertRegex(done.stdout, rf"gradients +{4 * P // 4 + alive:,} +bytes")


class WrongInput(zero_case.WrongInput):
    program = PROGRAM

    def test_a_memory_limit_that_lesson_04_needs_and_this_one_does_not(self):
        self.assert_fits_to_the_byte("lessons/04_zero1")


if __name__ == "__main__":
    unittest.main()
