"""Exercises 03.1 and 03.3: the program with sums of gradients that somebody wrote, beside lesson 01; and 03, what
the program does around them.

    test_ddp_exercises.py 03|03.1|03.3 PREPARE LESSON_01 LESSON_03
"""

import exercise_case


class Exercise1(exercise_case.ExerciseCase):
    def test_sum_after_backward_after_it_each_rank_has_the_sums_of_all(self):
        for strategy in ("per-tensor", "flat", "bucketed"):
            buckets = ["--bucket=20kB"] if strategy == "bucketed" else []
            self.assert_steps_of_lesson_01(2, f"--strategy={strategy}", *buckets)
        self.assert_steps_of_lesson_01(4, "--strategy=bucketed", "--bucket=1B", "--micro-batch=1")


class Waiting(exercise_case.ExerciseCase):
    def test_wait_for_buckets_waits_for_what_is_on_its_way(self):
        self.assert_steps_of_lesson_01(4, "--strategy=overlapped", "--bucket=20kB", "--chaos=5")
        self.assert_steps_of_lesson_01(2, "--strategy=overlapped", "--bucket=1B", "--link=1ms,1MB/s")


class Exercise3(exercise_case.ExerciseCase):
    def test_unit_done_accumulation_sends_nothing_more(self):
        for micro_batch in (2, 1):
            self.assert_steps_of_lesson_01(2, f"--micro-batch={micro_batch}", "--bucket=20kB")

    def test_unit_done_sends_each_bucket_once_its_last_gradient_is_there(self):
        for ranks, bucket, seed in ((4, "20kB", 1), (2, "60kB", 2), (4, "1B", 3)):
            self.assert_steps_of_lesson_01(ranks, f"--bucket={bucket}", "--micro-batch=1", f"--chaos={seed}")

    def test_unit_done_the_sums_overlap_with_the_backward_pass(self):
        # On these links a bucket is sent before the next one is computed: only the last one is exposed.
        link = ["--bucket=20kB", "--micro-batch=2", "--link=1us,1GB/s", "--flops=100MFLOP/s"]
        step = self.report(2, *link)["virtual"][-1]
        self.assertLess(step["exposed_ps"], 0.5 * step["communication_ps"])


if __name__ == "__main__":
    exercise_case.main({"03": Waiting, "03.1": Exercise1, "03.3": Exercise3})
