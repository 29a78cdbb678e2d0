"""scripts/plot/plot_split.py: its tables and pictures of lesson 08's shards, and its message for any other text."""

import contextlib
import io
import pathlib
import sys
import tempfile
import unittest
import xml.etree.ElementTree
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "scripts/plot"))
import plot_split  # noqa: E402
from documents import status_of  # noqa: E402
from plot_split import LEFT, SIDE  # noqa: E402
from svg import RANKS  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"
# As the lesson prints it for 8 heads of 8 channels, a vocabulary of 250 that is padded to 256, and 4 parts.
TEXT = """# model nano: 220,160 parameters, L=4 H=8 C=64 V=250, context 64
# tensor-parallel rank 0 of 4 has
#   wte.weight                  (250, 64)  rows 0..63
#   wpe.weight                   (64, 64)  all
#   h.0.attn.c_attn.weight      (64, 192)  columns 0..15 64..79 128..143
#   h.0.attn.c_attn.bias            (192)  columns 0..15 64..79 128..143
#   h.0.attn.c_proj.weight       (64, 64)  rows 0..15
#   h.0.mlp.c_fc.weight         (64, 256)  columns 0..63
#   h.0.mlp.c_proj.weight       (256, 64)  rows 0..63
"""


def rectangles(title):
    """Place and colour of each with such a title, as (x, y, width, height, colour)."""
    root = xml.etree.ElementTree.fromstring(plot_split.draw(plot_split.Parts(TEXT)))
    return [tuple(float(box.get(name)) for name in ("x", "y", "width", "height")) + (box.get("fill"),)
            for box in root.iter(SVG + "rect") if (box.findtext(SVG + "title") or "").startswith(title)]


class PlotSplit(unittest.TestCase):
    def run_script(self, text):
        """Status, output, errors and picture of the script."""
        output, errors = io.StringIO(), io.StringIO()
        with tempfile.TemporaryDirectory() as folder:
            picture = pathlib.Path(folder) / "split.svg"
            with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors), \
                    mock.patch.object(sys, "stdin", io.StringIO(text)):
                status = status_of(plot_split.main, [f"--output={picture}"])
            return status, output.getvalue(), errors.getvalue(), picture.exists()

    def test_a_line_for_each_rank(self):
        status, output, _, drawn = self.run_script(TEXT)
        lines = output.splitlines()
        self.assertEqual((status, drawn, len(lines)), (0, True, 5))
        self.assertEqual(lines[2].split(), ["1", "2..3", "64..127", "16..31", "80..95", "144..159", "16..31", "64..127",
                                            "64..127"])
        self.assertEqual(lines[4].split()[:3], ["3", "6..7", "192..249"])  # padding is no entry of the vocabulary

    def test_columns_of_q_k_and_v_are_drawn_where_they_are(self):
        parts = rectangles("c_attn")
        self.assertEqual([colour for *_, colour in parts], [colour for colour in RANKS[:4] for _ in range(3)])
        left = min(x for x, *_ in parts)
        self.assertGreater(left, LEFT)
        for i, (x, _, width, height, _) in enumerate(parts):
            part, section = divmod(i, 3)
            self.assertAlmostEqual(x - left, (section + part / 4) * SIDE, delta=0.11)
            self.assertAlmostEqual(width, SIDE / 4, delta=0.06)
            self.assertAlmostEqual(height, SIDE, delta=0.06)

    def test_rows_lie_below_each_other_and_columns_of_the_transposed_beside(self):
        for title, along, extent, shares in (("c_proj (", 1, SIDE, 4), ("c_proj of the MLP", 1, 4 * SIDE, 4),
                                             ("wte (", 1, 250 / 64 * SIDE, 250 / 64), ("wte'", 0, 250 / 64 * SIDE, 250 / 64),
                                             ("c_fc", 0, 4 * SIDE, 4)):
            parts = rectangles(title)
            self.assertEqual([colour for *_, colour in parts], RANKS[:4], title)
            for i, part in enumerate(parts):
                self.assertAlmostEqual(part[along] - parts[0][along], i * extent / shares, delta=0.11, msg=title)
            self.assertAlmostEqual(sum(part[2 + along] for part in parts), extent, delta=0.3, msg=title)

    def test_each_rank_has_a_partial_sum_wherever_ranks_sum(self):
        for part, colour in enumerate(RANKS[:4]):
            sums = rectangles(f"partial sum (R, C) of rank {part}")
            self.assertEqual([found for *_, found in sums], [colour] * 3)  # embedding, attention, MLP

    def test_another_text_is_refused(self):
        for text, word in (("# lesson 01", "tensor-parallel rank 0 of t"), (TEXT.replace("c_fc", "fc"), "c_fc"),
                           (TEXT.replace("of 4 has", "of 16 has"), "colours")):
            status, output, errors, drawn = self.run_script(text)
            self.assertEqual((status, output, drawn), (2, "", False))
            self.assertIn(word, errors)


if __name__ == "__main__":
    unittest.main()
