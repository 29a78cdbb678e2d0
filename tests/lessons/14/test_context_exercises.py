"""Exercises 14.1 and 14.2: the program with what somebody wrote (a pass of keys round the ring, an exchange of tokens for heads),
beside lesson 01; and what of the program is outside of its exercises, one rank among them, which sends nothing.

    test_context_exercises.py 14.1|14.2|14 PREPARE LESSON_01 LESSON
"""

import os

import exercise_case

EXCHANGE = "--attention=all-to-all"


class ContextCase(exercise_case.ExerciseCase):
    def assert_traffic(self, ranks, *options):
        report = self.assert_steps_of_lesson_01(ranks, *options)
        for axis, sent in report["traffic"].items():
            self.assertEqual(sent["bytes"], sent["formula"], axis)
        return report


class Ring(ContextCase):
    def test_forward_meets_the_keys_of_all_ranks(self):
        self.assert_traffic(2)
        self.assert_traffic(4, "--order=contiguous")

    def test_forward_charges_the_pairs_that_the_mask_leaves(self):
        """A run whose operations are not those of the plan fails its check."""
        self.report(4, "--order=contiguous", "--micro-batch=2", "--flops=1GFLOP/s", "--link=1us,1GB/s")

    def test_forward_hides_messages_behind_its_queries(self):
        """With slow operations only sums of gradients are exposed, and of each layer the last hop of its keys' gradients."""
        slow = ["--flops=1MFLOP/s", "--link=1us,1GB/s"]
        ring, replicas = (self.report(2, f"--cp={c}", *slow)["virtual"][-1]["exposed_ps"] for c in (2, 1))
        layers, block = 2, 4 * 8 * 16 // 2 * 2 * 32  # bytes of eight sequences' keys and values on a rank
        self.assertEqual(ring, replicas + layers * (10**6 + 1000 * block))


class Heads(ContextCase):
    def test_to_heads_brings_all_tokens_of_some_heads(self):
        self.assert_traffic(2, EXCHANGE)
        self.assert_traffic(4, EXCHANGE, "--order=contiguous")

    def test_to_heads_keeps_sequences_apart(self):
        report = self.report(2, EXCHANGE, "--micro-batch=4", "--compare=2")
        self.assertLess(report["deviation"]["parameters"], 1e-5)


class Lesson(ContextCase):
    def test_replicas_of_groups_that_divide_a_sequence(self):
        self.assert_traffic(4, "--cp=2")
        self.assert_traffic(4, "--cp=2", EXCHANGE, "--recompute=block")

    def test_gradients_of_keys_come_home(self):
        self.assert_traffic(4, "--order=contiguous")
        report = self.report(4, "--micro-batch=2", "--compare=2")
        self.assertLess(report["deviation"]["parameters"], 1e-5)

    def test_a_checkpoint_is_that_of_a_whole_model(self):
        file = os.path.join(self.folder, "run.h5")
        fixed = ["--arithmetic=exact", f"--checkpoint={file}"]
        self.report(2, *fixed, "--stop-after=1")
        second = self.report(4, *fixed, "--resume", EXCHANGE)
        self.assertEqual((second["first_step"], second["digest"]), (1, self.expected["digest"]))


if __name__ == "__main__":
    exercise_case.main({"14.1": Ring, "14.2": Heads, "14": Lesson})
