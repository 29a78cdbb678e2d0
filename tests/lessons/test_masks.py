"""The prefix mask: one digest over all lessons, and what it is between causal and full."""

import unittest

from layouts_case import LayoutsCase


class Masks(LayoutsCase):
    def test_one_digest_on_every_layout(self):
        self.assert_one_digest("--mask=prefix:9")

    def test_three_ranks_agree_to_the_last_digits(self):
        self.assert_three_ranks_agree("--mask=prefix:9")

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
