"""scripts/plot/plot_traffic.py: what it prints and draws of a report, and what it says of another one."""

import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest
import xml.etree.ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "scripts/plot"))
import plot_traffic  # noqa: E402
from documents import status_of  # noqa: E402
from plot_traffic import AXES, CELL, LEFT, TOP  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"
# Two stages of two parts: rank 0 sends to its part 1, and to stage 1 rows and the tied embedding; nothing to replicas.
REPORT = {"ranks": 4, "receivers": {
    "dp": [[0] * 4] * 4,
    "tp": [[0, 400, 0, 0], [400, 0, 0, 0], [0, 0, 0, 100], [0, 0, 100, 0]],
    "pp": [[0, 0, 1500, 0], [0, 0, 0, 1500], [1600, 0, 0, 0], [0, 1600, 0, 0]],
    "tied": [[0, 0, 64, 0], [0, 0, 0, 64], [64, 0, 0, 0], [0, 64, 0, 0]]}}


class PlotTraffic(unittest.TestCase):
    def run_script(self, report):
        """Status, output, errors and picture of the script."""
        output, errors = io.StringIO(), io.StringIO()
        with tempfile.TemporaryDirectory() as folder:
            path, picture = pathlib.Path(folder) / "report.json", pathlib.Path(folder) / "traffic.svg"
            path.write_text(json.dumps(report), encoding="utf-8")
            with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
                status = status_of(plot_traffic.main, [str(path), str(picture)])
            return status, output.getvalue(), errors.getvalue(), picture.read_text() if picture.exists() else ""

    def squares(self):
        """Middle, area and colour of each square, by its title."""
        root = xml.etree.ElementTree.fromstring(self.run_script(REPORT)[3])
        found = {}
        for box in root.iter(SVG + "rect"):
            if title := box.findtext(SVG + "title"):
                x, y, width, height = (float(box.get(name)) for name in ("x", "y", "width", "height"))
                found[title] = (x + width / 2, y + height / 2, width * height, box.get("fill"))
        return found

    def test_a_line_for_each_pair_and_axis(self):
        status, output, _, _ = self.run_script(REPORT)
        lines = [line.split() for line in output.splitlines()[1:]]
        self.assertEqual((status, len(lines)), (0, 12))
        self.assertEqual(lines[:3], [["0", "1", "400", "tp"], ["0", "2", "1,500", "pp"], ["0", "2", "64", "tied"]])

    def test_a_square_for_each_in_the_row_of_the_sender_and_the_column_of_the_receiver(self):
        squares = self.squares()
        self.assertEqual(len(squares), 12)
        x, y, _, colour = squares["rank 3 to rank 1, to stages (pp): 1,600 bytes"]
        self.assertEqual((int((x - LEFT) // CELL), int((y - TOP) // CELL), colour), (1, 3, AXES["pp"][1]))

    def test_areas_are_bytes(self):
        squares = self.squares()
        large = squares["rank 2 to rank 3, to parts (tp): 100 bytes"][2]
        self.assertAlmostEqual(squares["rank 0 to rank 1, to parts (tp): 400 bytes"][2] / large, 4, delta=0.1)

    def test_a_report_without_receivers_is_refused(self):
        status, _, errors, picture = self.run_script({"ranks": 4})
        self.assertEqual((status, picture), (2, ""))
        self.assertIn("does not say who receives what", errors)
        self.assertIn("--report=FILE.json", errors)


if __name__ == "__main__":
    unittest.main()
