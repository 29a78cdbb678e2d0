"""Lesson 04: the bits of lessons 01 and 03, 1/N of the moments, traffic, and refused options."""

import unittest

import zero_case
from zero_case import L03, P, P_OF_A_LAYER

PROGRAM = "lessons/04_zero1"


class Exactness(zero_case.Exactness):
    program = PROGRAM


class AnyNumber(zero_case.AnyNumber):
    program = PROGRAM


class FastSums(zero_case.FastSums):
    program = PROGRAM


class Memory(zero_case.Memory):
    program = PROGRAM

    def state_of(self, ranks):
        self.assertEqual(8 * P + 8 * P // 4, 2205440)  # the figure of the design
        return 8 * P + 8 * P // ranks


class Traffic(zero_case.Traffic):
    program = PROGRAM

    def test_a_step_sends_what_the_paper_says_to_the_byte(self):
        for ranks in (1, 2, 4):
            for bucket in ("1B", "200kB"):
                self.assertEqual(self.sent("--layers=1", f"--bucket={bucket}", "--micro-batch=4", ranks=ranks),
                                 8 * P_OF_A_LAYER * (ranks - 1) // ranks, (ranks, bucket))

    def test_accumulation_sends_nothing_more(self):
        self.assertEqual(*(self.sent("--layers=1", f"--micro-batch={B}") for B in (8, 2)))


class Checkpoints(zero_case.Checkpoints):
    program = PROGRAM


class Output(zero_case.Output):
    program = PROGRAM

    def test_a_dry_run_plans_what_a_run_needs(self):
        done = self.run_program("--dry-run", ranks=4)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"optimizer +441,088 +bytes")
        self.assertRegex(done.stdout, r"a step +1,323,264 +bytes sent by rank 0")


class WrongInput(zero_case.WrongInput):
    program = PROGRAM

    def test_a_memory_limit_that_lesson_03_needs_and_this_one_does_not(self):
        self.assert_fits_to_the_byte(L03)


if __name__ == "__main__":
    unittest.main()
