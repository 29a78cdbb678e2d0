"""Parts of lesson 11's program outside of all exercises, beside lesson 01.

    test_zero_bubble_exercises.py 11 PREPARE LESSON_01 LESSON
"""

import exercise_case


class Lesson(exercise_case.ExerciseCase):
    OPTIONS = ["--layers=4"]  # as many stages

    def assert_steps(self, ranks, *options):
        report = self.assert_steps_of_lesson_01(ranks, *options)
        self.assertEqual(report["validation"], self.expected["validation"])
        for what in ("pp", "tied"):
            self.assertEqual(report["traffic"][what]["bytes"], report["traffic"][what]["formula"])

    def test_halves_of_backward_passes(self):
        self.assert_steps(2, "--micro-batch=2")

    def test_both_halves_compute_activations_again(self):
        self.assert_steps(2, "--recompute=block", "--micro-batch=4")


if __name__ == "__main__":
    exercise_case.main({"11": Lesson})
