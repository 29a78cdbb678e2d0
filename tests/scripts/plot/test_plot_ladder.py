"""scripts/plot/plot_ladder.py: what it draws, and refuses."""

import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest
import xml.etree.ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "scripts/plot"))
import plot_ladder  # noqa: E402
from documents import status_of  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"
LETTER, CAPITAL = 7, 9  # pixels: the width of one at most, the height of the other, about


def report(lesson, ranks, held, step_s=0.02, sent=0, formula=None):
    """A document of --report; a category has its bytes, and the formula of all of them is that of the first."""
    memory = {category: {"current": bytes_, "peak": 2 * bytes_, "formula": bytes_} for category, bytes_ in held.items()}
    if formula is not None:
        memory[next(iter(memory))]["formula"] += formula - sum(held.values())
    return {"lesson": lesson, "ranks": ranks, "memory": memory, "time": {"step_s": step_s},
            "checks": [], "traffic": {"dp": {"bytes": sent // 4, "formula": 0}, "tp": {"bytes": sent - sent // 4, "formula": 0}}}


class PlotLadder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.picture = self.folder / "ladder.svg"

    def write(self, name, document):
        """A run; without a document it broke."""
        (self.folder / f"{name}.status").write_text("0", encoding="ascii")
        if document is not None:
            (self.folder / f"{name}.json").write_text(json.dumps(document), encoding="utf-8")

    def write_two(self):
        """Two runs whose figures are easy to compare."""
        self.write("01_one.np1.fast", report("01_one", 1, {"parameters": 1000, "activations": 7000, "staging": 0}))
        self.write("02_two.np4.fast", report("02_two", 4, {"parameters": 500, "activations": 1230}, 0.034, 7654))

    def run_script(self):
        """Status, output, complaints."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = status_of(plot_ladder.main, [str(self.folder), str(self.picture)])
        return status, out.getvalue(), err.getvalue()

    def drawn(self):
        return xml.etree.ElementTree.fromstring(self.picture.read_text(encoding="utf-8"))

    def words(self):
        return [e.text for e in self.drawn().iter(f"{SVG}text")]

    def bars(self):
        """(title, left edge, width, upper edge) of the pieces of bars, from above."""
        return [(e.find(f"{SVG}title").text, float(e.get("x")), float(e.get("width")), float(e.get("y")))
                for e in self.drawn().iter(f"{SVG}rect") if e.find(f"{SVG}title") is not None]

    def ticks(self):
        """The places of the formulas, from above, without that of the legend."""
        thick = [e.get("d") for e in self.drawn().iter(f"{SVG}path") if e.get("stroke-width") == "2"]
        return [float(d[1:].split()[0]) for d in thick][:-1]

    def assert_refused(self, *says):
        status, out, err = self.run_script()
        self.assertEqual((status, out), (2, ""))
        self.assertRegex(err, r"\Aerror: .*\n       .*\n\Z")  # one paragraph
        for word in says:
            self.assertIn(word, err)


class Rows(PlotLadder):
    def test_a_run_has_a_row_with_its_memory_its_step_and_what_it_sends(self):
        self.write_two()
        status, out, _ = self.run_script()
        self.assertEqual((status, out), (0, f"{self.picture} shows memory, time and traffic of 2 runs.\n"))
        self.assertEqual([title for title, *_ in self.bars()],
                         ["parameters: 1,000 bytes", "parameters: 1,000 bytes", "activations: 7,000 bytes", "a step: 0.02 s",
                          "parameters: 500 bytes", "parameters: 500 bytes", "activations: 1,230 bytes", "a step: 0.034 s",
                          "sent: 7,654 bytes"])
        self.assertTrue({"01_one", "1 rank", "02_two", "4 ranks", "model state of a rank, kB", "all memory, kB", "step, ms", "sent in a step, kB",
                         "20", "34", "7.65", "8", "1.73"} <= set(self.words()))

    def test_lengths_are_as_the_figures(self):
        self.write_two()
        self.run_script()
        width = [pixels for _, _, pixels, _ in self.bars()]
        self.assertAlmostEqual(width[4] / width[0], 0.5, delta=0.01)
        for piece, bytes_ in zip((1, 2, 5, 6), (1000, 7000, 500, 1230)):
            self.assertAlmostEqual(width[piece] / width[1], bytes_ / 1000, delta=0.02)
        self.assertAlmostEqual(width[7] / width[3], 1.7, delta=0.01)

    def test_memory_is_stacked_and_ends_at_its_formula(self):
        self.write_two()
        self.run_script()
        bars = self.bars()
        for first, tick in zip((1, 5), self.ticks()[1::2]):
            self.assertAlmostEqual(bars[first][1] + bars[first][2], bars[first + 1][1], delta=0.2)
            self.assertAlmostEqual(bars[first + 1][1] + bars[first + 1][2], tick, delta=0.2)

    def test_a_formula_that_is_wrong_is_seen(self):
        self.write("01_one.np1.fast", report("01_one", 1, {"parameters": 1000, "gradients": 1000}, formula=5000))
        self.run_script()
        (_, left, width, _), *_ = self.bars()
        self.assertAlmostEqual(self.ticks()[0], left + 5 * width, delta=0.5)

    def test_a_category_that_nobody_uses_has_no_colour(self):
        self.write_two()
        self.run_script()
        self.assertIn("activations", self.words())
        self.assertNotIn("staging", self.words())
        self.assertNotIn("optimizer", self.words())

    def test_steps_of_seconds_are_in_seconds(self):
        self.write("01_one.np1.fast", report("01_one", 1, {"parameters": 1000}, 2.5))
        self.run_script()
        self.assertTrue({"step, s", "2.5"} <= set(self.words()))

    def test_what_has_no_training_or_broke_has_no_row(self):
        self.write_two()
        self.write("03_three.np4.messages", {"traffic": {}})
        self.write("04_four.np4.fast", None)
        self.write("04_four.np4.exact", report("04_four", 4, {"parameters": 1}))
        status, out, _ = self.run_script()
        self.assertEqual(status, 0)
        self.assertIn("2 runs", out)
        self.assertFalse({"03_three", "04_four"} & set(self.words()))


class Legibility(PlotLadder):
    def test_no_words_overlap_or_leave_the_picture(self):
        """With names, figures and categories as long as they get."""
        held = {category: 9_990_000 for category in plot_ladder.CATEGORIES}  # 79.9 MB
        for lesson in ("01_single_device", "09_pipeline_parallel", "10_3d_parallel"):
            self.write(f"{lesson}.np16.fast", report(lesson, 16, held, 0.0888, 98_700_000))
        self.run_script()
        width = float(self.drawn().get("width"))
        placed = [(left, left + pixels, y, y + plot_ladder.BAR, title) for title, left, pixels, y in self.bars()]
        for e in self.drawn().iter(f"{SVG}text"):
            wide, base = LETTER * len(e.text), float(e.get("y"))
            left = float(e.get("x")) - {"start": 0, "middle": 0.5, "end": 1}[e.get("text-anchor")] * wide
            self.assertTrue(0 <= left and left + wide <= width, e.text)
            for other_left, other_right, top, bottom, other in placed:
                beside = left + wide <= other_left or other_right <= left
                self.assertTrue(beside or base <= top or bottom <= base - CAPITAL, (e.text, other))
            placed.append((left, left + wide, base - CAPITAL, base, e.text))

    def test_on_a_page_of_any_colour_it_has_its_own_background(self):
        self.write_two()
        self.run_script()
        ground = next(self.drawn().iter(f"{SVG}rect"))
        self.assertEqual((ground.get("fill"), ground.get("width")), ("#ffffff", self.drawn().get("width")))


class Refusals(PlotLadder):
    def test_a_folder_without_runs(self):
        self.assert_refused(str(self.folder), "no report of a lesson that trains", "scripts/ladder.sh")
        self.write("04_four.np4.fast", None)
        self.assert_refused("no report of a lesson that trains")
        self.assertFalse(self.picture.exists())

    def test_what_is_no_report(self):
        for document in ([], {"lesson": "x"}, {**report("x", 1, {"parameters": 1}), "memory": None}):
            with self.subTest(document=document):
                self.write("01_one.np1.fast", document)
                self.assert_refused("cannot be drawn")
        (self.folder / "01_one.np1.fast.json").write_text("not JSON", encoding="utf-8")
        self.assert_refused("cannot be drawn")

    def test_a_picture_that_cannot_be_written(self):
        self.write_two()
        self.picture = self.folder / "nowhere/ladder.svg"
        self.assert_refused("nowhere")


if __name__ == "__main__":
    unittest.main(verbosity=2)
