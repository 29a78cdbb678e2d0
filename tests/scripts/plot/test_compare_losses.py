"""scripts/plot/compare_losses.py: what it prints, draws, and refuses."""

import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest
import xml.etree.ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "scripts/plot"))
import compare_losses  # noqa: E402
from documents import status_of  # noqa: E402


class CompareLosses(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, name, document):
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps(document), encoding="utf-8")
        return path

    def run_script(self, *arguments):
        """Status, output, complaints."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = status_of(compare_losses.main, [str(a) for a in arguments])
        return status, out.getvalue(), err.getvalue()

    def test_prints_every_nth_step_the_last_one_and_the_largest_distance(self):
        first = self.write("f32", {"loss": [5.0, 4.0, 3.0, 2.0]})
        second = self.write("bf16", {"loss": [5.0, 4.2, 3.0, 2.01]})
        status, out, _ = self.run_script(first, second, "--every=2")
        self.assertEqual(status, 0)
        rows = [line.split() for line in out.splitlines()]
        self.assertEqual([row[0] for row in rows[1:-1]], ["0", "2", "3"])
        self.assertEqual(rows[3], ["3", "2.000000", "2.010000", "0.500", "%"])
        self.assertEqual(out.splitlines()[-1], "bf16 is at most 5.000 % from f32 over 4 steps")

    def test_draws_a_curve_for_each_run(self):
        picture = self.folder / "curves.svg"
        runs = [self.write(name, {"loss": [5.5, 4.5, scale]}) for name, scale in (("f32", 4.0), ("bf16", 4.1), ("tf32", 3.9))]
        self.assertEqual(self.run_script(*runs, f"--plot={picture}")[0], 0)
        root = xml.etree.ElementTree.fromstring(picture.read_text(encoding="utf-8"))
        thick = [e for e in root.iter("{http://www.w3.org/2000/svg}path") if e.get("stroke-width") == "2"]
        self.assertEqual(len(thick), 2 * len(runs))  # a curve and its place in the legend
        words = [e.text for e in root.iter("{http://www.w3.org/2000/svg}text")]
        self.assertTrue({"f32", "bf16", "tf32", "step"} <= set(words), words)

    def test_two_files_of_one_name_are_two_runs(self):
        first = self.write("report", {"loss": [4.0]})
        (self.folder / "b").mkdir()
        self.assertIn("% from", self.run_script(first, self.write("b/report", {"loss": [5.0]}))[1])

    def test_what_is_no_report_is_named(self):
        good = self.write("good", {"loss": [1.0]})
        self.assertEqual(self.run_script(good, f"--plot={self.folder}/none/curves.svg")[:2], (2, ""))
        for bad in (self.write("empty", {"loss": []}), self.write("other", {"time": 1}), self.folder / "none.json"):
            status, _, err = self.run_script(good, bad)
            self.assertEqual(status, 2)
            self.assertIn("--report", err)


if __name__ == "__main__":
    unittest.main(verbosity=2)
