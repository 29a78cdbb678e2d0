"""Exercises 04.3 and 05.1: the programs with an update, or a way to free buckets, that somebody wrote, beside lesson 01.

    test_zero_exercises.py 04.3|05.1 PREPARE LESSON_01 LESSON_04|LESSON_05
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


class Freeing(exercise_case.ExerciseCase):
    def test_collect_keeps_the_sums_of_this_rank_s_segments(self):
        for ranks, bucket in ((2, "20kB"), (4, "1B"), (2, "1MB")):
            self.assert_steps_of_lesson_01(ranks, f"--bucket={bucket}")

    def test_collect_adds_up_pass_by_pass(self):
        for ranks, micro_batch, seed in ((2, 1, 1), (4, 1, 2), (2, 2, 3)):
            self.assert_steps_of_lesson_01(ranks, "--bucket=20kB", f"--micro-batch={micro_batch}", f"--chaos={seed}")

    def test_collect_waits_for_what_is_on_its_way(self):
        self.assert_steps_of_lesson_01(2, "--bucket=1B", "--link=1ms,1MB/s")

    def test_collect_frees_every_bucket_before_the_next_but_one(self):
        gradients = self.assert_steps_of_lesson_01(2, "--bucket=1B", "--micro-batch=2")["memory"]["gradients"]
        self.assertEqual(gradients["current"], gradients["formula"])
        self.assertLess(gradients["peak"] - gradients["current"], 2 * gradients["current"])


if __name__ == "__main__":
    exercise_case.main({"04.3": Update, "05.1": Freeing})
