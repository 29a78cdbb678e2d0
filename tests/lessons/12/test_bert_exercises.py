"""Exercises 12.1 and 12.2: DDP and ZeRO-1 with what somebody wrote, beside ZeRO-3 on one rank, which none of it is part of; the
weight of a pair beside the reference run, which computes its own. And what of the lesson is outside of both.

    test_bert_exercises.py 12|12.1|12.2 PREPARE LESSON LESSON
"""

import exercise_case


class Sending(exercise_case.ExerciseCase):
    def assert_steps(self, ranks, *options):
        """The losses and parameters of ZeRO-3 on one rank; what was sent agrees with the formula."""
        report = self.report(ranks, "--arithmetic=exact", *options)
        for what in ("loss", "grad_norm", "digest"):
            self.assertEqual(report[what], self.expected[what], f"{what}, {ranks} ranks, {' '.join(options)}")
        self.assertEqual(report["traffic"]["world"]["bytes"], report["traffic"]["world"]["formula"])

    def test_ddp(self):
        self.assert_steps(2, "--zero=0", "--bucket=1B")
        self.assert_steps(4, "--zero=0", "--bucket=20kB")

    def test_zero_1(self):
        self.assert_steps(2, "--zero=1", "--bucket=1B")
        self.assert_steps(4, "--zero=1", "--bucket=20kB")

    def test_a_step_sends_each_bucket_once(self):
        for zero in (0, 1):
            self.assert_steps(2, f"--zero={zero}", "--bucket=20kB", "--micro-batch=1")


class Weight(exercise_case.ExerciseCase):
    def test_parameters_are_those_of_the_reference_run(self):
        for ranks, micro_batch in ((2, 4), (2, 1), (4, 2)):
            report = self.report(ranks, "--arithmetic=exact", "--compare=2", f"--micro-batch={micro_batch}")
            self.assertEqual(report["deviation"], {"steps": 2, "loss": 0, "parameters": 0})


class Lesson(exercise_case.ExerciseCase):
    def assert_digest(self, ranks, *options):
        self.assertEqual(self.report(ranks, "--arithmetic=exact", *options)["digest"], self.expected["digest"], options)

    def test_pairs_of_a_micro_batch_do_not_see_each_other(self):
        self.assert_digest(1, "--micro-batch=1")

    def test_units_are_gathered_and_freed(self):
        self.assert_digest(2, "--unit=branch", "--recompute=block", "--micro-batch=2")


if __name__ == "__main__":
    exercise_case.main({"12": Lesson, "12.1": Sending, "12.2": Weight})
