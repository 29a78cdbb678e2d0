"""Parts of lesson 15's program outside of its exercise: layouts beside one rank, and one rank beside the reference run, which
sends nothing.

    test_expert_exercises.py 15 PREPARE LESSON LESSON
"""

import exercise_case


class Lesson(exercise_case.ExerciseCase):
    OPTIONS = ["--expert-every=1"]

    def assert_steps(self, ranks, *options):
        """The losses, norms and parameters of one rank; what was sent agrees with the counts of the rows."""
        report = self.report(ranks, "--arithmetic=exact", *options)
        for what in ("loss", "grad_norm", "digest", "validation"):
            self.assertEqual(report[what], self.expected[what], f"{what}, {ranks} ranks, {' '.join(options)}")
        for axis, sent in report["traffic"].items():
            self.assertEqual(sent["bytes"], sent["formula"], axis)

    def test_one_rank_is_the_reference_run(self):
        report = self.report(1, "--arithmetic=exact", "--compare=2", "--micro-batch=2")
        self.assertEqual(report["deviation"], {"steps": 2, "loss": 0, "parameters": 0})

    def test_ranks_that_share_the_experts(self):
        self.assert_steps(2, "--ep=2", "--micro-batch=1")
        self.assert_steps(4, "--ep=4")

    def test_replicas_of_the_experts(self):
        self.assert_steps(4, "--ep=2", "--micro-batch=1")
        self.assert_steps(2, "--ep=1")


if __name__ == "__main__":
    exercise_case.main({"15": Lesson})
