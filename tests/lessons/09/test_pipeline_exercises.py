"""Parts of lesson 09's program outside of all exercises, beside lesson 01.

    test_pipeline_exercises.py 09 PREPARE LESSON_01 LESSON
"""

import exercise_case

IN_GROUPS = ["--schedule=interleaved", "--micro-batch=2"]


class Lesson(exercise_case.ExerciseCase):
    OPTIONS = ["--layers=4"]  # as many stages

    def assert_steps(self, ranks, *options):
        report = self.assert_steps_of_lesson_01(ranks, *options)
        self.assertEqual(report["validation"], self.expected["validation"])
        for what in ("pp", "tied"):
            self.assertEqual(report["traffic"][what]["bytes"], report["traffic"][what]["formula"])

    def test_stages_make_the_steps_of_one_device(self):
        """The last micro-batch of the validation windows is not full."""
        self.assert_steps(2, "--micro-batch=4", "--recompute=block")

    def test_gradients_of_each_of_a_rank_s_stages(self):
        self.assert_steps(2, *IN_GROUPS)


if __name__ == "__main__":
    exercise_case.main({"09": Lesson})
