"""Exercise 04.3: the program with an update that somebody wrote, beside lesson 01.

    test_zero_exercises.py 04.3 PREPARE LESSON_01 LESSON_04
"""

import exercise_case


class Update(exercise_case.ExerciseCase):
    def test_train_step_after_it_all_ranks_have_all_new_parameters(self):
        for ranks, bucket in ((2, "20kB"), (4, "1B"), (2, "1MB")):
            self.assert_steps_of_lesson_01(ranks, f"--bucket={bucket}", "--check-every=1")

    def test_train_step_with_accumulation_and_other_options(self):
        self.assert_steps_of_lesson_01(4, "--bucket=20kB", "--micro-batch=1", "--check-every=1")

    def test_train_step_sends_what_the_formula_says(self):
        report = self.assert_steps_of_lesson_01(2, "--bucket=20kB")
        self.assertEqual(report["traffic"]["world"]["bytes"], report["traffic"]["world"]["formula"])


if __name__ == "__main__":
    exercise_case.main({"04.3": Update})
