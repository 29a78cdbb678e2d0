"""The films of lessons 03, 06, 09 and 10: sums equal the ledgers', and Chromium, where there is one, plays them to their ends."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

from program_case import ShortTextCase

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(REPOSITORY / "tests/scripts/site")]
from browser import CHROMIUM, Browser  # noqa: E402

LESSONS = {"03_ddp": (8,), "06_zero3": (3, "--global-batch=12"), "09_pipeline_parallel": (4, "--micro-batch=4"),
           "10_3d_parallel": (8, "--dp=2", "--tp=2", "--pp=2")}
COLLECTIVE, PURPOSE, GROUP, WHERE, LANE, SENDER, RECEIVER, BYTES, COUNTED = range(9)


class Films(ShortTextCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.pages, cls.reports, cls.data_of = {}, {}, {}
        for lesson, (ranks, *options) in LESSONS.items():
            cls.make(pathlib.Path(folder.name), lesson, ranks, options)

    @classmethod
    def make(cls, folder, lesson, ranks, options):
        """Runs a lesson and makes its film."""
        report, trace, page = (folder / f"{lesson}.{kind}" for kind in ("json", "trace.json", "html"))
        done = cls("run_program").run_program(cls.data, *options, "--steps=2", "--link=20us,500MB/s", f"--report={report}",
                                              f"--trace={trace}", ranks=ranks, program=f"lessons/{lesson}")
        if done.returncode:
            raise AssertionError(done.stdout + done.stderr)
        subprocess.run([sys.executable, REPOSITORY / "scripts/film/film.py", report, trace, f"--output={page}"], check=True,
                       stdout=subprocess.DEVNULL)
        embedded = page.read_text(encoding="utf-8").split('<script type="application/json" id="data">')[1].split("</script>")[0]
        cls.pages[lesson], cls.data_of[lesson] = page, json.loads(embedded)
        cls.reports[lesson] = json.loads(report.read_text(encoding="utf-8"))

    def each(self):
        """Lesson, data in the page, report."""
        for lesson, data in self.data_of.items():
            yield lesson, data, self.reports[lesson]

    def sent(self, data, axis):
        """{(sender, receiver): bytes} that the formula of an axis is about, on all ranks."""
        found = {}
        for message in data["messages"]:
            if message[COUNTED] and (data["words"][message[GROUP]] + " ").startswith(axis + " "):
                pair = message[SENDER], message[RECEIVER]
                found[pair] = found.get(pair, 0) + message[BYTES]
        return found

    def test_messages_are_those_of_the_traffic_ledger(self):
        for _, data, report in self.each():
            self.assertTrue(report["traffic"])
            for axis, ledger in report["traffic"].items():
                bytes_ = sum(count for (sender, _), count in self.sent(data, axis).items() if sender == 0)
                self.assertEqual(bytes_, ledger["bytes"], axis)
                self.assertEqual(bytes_, ledger["formula"], axis)
            for axis, matrix in report.get("receivers", {}).items():  # lesson 10: by sender and receiver
                sent = self.sent(data, axis)
                self.assertEqual([[sent.get((s, r), 0) for r in range(len(matrix))] for s in range(len(matrix))], matrix, axis)

    def test_memory_is_that_of_the_memory_ledger(self):
        for _, data, report in self.each():
            for rank, tiers in zip(data["ranks"], report["memory_ranks"], strict=True):
                held = dict(rank["held"])
                most = dict(held)
                for _, _, category, change in rank["changes"]:
                    name = data["words"][category]
                    held[name] += change
                    most[name] = max(most[name], held[name])
                self.assertEqual(held, {name: tiers["device"][name]["current"] for name in held})
                self.assertEqual(most, {name: tiers["device"][name]["peak"] for name in most})
                self.assertEqual(held, {name: tiers["device"][name]["formula"] for name in held})

    def test_virtual_time_is_that_of_the_report(self):
        for _, data, report in self.each():
            longest_ns = next(length for clock, _, length in data["clocks"] if clock == 1)
            self.assertGreaterEqual(longest_ns, report["virtual"][-1]["step_ps"] // 1000)

    def test_sizes(self):
        for lesson, _, _ in self.each():
            self.assertLess(self.pages[lesson].stat().st_size, 1_000_000)

    def test_something_is_known_of_tensors_and_lines(self):
        for lesson, data, _ in self.each():
            self.assertIn(f"lessons/{lesson}/{lesson}.cpp", data["files"])
            self.assertTrue(data["tensors"])
            self.assertGreaterEqual(len(data["quiz"]["1"]), 3)

    @unittest.skipUnless(CHROMIUM, "there is no Chromium here")
    def test_a_browser_plays_them(self):
        with tempfile.TemporaryDirectory() as profile:
            browser = Browser(profile)
            self.addCleanup(browser.close)
            for lesson, data, _ in self.each():
                for clock, width in ((0, 1920), (1, 400)):
                    self.play(browser, f"{self.pages[lesson].as_uri()}#play=1&stops=0&seconds=2&clock={clock}", width)
                self.answer(browser, data)

    def play(self, browser, url, width):
        browser.open(url, width)
        browser.until("document.body.dataset.ended === 'true'")
        self.assertEqual(list(browser.complaints()), [])
        self.assertEqual([asked for asked in browser.requests() if not asked.startswith("data:")], [url.partition("#")[0]])
        wide, window = browser.value("[document.documentElement.scrollWidth, innerWidth]")
        self.assertLessEqual(wide, window)

    def answer(self, browser, data):
        """Answers the questions of the virtual clock, the first one wrong at first."""
        first = data["quiz"]["1"][0]
        browser.value("find('#time').focus(); askNext()")
        wrong = (first["answer"] + 1) % len(first["choices"])
        for choice, says in ((wrong, "Not quite"), (first["answer"], "Right. " + first["why"])):
            browser.value(f"document.querySelectorAll('#quiz button')[{choice}].click()")
            self.assertIn(says, browser.value("document.getElementById('quiz').textContent"))


if __name__ == "__main__":
    unittest.main()
