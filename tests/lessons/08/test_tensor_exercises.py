"""Exercises 08.1 and 08.4: the program with what somebody wrote (a branch with one message, the loss of a divided
vocabulary), beside lesson 01; and what of the program is outside of all exercises.

    test_tensor_exercises.py 08.1|08.4|08 PREPARE LESSON_01 LESSON
"""

import os

import exercise_case

HALVES = ["--sequence-parallel"]


class TensorCase(exercise_case.ExerciseCase):
    def assert_traffic(self, ranks, *options):
        traffic = self.assert_steps_of_lesson_01(ranks, *options)["traffic"]["tp"]
        self.assertEqual(traffic["bytes"], traffic["formula"])
        self.assertGreater(traffic["bytes"], 0)


class Branch(TensorCase):
    def test_forward_branches_sums_over_the_parts_behind_both_matrices(self):
        self.assert_traffic(4)

    def test_forward_branches_has_all_rows_between_its_halves_and_a_part_of_them_elsewhere(self):
        self.assert_traffic(4, *HALVES, "--micro-batch=2")

    def test_forward_branches_keeps_its_rows_only_where_they_are_gathered_again(self):
        self.assert_traffic(2, *HALVES, "--regather")

    def test_forward_branches_runs_again_under_recomputation(self):
        self.assert_traffic(2, *HALVES, "--regather", "--recompute=block")


class Loss(TensorCase):
    def test_loss_of_a_divided_vocabulary_is_that_of_the_whole(self):
        self.assert_traffic(4)

    def test_loss_with_the_rows_divided_too(self):
        self.assert_traffic(2, *HALVES, "--micro-batch=2")

    def test_loss_is_exact_where_logits_are_large(self):
        """The first step moves each weight by 1; then exp(logit - maximum) is infinite where the maximum is too small."""
        fixed = ["--learning-rate=1", "--warmup=0", "--arithmetic=exact"]
        one, two = self.report(1, *fixed), self.report(2, *fixed)
        self.assertGreater(one["loss"][1], 10)
        self.assertEqual(one["loss"], two["loss"])


class Lesson(TensorCase):
    def test_what_all_parts_have_stays_the_same_on_all_ranks(self):
        self.assert_traffic(4, *HALVES, "--regather", "--micro-batch=4")

    def test_replicas_of_a_divided_model(self):
        self.assert_traffic(4, "--tp=2", "--dp=2", "--micro-batch=2")
        self.assert_traffic(4, "--tp=2", "--dp=2", *HALVES)

    def test_a_checkpoint_has_every_element(self):
        file = os.path.join(self.folder, "run.h5")
        fixed = ["--arithmetic=exact", f"--checkpoint={file}"]
        self.report(4, *fixed, "--stop-after=1")
        second = self.report(2, *fixed, "--resume")
        self.assertEqual((second["first_step"], second["digest"]), (1, self.expected["digest"]))


if __name__ == "__main__":
    exercise_case.main({"08.1": Branch, "08.4": Loss, "08": Lesson})
