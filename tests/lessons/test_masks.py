"""The prefix mask: one digest over all lessons, and what it is between causal and full."""

import unittest

from program_case import ProgramCase

NANO = ("--steps=3", "--sequence=32", "--layers=4", "--seed=4", "--dropout=0.1")
LAYOUTS = (  # of every lesson that trains; ranks and options
    ("03_ddp", 2, ()),
    ("03_ddp", 4, ("--micro-batch=2",)),
    ("04_zero1", 2, ()),
    ("05_zero2", 4, ()),
    ("06_zero3", 2, ()),
    ("06_zero3", 4, ("--recompute=block",)),
    ("07_offload", 2, ()),
    ("08_tensor_parallel", 2, ("--sequence-parallel",)),
    ("08_tensor_parallel", 4, ("--tp=2", "--dp=2")),
    ("09_pipeline_parallel", 2, ("--schedule=interleaved",)),
    ("09_pipeline_parallel", 4, ("--micro-batch=2",)),
    ("10_3d_parallel", 4, ("--dp=2", "--tp=2")),
    ("10_3d_parallel", 8, ()),
    ("11_zero_bubble", 2, ()),
)


class Masks(ProgramCase):
    def run_of(self, lesson, *options, ranks=None):
        self.program = "lessons/" + lesson
        return self.report(*NANO, *options, ranks=ranks)

    def test_one_digest_on_every_layout(self):
        exact = ("--arithmetic=exact", "--mask=prefix:9")
        alone = self.run_of("01_single_device", *exact)
        for lesson, ranks, options in LAYOUTS:
            with self.subTest(lesson=lesson, ranks=ranks):
                report = self.run_of(lesson, *exact, *options, ranks=ranks)
                self.assertEqual(report["digest"], alone["digest"])
                self.assertEqual(report["validation"], alone["validation"])

    def test_three_ranks_agree_to_the_last_digits(self):
        alone = self.run_of("01_single_device", "--mask=prefix:9", "--global-batch=12")
        for lesson in ("03_ddp", "06_zero3", "09_pipeline_parallel"):
            with self.subTest(lesson=lesson):
                report = self.run_of(lesson, "--mask=prefix:9", "--global-batch=12", ranks=3)
                for loss, expected in zip(report["loss"], alone["loss"], strict=True):
                    self.assertAlmostEqual(loss, expected, delta=1e-5)

    def test_it_begins_at_causal_and_ends_at_full(self):
        def digest(mask):
            return self.run_of("01_single_device", "--arithmetic=exact", f"--mask={mask}")["digest"]
        self.assertEqual(digest("prefix:1"), digest("causal"))  # every query sees the first token anyway
        self.assertEqual(len({digest(mask) for mask in ("causal", "prefix:2", "prefix:31", "prefix:32", "full")}), 5)

    def test_the_report_counts_the_scores_that_are_used(self):
        def visible(mask):
            counts = self.run_of("01_single_device", "--peak=1TFLOP/s", f"--mask={mask}")["utilisation"]["counts"]
            return {count["name"]: count["flops"] for count in counts}["MFU, visible"]
        more = visible("prefix:9") - visible("causal")
        tokens, sequences, L, C = 16 * 32, 16, 4, 64
        self.assertAlmostEqual(more, 12 * L * C * sequences * 9 * 8 / 2)  # K (K-1) / 2 more scores a sequence
        self.assertAlmostEqual(visible("full") - visible("causal"), 12 * L * C * tokens * (32 - 33 / 2))


if __name__ == "__main__":
    unittest.main()
