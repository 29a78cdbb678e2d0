"""scripts/plot/plot_memory.py: what it prints, draws, and refuses."""

import contextlib
import io
import json
import pathlib
import re
import sys
import tempfile
import unittest
import xml.etree.ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "scripts/plot"))
import plot_memory  # noqa: E402
from documents import status_of  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"


def report(lesson, **held):
    """A document of --report; a category has its formula, or (bytes, formula)."""
    pairs = {category: value if isinstance(value, tuple) else (value, value) for category, value in held.items()}
    return {"lesson": lesson, "ranks": 4, "model": {"name": "nano"},
            "memory": {category: {"current": current, "peak": current, "formula": formula}
                       for category, (current, formula) in pairs.items()}}


def span(ts, dur, kind, name, rank=0):
    return {"ph": "X", "pid": rank, "tid": 0, "ts": ts, "dur": dur, "cat": kind, "name": name}


def held(ts, rank=0, **args):
    return {"ph": "C", "pid": rank, "ts": ts, "name": "memory", "args": args}


# Two steps of rank 0, of 1 and 10 ms; the second begins at 2 ms. Gradients are freed and allocated 4 and 6 ms after that.
TRACE = {"traceEvents": [
    {"ph": "M", "pid": 0, "name": "process_name", "args": {"name": "rank 0"}},
    held(0, parameters=1000, gradients=100, staging=0),
    span(100, 1000, "compute", "training step"),
    held(500, parameters=1000, gradients=700, staging=0),
    held(1500, parameters=1000, gradients=400, staging=0),
    held(6000, parameters=1000, gradients=150, staging=0),
    held(8000, parameters=1000, gradients=600, staging=0),
    held(13000, parameters=5000, gradients=0, staging=0),
    span(5000, 2000, "hidden", "bucket of unit 3"),
    span(7500, 1000, "exposed", "waiting for a collective"),
    span(2000, 10000, "compute", "training step"),
    held(3000, rank=1, parameters=9000),
    span(2000, 9000, "compute", "training step", rank=1),
]}


class PlotMemory(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.picture = self.folder / "memory.svg"

    def write(self, name, document):
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps(document), encoding="utf-8")
        return path

    def run_script(self, *arguments):
        """Status, output, complaints."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = status_of(plot_memory.main, [*map(str, arguments), f"--output={self.picture}"])
        return status, out.getvalue(), err.getvalue()

    def drawn(self):
        return xml.etree.ElementTree.fromstring(self.picture.read_text(encoding="utf-8"))

    def words(self):
        return [e.text for e in self.drawn().iter(f"{SVG}text")]

    def titled(self):
        """{title: shape} of the elements that have a title."""
        return {e.find(f"{SVG}title").text: e for e in self.drawn().iter()
                if e.tag != f"{SVG}svg" and e.find(f"{SVG}title") is not None}

    def ticks(self):
        """The places of the formulas, from above, without that of the legend."""
        thick = [e.get("d") for e in self.drawn().iter(f"{SVG}path") if e.get("stroke-width") == "2"]
        return [float(re.match(r"M([\d.]+)", d).group(1)) for d in thick][:-1]

    def assert_refused(self, *arguments, says):
        status, out, err = self.run_script(*arguments)
        self.assertEqual((status, out), (2, ""))
        self.assertFalse(self.picture.exists())
        self.assertRegex(err, r"\Aerror: .*\n       .*\n\Z")  # one paragraph
        for word in says:
            self.assertIn(word, err)

    def outline(self, title):
        """Corners of an area."""
        return [tuple(map(float, pair.split())) for pair in self.titled()[title].get("d")[1:-1].split("L")]


class Bars(PlotMemory):
    def test_a_bar_is_as_long_as_its_bytes_and_ends_at_its_formula(self):
        paths = [self.write("a", report("03_ddp", parameters=1000, gradients=1000, optimizer=2000, workspace=77)),
                 self.write("b", report("05_zero2", parameters=1000, gradients=250, optimizer=500))]
        status, out, _ = self.run_script("bars", *paths)
        self.assertEqual(status, 0)
        self.assertEqual(out.splitlines()[1].split(), ["03_ddp", "1,000", "1,000", "2,000", "4,000", "=", "4,000"])
        self.assertEqual(out.splitlines()[2].split(), ["05_zero2", "1,000", "250", "500", "1,750", "=", "1,750"])
        bars = [e for e in self.drawn().iter(f"{SVG}rect") if e.find(f"{SVG}title") is not None]
        width = [float(bar.get("width")) for bar in bars]
        self.assertEqual(len(bars), 6)
        for bytes_of_bar, pixels in zip([1000, 1000, 2000, 1000, 250, 500], width):
            self.assertAlmostEqual(pixels / width[0], bytes_of_bar / 1000, delta=0.01)
        for tick, last in zip(self.ticks(), (bars[2], bars[5])):
            self.assertAlmostEqual(tick, float(last.get("x")) + float(last.get("width")), delta=0.2)
        self.assertTrue({"03_ddp", "05_zero2", "nano, N = 4", "4,000 bytes", "formula"} <= set(self.words()))

    def test_a_formula_that_is_wrong_is_seen(self):
        self.run_script("bars", self.write("a", report("04_zero1", parameters=(1000, 1000), gradients=(500, 1500), optimizer=0)))
        parameters = self.titled()["parameters: 1,000 bytes"]
        left, width = float(parameters.get("x")), float(parameters.get("width"))
        self.assertAlmostEqual(self.ticks()[0], left + 2.5 * width, delta=0.5)
        self.assertIn("1,500 bytes", self.words())

    def test_what_is_no_report_is_named(self):
        good = self.write("good", report("03_ddp", parameters=1, gradients=1, optimizer=1))
        for name, document in [("trace", TRACE), ("list", []), ("empty", report("x", parameters=0, gradients=0, optimizer=0)),
                               ("part", report("x", parameters=1)), ("plan", {**report("x"), "memory": None})]:
            with self.subTest(name):
                self.assert_refused("bars", good, self.write(name, document), says=[f"{name}.json", "--report"])
        self.assert_refused("bars", self.folder / "none.json", says=["none.json"])
        (self.folder / "text.json").write_text("not JSON", encoding="utf-8")
        self.assert_refused("bars", self.folder / "text.json", says=["text.json"])


class OverTime(PlotMemory):
    def test_a_step_begins_with_what_there_was_and_ends_with_itself(self):
        status, out, _ = self.run_script("time", self.write("t", TRACE), "--step=1")
        self.assertEqual(status, 0)
        rows = {line.split()[0]: line.split()[1:] for line in out.splitlines()[1:]}
        # The 700 of the step before and the 5,000 of after it are not of this one; what has no bytes is no row.
        self.assertEqual(rows, {"gradients": ["150", "600"], "parameters": ["1,000", "1,000"], "total": ["1,150", "1,600"]})

    def test_the_shortest_step_is_drawn_if_none_is_asked_for(self):
        status, out, _ = self.run_script("time", self.write("t", TRACE))
        self.assertEqual(status, 0)
        self.assertIn("total                   1,100       1,700", out)

    def test_what_changes_lies_on_what_does_not(self):
        self.run_script("time", self.write("t", TRACE), "--step=1")
        left, right = plot_memory.LEFT, plot_memory.WIDTH - plot_memory.RIGHT
        bottom = plot_memory.TOP + plot_memory.PLOT
        below = self.outline("parameters")
        self.assertEqual(len(below), 4)  # a rectangle
        self.assertEqual((below[0], below[-1]), ((left, bottom), (right, bottom)))
        height = bottom - below[1][1]
        at = [left + part * (right - left) for part in (0, 0.4, 0.4, 0.6, 0.6, 1)]
        corners = self.outline("gradients")[1:-1]
        for (x, y), place, total in zip(corners, at, (1400, 1400, 1150, 1150, 1600, 1600)):
            self.assertAlmostEqual(x, place, delta=0.1)
            self.assertAlmostEqual((bottom - y) / height, total / 1000, delta=0.01)
        self.assertEqual(len(corners), len(at))

    def test_lanes_show_what_is_done_meanwhile(self):
        self.run_script("time", self.write("t", TRACE), "--step=1")
        words = set(self.words())  # a message has the last word of its name if there is no room for all of it
        self.assertTrue({"this rank", "messages", "compute", "exposed communication", "hidden communication", "3"} <= words,
                        words)
        self.assertNotIn("bucket of unit 3", words)
        wide = plot_memory.WIDTH - plot_memory.RIGHT - plot_memory.LEFT
        titled = self.titled()
        for name, start, length, kinds in [("training step", 0, 10, 0), ("waiting for a collective", 5.5, 1, 0),
                                           ("bucket of unit 3", 3, 2, 1)]:
            bar = titled[f"{name}: {length:.3f} ms"]
            self.assertAlmostEqual(float(bar.get("x")), plot_memory.LEFT + start / 10 * wide, delta=0.1)
            self.assertAlmostEqual(float(bar.get("width")), length / 10 * wide, delta=0.1)
            self.assertIn(bar.get("fill"), plot_memory.LANES[kinds][1].values())

    def test_of_another_rank_and_of_some_categories(self):
        path = self.write("t", TRACE)
        status, out, _ = self.run_script("time", path, "--step=1", "--only=gradients,optimizer")
        self.assertEqual(status, 0)
        self.assertIn("total                     150         600", out)
        later = {"traceEvents": [e if e.get("ts") != 3000 else {**e, "ts": 1000} for e in TRACE["traceEvents"]]}
        status, out, _ = self.run_script("time", self.write("later", later), "--step=0", "--rank=1")
        self.assertEqual(status, 0)
        self.assertIn("total                   9,000       9,000", out)

    def test_another_lesson_is_a_line_of_the_same_categories(self):
        other = self.write("other", report("04_zero1", parameters=1000, gradients=1000, activations=50000))
        status, _, _ = self.run_script("time", self.write("t", TRACE), "--only=parameters,gradients", f"--compare={other}")
        self.assertEqual(status, 0)
        self.assertIn("04_zero1", self.words())
        dashed = [e.get("d") for e in self.drawn().iter(f"{SVG}path") if e.get("stroke-dasharray")]
        self.assertEqual(len(dashed), 1)
        y = float(dashed[0].split()[1].split("L")[0])
        bottom = plot_memory.TOP + plot_memory.PLOT
        self.assertAlmostEqual((bottom - y) / (bottom - self.outline("parameters")[1][1]), 2, delta=0.01)

    def test_what_a_trace_does_not_have_is_said(self):
        path = self.write("t", TRACE)
        without = {"traceEvents": [e for e in TRACE["traceEvents"] if e["ph"] != "C"]}
        for arguments, says in [
            ((path, "--step=2"), ["steps 0 to 1", "not 2"]),
            ((path, "--step=-1"), ["not -1"]),
            ((path, "--rank=2"), ["no training steps of rank 2"]),
            ((path, "--step=0", "--rank=1"), ["no memory of rank 1"]),  # its only event is later
            ((path, "--only=staging"), ["no bytes of staging"]),
            ((path, "--only=gradient"), ["no bytes of gradient"]),
            ((self.write("spans", without),), ["spans.json", "no memory of rank 0"]),
            ((self.write("report", report("x", parameters=1)),), ["report.json", "traceEvents"]),
            ((path, f"--compare={path}"), ["t.json", "lesson"]),
            ((self.folder / "none.json",), ["none.json"]),
        ]:
            with self.subTest(arguments=arguments):
                self.assert_refused("time", *arguments, says=["--trace", *says])

    def test_a_picture_that_cannot_be_written_is_an_error(self):
        self.picture = self.folder / "nowhere/memory.svg"
        self.assert_refused("time", self.write("t", TRACE), says=["nowhere"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
