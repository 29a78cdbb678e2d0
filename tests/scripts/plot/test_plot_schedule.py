"""scripts/plot/plot_schedule.py: what it prints and draws of a report of lesson 09, and what it says of another one."""

import contextlib
import copy
import io
import json
import pathlib
import sys
import tempfile
import unittest
import xml.etree.ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "scripts/plot"))
import plot_schedule  # noqa: E402
from documents import status_of  # noqa: E402
import svg  # noqa: E402
from plot_schedule import COLOURS, LANE, LEFT, RIGHT, WIDTH  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"


def lane(stage, *times):
    """Two micro-batches, each forwards and backwards at such times."""
    kinds = [("forward", 0), ("forward", 1), ("backward", 0), ("backward", 1)]
    return [{"kind": kind, "micro_batch": i, "stage": stage, "begin": begin, "end": end}
            for (kind, i), (begin, end) in zip(kinds, times)]


# GPipe of two ranks in units, and twice as long by the clock on the wall, where the last pass takes no time to speak of.
PLANNED = [lane(0, (0, 1), (1, 2), (5, 7), (7, 9)), lane(1, (1, 2), (2, 3), (3, 5), (5, 7))]
WALL = [lane(0, (0, 2), (2, 4), (10, 14), (17.9, 18)), lane(1, (2, 4), (4, 6), (6, 10), (10, 14))]
REPORT = {"lesson": "09_pipeline_parallel", "schedule": {
    "name": "gpipe", "ranks": 2, "virtual_stages": 1, "micro_batches": 2, "max_in_flight": [2, 2],
    "idle": {"formula": 1 / 3, "planned": 1 / 3, "wall": 0.4}, "timelines": {"planned": PLANNED, "wall": WALL}}}


def changed(change):
    """The report with a change to its schedule."""
    report = copy.deepcopy(REPORT)
    change(report["schedule"])
    return report


class Picture:
    """The rectangles and words of a drawing of one report, or of several."""

    def __init__(self, *reports, timeline="planned"):
        root = xml.etree.ElementTree.fromstring(
            plot_schedule.picture_of([plot_schedule.Schedule(report) for report in reports], timeline))
        self.boxes = [(box.findtext(SVG + "title") or "", float(box.get("x", 0)), float(box.get("y", 0)),
                       float(box.get("width")), float(box.get("height")), box.get("fill")) for box in root.iter(SVG + "rect")]
        self.words = [words.text for words in root.iter(SVG + "text")]
        self.numbers = [words.text for words in root.iter(SVG + "text") if words.get("font-size")]

    def of(self, title):
        """Place and colour of each with such a title, from above, as (x, y, width, colour)."""
        return [(x, y, width, colour) for words, x, y, width, _, colour in self.boxes if words.startswith(title + ":")]


class PlotSchedule(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.report, self.picture = (pathlib.Path(folder.name) / name for name in ("report.json", "schedule.svg"))

    def run_script(self, text, *before):
        """Status, output and errors of the script; other reports and options come before that text."""
        self.report.write_text(text, encoding="utf-8")
        output, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            status = status_of(plot_schedule.main, [*before, str(self.report), str(self.picture)])
        return status, output.getvalue(), errors.getvalue()

    def test_a_line_for_each_timeline(self):
        status, output, _ = self.run_script(json.dumps(REPORT))
        self.assertEqual((status, self.picture.exists()), (0, True))
        self.assertEqual([line.split() for line in output.splitlines()],
                         [["timeline", "step", "idle"], ["planned", "9", "33.3", "%"], ["wall", "18", "40.0", "%"],
                          ["formula", "33.3", "%"]])

    def test_passes_lie_where_their_times_are(self):
        picture, width = Picture(REPORT), WIDTH - LEFT - RIGHT
        lanes = sorted(y for _, _, y, _, height, colour in picture.boxes if colour == svg.IDLE and height == LANE)
        self.assertEqual(len(lanes), 4)  # two ranks, planned above wall
        for t, (timeline, length) in enumerate(((PLANNED, 9), (WALL, 18))):
            for rank in range(2):
                for action in timeline[rank]:
                    x, y, wide, colour = picture.of(
                        f"{action['kind']} of micro-batch {action['micro_batch']} in stage {rank}")[t]
                    self.assertAlmostEqual(x, LEFT + width * action["begin"] / length, delta=0.06)
                    self.assertAlmostEqual(wide, width * (action["end"] - action["begin"]) / length, delta=0.6)
                    self.assertEqual((y, colour), (lanes[2 * t + rank], COLOURS[action["kind"]]))

    def test_numbers_are_written_that_fit(self):
        numbers = Picture(REPORT).numbers
        self.assertEqual((numbers.count("0"), numbers.count("1")), (8, 7))

    def test_what_is_idle_is_written_above(self):
        words = Picture(REPORT).words
        self.assertIn("gpipe, 2 ranks, 2 micro-batches; idle by the formula 33.3 %", words)
        self.assertIn("planned, s: idle 33.3 %", words)
        self.assertIn("wall clock, s: idle 40.0 %", words)
        self.assertFalse([line for line in words if line.startswith("virtual")])

    def test_kinds_have_colours_and_later_stages_of_a_rank_are_darker(self):
        def two_stages(schedule):
            schedule["virtual_stages"], schedule["timelines"] = 2, {"virtual": [
                [*lane(0, (0, 1), (1, 2)), *lane(2, (2, 3), (3, 4))],
                [{"kind": "backward-input", "micro_batch": 0, "stage": 1, "begin": 4, "end": 5},
                 {"kind": "backward-weights", "micro_batch": 0, "stage": 1, "begin": 5, "end": 6}]]}
        picture = Picture(changed(two_stages))
        (*_, first), = picture.of("forward of micro-batch 0 in stage 0")
        (*_, second), = picture.of("forward of micro-batch 0 in stage 2")
        self.assertEqual(first, COLOURS["forward"])
        self.assertTrue(all(int(second[i:i + 2], 16) < int(first[i:i + 2], 16) for i in (1, 3, 5)))
        for kind in ("backward-input", "backward-weights"):
            (*_, colour), = picture.of(f"{kind} of micro-batch 0 in stage 1")
            self.assertEqual(colour, COLOURS[kind])
            self.assertIn(kind, picture.words)
        self.assertNotIn("backward", picture.words)  # nothing is whole

    def test_several_schedules_have_one_axis_of_time(self):
        def quicker(schedule):
            schedule.update(name="quick", max_in_flight=[1, 1])
            schedule["timelines"]["planned"] = [lane(0, (0, 1), (1, 2), (3, 4), (4, 6)), lane(1, (1, 2), (2, 3), (3, 4), (4, 5))]
        picture, width = Picture(REPORT, changed(quicker)), WIDTH - LEFT - RIGHT
        lanes = sorted((y, wide) for _, _, y, wide, height, colour in picture.boxes if colour == svg.IDLE and height == LANE)
        for (_, wide), length in zip(lanes, (9, 9, 6, 6), strict=True):
            self.assertAlmostEqual(wide, width * length / 9, delta=0.06)
        (x, y, wide, _), (_, below, narrow, _) = sorted(picture.of("backward of micro-batch 1 in stage 0"), key=lambda box: box[1])
        self.assertAlmostEqual(x, LEFT + width * 7 / 9, delta=0.06)
        self.assertAlmostEqual(wide, narrow, delta=0.06)
        self.assertEqual((y, below), (lanes[0][0], lanes[2][0]))
        for words in ("A step of 2 schedules, planned, s", "gpipe, 2 ranks, 2 micro-batches: idle 33.3 %, in flight 2 2",
                      "quick, 2 ranks, 2 micro-batches: idle 33.3 %, in flight 1 1"):
            self.assertIn(words, picture.words)

    def test_a_line_for_each_of_several_schedules(self):
        first = self.report.with_name("first.json")
        first.write_text(json.dumps(REPORT), encoding="utf-8")
        text = json.dumps(changed(lambda s: s.update(name="other", max_in_flight=[1, 2])))
        title = ["schedule", "step", "idle", "formula", "in", "flight"]
        for options, step, idle in (((), "9", "33.3"), (("--timeline=wall",), "18", "40.0")):
            status, output, _ = self.run_script(text, *options, str(first))
            self.assertEqual((status, [line.split() for line in output.splitlines()]),
                             (0, [title, ["gpipe", step, idle, "%", "33.3", "%", "2", "2"],
                                  ["other", step, idle, "%", "33.3", "%", "1", "2"]]))
        status, _, errors = self.run_script(text, "--timeline=virtual", str(first))
        self.assertEqual(status, 2)
        self.assertIn("first.json has no timeline 'virtual'", errors)

    def test_another_report_is_refused(self):
        for document, word in (({"lesson": "08_tensor_parallel"}, "no schedule"), ([], "no schedule"),
                               (changed(lambda s: s["timelines"].clear()), "no timeline"),
                               (changed(lambda s: s["timelines"]["wall"].pop()), "1 ranks"),
                               (changed(lambda s: s["timelines"].update(wall=[[], []])), "nothing takes time"),
                               (changed(lambda s: s["timelines"]["wall"][0][0].update(kind="sleep")), "'sleep'"),
                               (changed(lambda s: s["timelines"]["wall"][0][0].update(end=-1)), "ends at -1"),
                               (changed(lambda s: s["timelines"]["wall"][0][0].pop("stage")), "stage")):
            status, output, errors = self.run_script(json.dumps(document))
            self.assertEqual((status, output, self.picture.exists()), (2, "", False), word)
            self.assertIn(word, errors)
            self.assertIn("--report", errors)
        for text in ("", "no JSON"):
            self.assertEqual(self.run_script(text)[0], 2)


if __name__ == "__main__":
    unittest.main()
