"""scripts/plot/plot_plan.py: what it prints, draws, and refuses."""

import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest
import xml.etree.ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "scripts/plot"))
import plot_plan  # noqa: E402
from documents import status_of  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"
LETTER, CAPITAL = 6.4, 9  # pixels: the width of one, the height of the other, about
GB = 1e9


def layout(text, memory, time, host_bytes=0):
    """A layout of a report; memory in GB."""
    return {"text": text, "memory_bytes": {name: size * GB for name, size in memory.items()}, "time_s": time,
            "step_s": sum(time.values()), "host_bytes": host_bytes}


def report(*layouts, memory=80 * GB):
    """Report of lesson 17 on the question layout, as far as it is drawn."""
    return {"model": {"name": "small"}, "machine": "core", "machine_memory": memory, "layouts": list(layouts),
            "options": {"gpus": 16, "precision": "bf16", "system": "megatron"}}


ONE = layout("dp=2 tp=8", {"activations": 30, "model states": 20, "weight gradient": 0.001},
             {"update": 0.5, "computation": 3.0, "bubble": 0.0, "messages between replicas": 0.5})
TWO = layout("dp=4 tp=4", {"activations": 15, "model states": 40, "attention again": 5},
             {"update": 0.5, "computation": 3.0, "bubble": 1.0, "messages between replicas": 0.5}, 2 * GB)


class PlotPlan(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.report = pathlib.Path(folder.name) / "report.json"
        self.picture = pathlib.Path(folder.name) / "plan.svg"

    def run_script(self, document):
        """Status, output, complaints."""
        self.report.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = status_of(plot_plan.main, [str(self.report), f"--output={self.picture}"])
        return status, out.getvalue(), err.getvalue()

    def drawn(self):
        return xml.etree.ElementTree.fromstring(self.picture.read_text(encoding="utf-8"))

    def words(self):
        return [e.text for e in self.drawn().iter(f"{SVG}text")]

    def pieces(self):
        """(title, left edge, width, colour) of the pieces of bars, from above, memory first."""
        return [(e.find(f"{SVG}title").text, float(e.get("x")), float(e.get("width")), e.get("fill"))
                for e in self.drawn().iter(f"{SVG}rect") if e.find(f"{SVG}title") is not None]

    def ticks(self):
        """The places of the marks at a GPU's memory."""
        return [float(e.get("d")[1:].split()[0]) for e in self.drawn().iter(f"{SVG}path") if e.get("stroke-width") == "2"]

    def assert_refused(self, document, *says):
        status, out, err = self.run_script(document)
        self.assertEqual((status, out), (2, ""))
        self.assertFalse(self.picture.exists())
        self.assertRegex(err, r"\Aerror: .*\n       .*\n\Z")  # one paragraph
        for word in says:
            self.assertIn(word, err)


class Bars(PlotPlan):
    def test_bars_are_stacked_in_order_and_as_long_as_their_figures(self):
        self.assertEqual(self.run_script(report(ONE, TWO))[0], 0)
        pieces = self.pieces()
        self.assertEqual([title for title, *_ in pieces],
                         ["model states: 20 GB", "activations: 30 GB", "weight gradient: 0.001 GB",
                          "computation: 3 s", "messages between replicas: 0.5 s", "update: 0.5 s",
                          "model states: 40 GB", "activations: 15 GB", "attention again: 5 GB",
                          "computation: 3 s", "bubble: 1 s", "messages between replicas: 0.5 s", "update: 0.5 s"])
        for first, last in ((0, 2), (3, 5), (6, 8), (9, 12)):
            for before, after in zip(pieces[first:last], pieces[first + 1:last + 1]):
                self.assertAlmostEqual(before[1] + before[2], after[1], delta=0.2)
                self.assertNotEqual(before[3], after[3])
        wide = [width for _, _, width, _ in pieces]
        self.assertAlmostEqual(wide[6] / wide[0], 2, delta=0.01)
        self.assertAlmostEqual(wide[1] / wide[0], 1.5, delta=0.01)
        self.assertAlmostEqual(wide[3] / wide[10], 3, delta=0.01)

    def test_the_tick_is_at_the_memory_of_a_GPU(self):
        self.run_script(report(ONE, TWO))
        _, left, width, _ = self.pieces()[0]
        first, second, _ = self.ticks()  # of both rows and of the legend
        self.assertEqual(first, second)
        self.assertAlmostEqual(first, left + 4 * width, delta=0.2)
        self.assertIn("a GPU has 80 GB", self.words())

    def test_a_GPU_with_far_more_memory_has_no_tick(self):
        self.run_script(report(ONE, memory=5000 * GB))
        self.assertEqual(self.ticks(), [])
        self.assertGreater(self.pieces()[1][2], 100)
        self.assertIn("a GPU has 5000 GB", self.words())

    def test_words(self):
        self.run_script(report(ONE, TWO))
        self.assertTrue({"small on 16 x core, bf16, as megatron runs it", "memory of the GPU that needs most, GB", "one step, s",
                         "dp=2 tp=8", "dp=4 tp=4", "50.0", "60.0", "4.000", "5.000", "+25.0 %"} <= set(self.words()))

    def test_the_legend_has_what_is_seen(self):
        self.run_script(report(ONE, TWO))
        self.assertTrue({"model states", "activations", "attention again", "bubble", "update"} <= set(self.words()))
        self.assertFalse({"weight gradient", "logits", "recomputation"} & set(self.words()))

    def test_terms_that_are_new_are_drawn_too(self):
        self.run_script(report(layout("dp=1", {"a new term": 8}, {"computation": 0.2, "a new part": 0.1})))
        self.assertEqual([title for title, *_ in self.pieces()],
                         ["a new term: 8 GB", "computation: 200 ms", "a new part: 100 ms"])
        self.assertTrue({"a new term", "a new part", "one step, ms"} <= set(self.words()))

    def test_no_two_terms_of_one_program_have_the_same_colour(self):
        """Terms of the lessons have their colours from the other pictures."""
        terms = [colour for name, colour in plot_plan.TERMS.items() if name not in plot_plan.COLOURS or name == "activations"]
        for colours in (terms, list(plot_plan.PARTS.values())):
            self.assertEqual(len(set(colours)), len(colours))


class Table(PlotPlan):
    def test_it_has_all_numbers(self):
        _, out, _ = self.run_script(report(ONE, TWO))
        self.assertEqual([line.split() for line in out.splitlines()],
                         [line.split() for line in """small on 16 x core, bf16, as megatron runs it
                          1 dp=2 tp=8
                          2 dp=4 tp=4

                          memory, GB 1 2
                          model states 20.0000 40.0000
                          activations 30.0000 15.0000
                          attention again - 5.0000
                          weight gradient 0.0010 -
                          together 50.0010 60.0000
                          a GPU has 80.0000 80.0000
                          on the host - 2.0000

                          step, s 1 2
                          computation 3.0000 3.0000
                          bubble - 1.0000
                          messages between replicas 0.5000 0.5000
                          update 0.5000 0.5000
                          together 4.0000 5.0000""".splitlines()])

    def test_without_offload_the_host_has_no_line(self):
        self.assertNotIn("host", self.run_script(report(ONE))[1])


class Legibility(PlotPlan):
    def test_no_words_overlap_or_leave_the_picture(self):
        """With names, figures and terms as long as they get."""
        text = ("dp=1024 tp=8 pp=16, 1536 micro-batches of 16, 24 stages a rank, selective recomputation, sequence parallel, ZeRO-1, "
                "optimizer on the disk")
        rows = [layout(text, {name: 79.9 / len(plot_plan.TERMS) for name in plot_plan.TERMS},
                       {name: step / len(plot_plan.PARTS) for name in plot_plan.PARTS}) for step in (444.4, 999.4)]
        self.run_script(report(*rows))
        size = [float(self.drawn().get(side)) for side in ("width", "height")]
        placed = [(float(e.get("x")), float(e.get("x")) + float(e.get("width")), float(e.get("y")),
                   float(e.get("y")) + float(e.get("height")), "a bar") for e in list(self.drawn().iter(f"{SVG}rect"))[1:]]
        for e in self.drawn().iter(f"{SVG}text"):
            wide, base = LETTER * len(e.text), float(e.get("y"))
            left = float(e.get("x")) - {"start": 0, "middle": 0.5, "end": 1}[e.get("text-anchor")] * wide
            self.assertTrue(0 <= left and left + wide <= size[0] and base + 4 <= size[1], e.text)
            for other_left, other_right, top, bottom, other in placed:
                beside = left + wide <= other_left or other_right <= left
                self.assertTrue(beside or base <= top or bottom <= base - CAPITAL, (e.text, other))
            placed.append((left, left + wide, base - CAPITAL, base, e.text))


class Refusals(PlotPlan):
    def test_what_is_no_report(self):
        for document in ("not JSON", 7, {**report(ONE), "layouts": 3}, {**report(ONE), "machine_memory": "80 GB"},
                         report({**ONE, "memory_bytes": None}), report({**ONE, "time_s": {"computation": "1 s"}})):
            with self.subTest(document=document):
                self.assert_refused(document, "it is not a report")

    def test_what_a_report_lacks(self):
        for key in ("machine_memory", "machine", "model", "options"):
            self.assert_refused({name: value for name, value in report(ONE).items() if name != key}, f"it has no '{key}'")
        self.assert_refused({"lesson": "17_choose_a_layout", "largest_layers": 8}, "no list of layouts", "--question=layout")
        self.assert_refused([], "no list of layouts")
        self.assert_refused(report(), "empty")
        self.assert_refused(report(ONE, memory=0), "no memory")
        self.assert_refused(report({**ONE, "step_s": 0}), "no time")

    def test_files(self):
        self.report.unlink(missing_ok=True)
        err = io.StringIO()
        with contextlib.redirect_stderr(err):
            self.assertEqual(status_of(plot_plan.main, [str(self.report), f"--output={self.picture}"]), 2)
        self.assertIn("No such file", err.getvalue())
        self.picture = self.report.parent / "nowhere/plan.svg"
        self.assert_refused(report(ONE), "nowhere")


if __name__ == "__main__":
    unittest.main(verbosity=2)
