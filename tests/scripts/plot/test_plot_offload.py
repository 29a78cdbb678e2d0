"""scripts/plot/plot_offload.py: what it prints and draws of measured steps, and what it says of a run that fails."""

import contextlib
import io
import pathlib
import sys
import tempfile
import unittest
import xml.etree.ElementTree
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "scripts/plot"))
import plot_offload  # noqa: E402
from documents import status_of  # noqa: E402
from plot_offload import Point  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"
# As the rows are: the first has no disk; the second and the third need the same.
POINTS = [Point(400_000_000, {"host": 1.0})] + [
    Point(limit_bytes, {"host": host_s, "disk": disk_s})
    for limit_bytes, host_s, disk_s in ((300_000_000, 1.5, 2.5), (300_000_000, 1.0, 2.0), (250_000_000, 2, 3),
                                        (200_000_000, 2, 3), (100_000_000, 3, 4), (50_000_000, 3.5, 5), (20_000_000, 4, 5))]


def run(*arguments):
    """Status, output and errors of the script."""
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        return status_of(plot_offload.main, arguments), output.getvalue(), errors.getvalue()


class PlotOffload(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.picture = pathlib.Path(folder.name) / "limit.svg"

    def test_a_line_for_each_row(self):
        with mock.patch.object(plot_offload, "measure", return_value=POINTS):
            status, output, _ = run(f"--output={self.picture}")
        lines = output.splitlines()
        self.assertEqual((status, len(lines)), (0, 1 + len(plot_offload.ROWS)))
        self.assertEqual(lines[1].split(), ["a", "400,000,000", "1.00", "06_zero3"])
        self.assertEqual(lines[2].split(), ["b", "300,000,000", "1.50", "2.50", "07_offload", "--offload=gradients"])

    def test_two_curves_whose_points_stand_where_their_numbers_say(self):
        root = xml.etree.ElementTree.fromstring(plot_offload.draw(POINTS))
        points = [(float(dot.get("cx")), float(dot.get("cy"))) for dot in root.iter(SVG + "circle")]
        self.assertEqual(len(points), 8 + 7)
        host, disk = points[:8], points[8:]
        self.assertEqual([x for x, _ in host[1:]], [x for x, _ in disk])
        left, width = 64, host[0][0] - 64
        for (x, y), point in zip(host, POINTS):
            self.assertAlmostEqual((x - left) / width, point.limit_bytes / 400e6, delta=0.002)
            self.assertAlmostEqual((host[0][1] - y) / (host[0][1] - host[-1][1]), (point.seconds["host"] - 1) / 3, delta=0.002)
        for (_, on_host), (_, on_disk) in zip(host[1:], disk):
            self.assertLess(on_disk, on_host)  # y goes down
        texts = [(text.text, float(text.get("x")), float(text.get("y"))) for text in root.iter(SVG + "text")]
        self.assertEqual([x for text, x, _ in texts if text == "400"], [host[0][0]])
        self.assertEqual([y - 4 for text, _, y in texts if text == "5"], [disk[-1][1]])
        letters = [text for text, _, _ in texts]
        self.assertIn("bc", letters)
        self.assertEqual(letters.count("h"), 2)  # at its point and in the legend

    def test_a_run_that_fails_is_told(self):
        status, _, errors = run(f"--output={self.picture}", "--build=/nowhere", f"--disk={self.picture.parent}")
        self.assertEqual(status, 1)
        self.assertIn("/nowhere/data/prepare", errors)
        self.assertFalse(self.picture.exists())


if __name__ == "__main__":
    unittest.main()
