"""Exercises 04.3, 05.1, 06.3, 06.4 and 07.3: the programs with what somebody wrote (an update, a way to free buckets, where
shards are stored, when units are there, to save states that are elsewhere), beside lesson 01; and 05, the program around
its exercises.

    test_zero_exercises.py 04.3|05|05.1|06.3|06.4|07.3 PREPARE LESSON_01 LESSON
"""

import glob
import os
import subprocess
import tempfile

import exercise_case


class Update(exercise_case.ExerciseCase):
    def test_update_after_it_all_ranks_have_all_new_parameters(self):
        for ranks, bucket in ((2, "20kB"), (4, "1B"), (2, "1MB")):
            self.assert_steps_of_lesson_01(ranks, f"--bucket={bucket}", "--check-every=1")

    def test_update_with_accumulation_and_other_options(self):
        self.assert_steps_of_lesson_01(4, "--bucket=20kB", "--micro-batch=1", "--check-every=1")

    def test_update_sends_what_the_formula_says(self):
        report = self.assert_steps_of_lesson_01(2, "--bucket=20kB")
        self.assertEqual(report["traffic"]["world"]["bytes"], report["traffic"]["world"]["formula"])


class Lesson05(exercise_case.ExerciseCase):
    """Lesson 05 outside of its exercises."""

    def test_add_the_gradients_of_ranks_that_are_no_subtree_one_by_one(self):
        for bucket in ("20kB", "1MB"):
            self.assert_steps_of_lesson_01(3, f"--bucket={bucket}", "--micro-batch=1")


class Freeing(exercise_case.ExerciseCase):
    def test_collect_keeps_the_sums_of_this_rank_s_shards(self):
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


class Shards(exercise_case.ExerciseCase):
    def go_on(self, writers, readers, *options):
        """The first of two steps on some ranks, the second on others; and then all parameters, which lesson 01 has too."""
        file = os.path.join(self.folder, f"{writers}-{readers}.h5")
        fixed = ["--arithmetic=exact", f"--checkpoint={file}", *options]
        first = self.report(writers, *fixed, "--stop-after=1")
        second = self.report(readers, *fixed, "--resume")
        self.assertEqual(second["first_step"], 1)
        self.assertEqual(first["loss"] + second["loss"], self.expected["loss"])
        self.assertEqual(second["digest"], self.expected["digest"])

    def test_shards_of_the_rank_that_wrote_them(self):
        self.go_on(2, 2)

    def test_shards_on_2_ranks_of_what_4_have_written(self):
        self.go_on(4, 2)

    def test_shards_on_4_ranks_of_what_2_have_written(self):
        self.go_on(2, 4, "--unit=branch", "--micro-batch=1")

    def test_shards_of_what_one_device_has_written(self):
        self.go_on(1, 4)

    def test_shards_of_replicated_tensors_are_parts_of_them(self):
        for ranks, persist in ((2, 32), (4, 128), (2, 4096), (2, 1000000)):
            self.assert_steps_of_lesson_01(ranks, f"--persist={persist}")

    def test_shards_of_replicated_tensors_with_accumulation(self):
        report = self.assert_steps_of_lesson_01(4, "--persist=96", "--micro-batch=1", "--unit=branch")
        self.assertEqual(report["traffic"]["world"]["bytes"], report["traffic"]["world"]["formula"])


class Window(exercise_case.ExerciseCase):
    def test_use_finds_the_parameters_of_this_step(self):
        for ranks, *options in ((2, "--prefetch=0"), (4, "--unit=branch", "--prefetch=2"), (2, "--reshard=after-backward"),
                                (2, "--unit=branch", "--recompute=block", "--micro-batch=1"), (2, "--unit=model")):
            self.assert_steps_of_lesson_01(ranks, *options)

    def test_use_waits_for_what_is_on_its_way(self):
        self.assert_steps_of_lesson_01(4, "--chaos=5")

    def test_use_hides_the_gather_of_the_next_unit(self):
        # On these links a gather takes less time than a branch: hardly more than the first and last messages are exposed.
        link = ["--unit=branch", "--prefetch=1", "--link=1us,1GB/s", "--flops=100MFLOP/s"]
        step = self.report(2, *link)["virtual"][-1]
        self.assertLess(step["exposed_ps"], 0.5 * step["communication_ps"])


class Saving(exercise_case.ExerciseCase):
    def checkpoint(self):
        return os.path.join(tempfile.mkdtemp(dir=self.folder), "run.h5")

    def go_on(self, ranks, *options, of_both=()):
        """The first of two steps by this program, the second by lesson 01, which reads all that the ranks have saved."""
        expected = self.report(1, "--arithmetic=exact", *of_both) if of_both else self.expected
        fixed = ["--arithmetic=exact", *of_both, f"--checkpoint={self.checkpoint()}"]
        first = self.report(ranks, *fixed, *options, "--stop-after=1")
        second = self.report(1, *fixed, "--resume")
        self.assertEqual(second["first_step"], 1)
        self.assertEqual(first["loss"] + second["loss"], expected["loss"])
        self.assertEqual(second["digest"], expected["digest"])

    def test_save_what_was_updated_beside_the_backward_pass(self):
        self.go_on(2, f"--tier=disk:{self.folder}", "--micro-batch=1", of_both=["--clip=0"])

    def test_save_what_lies_on_the_host(self):
        for ranks, offload in ((2, "all"), (2, "optimizer"), (4, "parameters")):
            self.go_on(ranks, f"--offload={offload}")

    def test_save_what_lies_on_disk(self):
        self.go_on(2, f"--tier=disk:{self.folder}")
        self.go_on(4, f"--tier=disk:{self.folder}", "--micro-batch=1")

    def test_resume_what_lies_elsewhere(self):
        """Lesson 01 makes the first of two steps, this program the second, from the shards that its ranks read."""
        for ranks, *options in ((2, "--offload=all"), (4, "--offload=parameters", "--micro-batch=1"),
                                (2, "--offload=optimizer", f"--tier=disk:{self.folder}"),
                                (4, f"--tier=disk:{self.folder}")):
            fixed = ["--arithmetic=exact", f"--checkpoint={self.checkpoint()}"]
            first = self.report(1, *fixed, "--stop-after=1")
            second = self.report(ranks, *fixed, *options, "--resume")
            self.assertEqual(first["loss"] + second["loss"], self.expected["loss"])
            self.assertEqual(second["digest"], self.expected["digest"])

    def test_save_leaves_the_checkpoint_before_it_until_it_is_complete(self):
        """Somebody looks all the time while checkpoints are written one after the other."""
        path = self.checkpoint()
        command = ["mpirun", "-np", "2", exercise_case.LESSON, f"--data={self.data}", "--layers=2", "--context=16",
                   "--channels=32", "--steps=8", "--checkpoint-every=1", f"--checkpoint={path}"]
        versions = set()
        with tempfile.TemporaryFile("w+") as output:
            job = subprocess.Popen(command, stdout=output, stderr=output)
            self.addCleanup(job.wait)
            self.addCleanup(job.terminate)
            while job.poll() is None:
                try:
                    versions.add(os.stat(path).st_mtime_ns)
                except FileNotFoundError:
                    self.assertEqual(versions, set(), "a checkpoint was gone before the next one had its name")
            output.seek(0)
            self.assertEqual(job.returncode, 0, output.read())
        self.assertGreater(len(versions), 1)
        self.assertEqual(glob.glob(glob.escape(path) + ".*.tmp"), [])


if __name__ == "__main__":
    exercise_case.main({"04.3": Update, "05": Lesson05, "05.1": Freeing, "06.3": Shards, "06.4": Window, "07.3": Saving})
