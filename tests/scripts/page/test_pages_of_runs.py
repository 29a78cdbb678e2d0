"""Pages that runs write with --html, what --watch draws, and the clocks of a trace: with lessons 01, 03 and 06."""

import json
import os
import pathlib
import pty
import subprocess
import sys
import tempfile
import threading
import unittest
from unittest import mock

from program_case import BUILD, TIME_LIMIT_S, ShortTextCase

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "scripts/page"), str(ROOT / "tests/scripts/site")]
import compare_runs  # noqa: E402
from browser import CHROMIUM, Browser  # noqa: E402


class PagesOfRuns(ShortTextCase):
    program = "lessons/06_zero3"

    def made(self, *options, ranks=3):
        """The report and the page of a run."""
        page = pathlib.Path(self.folder) / "run.html"
        report = self.report(self.data, "--steps=4", f"--global-batch={4 * ranks}", f"--html={page}", *options, ranks=ranks)
        return report, page

    def test_the_page_is_that_of_the_report(self):
        report, page = self.made()
        written, made = (text.partition('id="data">') for text in (page.read_text(encoding="utf-8"), compare_runs.page([report])))
        self.assertEqual(written[0], made[0])
        (data, _, after), (same, _, script) = (text[2].partition("</script>") for text in (written, made))
        self.assertEqual((json.loads(data), after), (json.loads(same), script))

    def test_a_single_device_has_a_page_too(self):
        with mock.patch.object(self, "program", "lessons/01_single_device"):
            report, page = self.made("--prompt=</script><!--<script>", "--sample=2", ranks=1)
        data = page.read_text(encoding="utf-8").partition('id="data">')[2].partition("</script>")[0]
        self.assertIn("<!--<script>", str(report))
        self.assertNotIn("<", data)
        self.assertEqual(json.loads(data), [report])

    def test_sums_equal_the_ledgers(self):
        log = pathlib.Path(self.folder) / "run.jsonl"
        report, _ = self.made(f"--log={log}")
        self.assertTrue(report["traffic"])
        planned = self.report(self.data, "--steps=4", "--global-batch=12", "--dry-run", ranks=3)["plan"]["ranks"]
        self.assertEqual(report["receivers"].keys(), report["traffic"].keys())
        for axis, rows in report["receivers"].items():
            self.assertEqual(sum(rows[0]), report["traffic"][axis]["bytes"])
            self.assertEqual([sum(row) for row in rows], [rank["sent"][axis]["bytes"] for rank in planned])
            self.assertEqual([rows[rank][rank] for rank in range(3)], [0, 0, 0])
        steps = [line for line in map(json.loads, log.read_text(encoding="utf-8").splitlines()) if "loss" in line]
        self.assertEqual(report["steps"]["step_s"], [line["seconds"] for line in steps])
        for kind in ("compute", "exposed", "waiting", "io", "hidden"):
            self.assertEqual(report["steps"][f"{kind}_s"], [line["time"][kind] for line in steps])
        parts = [sum(report["steps"][f"{kind}_s"][k] for kind in ("compute", "exposed", "waiting", "io")) for k in range(4)]
        for part, step in zip(parts, report["steps"]["step_s"]):
            self.assertLessEqual(part, step * 1.01)

    @unittest.skipUnless(CHROMIUM, "there is no Chromium here")
    def test_a_browser_draws_it(self):
        report, page = self.made("--prompt=</script>", "--sample=1")
        with tempfile.TemporaryDirectory() as profile:
            browser = Browser(profile)
            self.addCleanup(browser.close)
            browser.open(page.as_uri(), 400)
            self.assertEqual(list(browser.complaints()), [])
            self.assertEqual([url for url in browser.requests() if not url.startswith("data:")], [page.as_uri()])
            drawn = browser.value("[...document.querySelectorAll('.matrix .sum')].map(e => +e.textContent.replaceAll(',', ''))")
            self.assertEqual(drawn, [sum(row) for row in report["receivers"]["world"]])
            cells = browser.value("[...document.querySelectorAll('.matrix td:not(.sum)')].map(e => +e.textContent.replaceAll(',', '') || 0)")
            self.assertEqual(cells, [sum(bytes_) for rows in zip(*report["receivers"].values()) for bytes_ in zip(*rows)])
            self.assertEqual(browser.value("document.querySelectorAll('.FAIL').length"), 0)

    def test_a_trace_has_one_clock(self):
        trace = pathlib.Path(self.folder) / "trace.json"
        report, _ = self.made(f"--trace={trace}")
        clocks = json.loads(trace.read_text(encoding="utf-8"))["otherData"]["clocks"]
        self.assertEqual(clocks, report["clocks"])
        self.assertEqual((clocks[0]["offset_us"], clocks[0]["error_us"]), (0, 0))
        for clock in clocks[1:]:
            self.assertGreater(clock["error_us"], 0)
            self.assertLess(clock["error_us"], 1e6)

    def test_a_trace_of_clocks_that_differ_has_one(self):
        """Rank r is r seconds ahead, and r per cent too fast. No message arrives before it is sent, within the errors told."""
        wrong = {"LD_PRELOAD": os.environ["SHIFTED_CLOCK"], "SHIFTED_S": "1", "SHIFTED_PPM": "10000",
                 "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"}
        trace = pathlib.Path(self.folder) / "trace.json"
        with mock.patch.dict(os.environ, wrong):
            report, _ = self.made(f"--trace={trace}")
        for rank, clock in enumerate(report["clocks"]):
            self.assertEqual(clock["corrected"], rank > 0)
            self.assertAlmostEqual(clock["offset_us"] * 1e-6, -rank, delta=0.2)
        self.assertLess(report["clocks"][2]["drift_us"], 0)
        ends = {"s": {}, "f": {}}
        for event in json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]:
            if event["ph"] in ends:
                ends[event["ph"]][event["id"]] = event
        self.assertEqual(ends["s"].keys(), ends["f"].keys())
        self.assertTrue(ends["s"])
        for number, sent in ends["s"].items():
            received = ends["f"][number]
            error_us = sum(report["clocks"][end["pid"]]["error_us"] for end in (sent, received))
            self.assertGreaterEqual(received["ts"] + error_us + 0.01, sent["ts"], number)

    def test_what_is_refused(self):
        self.assert_refused(self.data, "--html=/nowhere/run.html", says=["--html=/nowhere/run.html", "there is no folder"], ranks=2)
        self.assert_refused(self.data, "--html=run.html", "--dry-run", says=["--dry-run"], ranks=2)
        self.assert_refused(self.data, "--watch", says=["--watch", "not a terminal"], ranks=2)
        self.assert_refused(self.data, "--watch", says=["--watch on one rank"])


class Watch(ShortTextCase):
    def on_terminal(self, *options, program="lessons/03_ddp", ranks=3):
        """Status and what a terminal received."""
        ours, theirs = pty.openpty()
        received = bytearray()

        def read():
            try:
                while piece := os.read(ours, 65536):
                    received.extend(piece)
            except OSError:  # the other end is closed
                pass

        reader = threading.Thread(target=read)
        reader.start()
        status = subprocess.run(["mpirun", "-np", str(ranks), os.path.join(BUILD, program), *options], stdin=theirs, stdout=theirs,
                                stderr=theirs, timeout=TIME_LIMIT_S, check=False).returncode
        os.close(theirs)
        reader.join()
        os.close(ours)
        return status, received.decode(errors="replace")

    def test_it_changes_nothing_and_ends_clean(self):
        options = (self.data, "--steps=60", "--global-batch=12", "--arithmetic=exact", "--micro-batch=1")
        status, plain = self.on_terminal(*options)
        self.assertEqual(status, 0, plain)
        status, watched = self.on_terminal(*options, "--watch")
        self.assertEqual(status, 0, watched)

        def digest(text):
            return text.partition("# digest ")[2].split()[0]

        self.assertEqual(digest(plain), digest(watched))
        self.assertNotIn("rank 2  |", plain)
        pictures = watched.split("\x1b[?7l")[1:]
        self.assertTrue(pictures, watched)
        for picture in pictures:
            picture = picture.partition("\x1b[?7h")
            self.assertTrue(picture[2].startswith("\x1b[4A"))  # back to the line of the cursor, above three ranks and a legend
            self.assertEqual([line for line in ("rank 0", "rank 1", "rank 2", "# computes") if line not in picture[0]], [])
        after = watched.rpartition("\x1b[?7h")[2]
        self.assertIn("\x1b[J", after.partition("# digest")[0])  # cleared before the results

    def test_a_failure_is_readable(self):
        """A message of a run that breaks is printed where the lines were cleared."""
        status, watched = self.on_terminal(self.data, "--steps=400", "--global-batch=12", "--learning-rate=1e38", "--clip=0", "--watch")
        self.assertNotEqual(status, 0)
        self.assertRegex(watched, r"\r\x1b\[Jrank \d of 3: ")


if __name__ == "__main__":
    unittest.main()
