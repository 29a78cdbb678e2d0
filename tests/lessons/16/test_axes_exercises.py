"""Exercises 16.1 and 16.2: the program with what somebody wrote (sums over replicas and the way back, choices of whole sequences),
beside lesson 15 on one rank; and what of the program is outside of its exercises.

    test_axes_exercises.py 16.1|16.1.experts|16.2|16 PREPARE LESSON_15 LESSON
"""

import os

import exercise_case


def mesh(dp, tp, pp, cp):
    return [f"--{name}={degree}" for name, degree in (("dp", dp), ("tp", tp), ("pp", pp), ("cp", cp))]


class AxesCase(exercise_case.ExerciseCase):
    # Each expert drops choices, so that a plan of other tokens is another plan.
    OPTIONS = ["--heads=4", "--expert-every=1", "--capacity-factor=1"]

    def assert_traffic(self, report):
        for axis, sent in report["traffic"].items():
            self.assertEqual(sent["bytes"], sent["formula"], axis)

    def assert_steps(self, ranks, *options):
        """The losses, norms and parameters of one rank; what was sent agrees with the formulas."""
        report = self.report(ranks, "--arithmetic=exact", *options)
        for what in ("loss", "grad_norm", "digest", "validation"):
            self.assertEqual(report[what], self.expected[what], f"{what}, {ranks} ranks, {' '.join(options)}")
        self.assert_traffic(report)

    def assert_fast_steps(self, ranks, *options):
        """Nearly the same in fast arithmetic, in which nothing is added up before the end of a step."""
        report = self.report(ranks, "--compare=2", *options)
        self.assertLess(report["deviation"]["parameters"], 1e-5, f"{ranks} ranks, {' '.join(options)}")
        self.assert_traffic(report)


class ReplicasOfExperts(AxesCase):
    def test_replicas_along_ep_and_dp(self):
        self.assert_steps(4, *mesh(4, 1, 1, 1), "--ep=2")
        self.assert_fast_steps(4, *mesh(4, 1, 1, 1), "--ep=2")

    def test_replicas_without_shards(self):
        self.assert_steps(4, *mesh(4, 1, 1, 1), "--ep=2", "--zero=0")
        self.assert_fast_steps(4, *mesh(4, 1, 1, 1), "--ep=2", "--zero=0")


class Replicas(AxesCase):
    """Along cp of a model without experts, which needs no choices of whole sequences."""

    OPTIONS = ["--heads=4", "--experts=1"]

    def test_replicas_along_cp_which_has_added_up_each_sequence(self):
        self.assert_steps(4, *mesh(2, 1, 1, 2))

    def test_replicas_along_cp_in_fast_arithmetic(self):
        self.assert_fast_steps(8, *mesh(4, 1, 1, 2))

    def test_replicas_without_shards(self):
        self.assert_steps(8, *mesh(4, 1, 1, 2), "--zero=0")
        self.assert_fast_steps(8, *mesh(4, 1, 1, 2), "--zero=0")

    def test_replicas_at_both_ends_of_the_pipeline(self):
        self.assert_steps(8, *mesh(2, 1, 2, 2))


class Choices(AxesCase):
    def test_choices_of_runs_in_zigzag_order(self):
        self.assert_steps(4, *mesh(1, 1, 1, 4))

    def test_choices_of_runs_in_contiguous_order(self):
        self.assert_steps(4, *mesh(1, 1, 1, 4), "--order=contiguous")

    def test_choices_of_several_sequences(self):
        self.assert_fast_steps(4, *mesh(2, 1, 1, 2), "--micro-batch=2")
        self.assert_fast_steps(4, *mesh(2, 1, 1, 2), "--micro-batch=4", "--order=contiguous")


class Lesson(AxesCase):
    def test_experts_divided_along_tp(self):
        self.assert_steps(8, *mesh(2, 2, 1, 2))
        self.assert_steps(8, *mesh(2, 2, 1, 2), "--sequence-parallel", "--order=contiguous")

    def test_stages(self):
        self.assert_steps(8, *mesh(2, 1, 2, 2), "--zero=0")
        self.assert_steps(8, *mesh(1, 2, 2, 2), "--sequence-parallel")

    def test_several_sequences_in_fast_arithmetic(self):
        self.assert_fast_steps(8, *mesh(2, 2, 1, 2), "--micro-batch=2", "--sequence-parallel")

    def test_charged_operations_are_those_of_the_plan(self):
        """A run whose operations are not those of the plan fails its check."""
        self.report(8, *mesh(1, 2, 2, 2), "--order=contiguous", "--flops=1GFLOP/s", "--link=1us,1GB/s")

    def test_a_checkpoint_is_that_of_a_whole_model(self):
        file = os.path.join(self.folder, "run.h5")
        fixed = ["--arithmetic=exact", f"--checkpoint={file}"]
        self.report(8, *fixed, *mesh(2, 2, 1, 2), "--stop-after=1")
        second = self.report(8, *fixed, *mesh(2, 1, 2, 2), "--resume")
        self.assertEqual((second["first_step"], second["digest"]), (1, self.expected["digest"]))


if __name__ == "__main__":
    exercise_case.main({"16.1": Replicas, "16.1.experts": ReplicasOfExperts, "16.2": Choices, "16": Lesson})
