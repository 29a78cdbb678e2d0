"""scripts/page/compare_runs.py: the data of its pages, what a browser draws of them, and what it refuses."""

import contextlib
import copy
import io
import json
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "scripts/page"), str(ROOT / "tests/scripts/site")]
import compare_runs  # noqa: E402
from documents import status_of  # noqa: E402
from browser import CHROMIUM, Browser  # noqa: E402

ON_DEVICE = {"parameters": {"current": 100, "peak": 180, "formula": 100, "formula_peak": 180},
             "gradients": {"current": 0, "peak": 80, "formula": 0, "formula_peak": 80}}
REPORT = {
    "lesson": "06_zero3", "ranks": 2, "finished": True, "digest": "0123456789abcdef", "model": {"name": "nano", "parameters": 50},
    "options": {"steps": 3, "prompt": "</script><b>"}, "provenance": {"host": "here"}, "first_step": 0, "loss": [5.5, None, 4.5],
    "validation": [{"step": 3, "loss": 4.6}], "time": {"step_s": 0.03, "tokens_per_s": 1000}, "memory_peak": 260,
    "steps": {"step_s": [0.05, 0.03, 0.03], "compute_s": [0.04, 0.02, 0.02], "exposed_s": [0.005, 0.005, 0.005],
              "hidden_s": [0, 0.01, 0.01]},
    "memory_ranks": [{"device": ON_DEVICE}] * 2, "traffic": {"world": {"bytes": 80, "messages": 4, "formula": 80}},
    "receivers": {"world": [[0, 80], [70, 0]]}, "checks": [{"name": "bytes", "expected": 80, "measured": 80, "pass": True}]}


class Pages(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.page = self.folder / "page.html"

    def run_script(self, *documents):
        """Status, output, complaints."""
        paths = []
        for number, document in enumerate(documents):
            paths.append(self.folder / f"run{number}.json")
            if document is not None:
                paths[-1].write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = status_of(compare_runs.main, [*map(str, paths), f"--output={self.page}"])
        return status, out.getvalue(), err.getvalue()

    def data(self):
        return json.loads(self.page.read_text(encoding="utf-8").split('id="data">')[1].split("</script>")[0])

    def test_the_data_are_the_reports(self):
        other = {**REPORT, "lesson": "03_ddp"}
        self.assertEqual(self.run_script(REPORT, other), (0, f"{self.page}: 2 runs\n", ""))
        self.assertEqual(self.data(), [REPORT, other])
        self.assertNotIn("[[", self.page.read_text(encoding="utf-8").partition("<body>")[0])

    def test_runs_of_one_kind_have_the_names_of_their_files(self):
        self.run_script(REPORT, REPORT)
        self.assertEqual([run["file"] for run in self.data()], ["run0", "run1"])

    def test_what_it_refuses(self):
        for document in (None, "no JSON", "[" * 100_000, [1], {"lesson": "06_zero3"}):
            status, out, err = self.run_script(document)
            self.assertEqual((status, out, err.count("error:")), (2, "", 1))
            self.assertIn("run0.json", err)
            self.assertFalse(self.page.exists())

    @unittest.skipUnless(CHROMIUM, "there is no Chromium here")
    def test_what_a_browser_draws(self):
        failed = copy.deepcopy(REPORT)
        failed["checks"][0]["pass"] = False
        failed["memory_ranks"][1]["device"]["gradients"]["peak"] = 90
        failed["memory_ranks"] = [*failed["memory_ranks"]]
        bare = {"lesson": "02_collectives", "ranks": 2}
        self.run_script(REPORT, failed, bare)
        with tempfile.TemporaryDirectory() as profile:
            browser = Browser(profile)
            self.addCleanup(browser.close)
            for width in (1600, 400):
                browser.open(self.page.as_uri(), width)
                self.assertEqual(list(browser.complaints()), [])
                self.assertEqual([url for url in browser.requests() if not url.startswith("data:")], [self.page.as_uri()])
                wide, window = browser.value("[document.documentElement.scrollWidth, innerWidth]")
                self.assertLessEqual(wide, window)
            texts = "[...document.querySelectorAll('%s')].map(e => e.textContent)"
            self.assertEqual(browser.value(texts % ".matrix .sum"), ["80", "70"] * 2)
            self.assertEqual(browser.value(texts % ".bar > :last-child"), ["180 =", "80 =", "180 =", "90 ≠"])
            self.assertEqual(browser.value(texts % "summary.FAIL"), ["Checks: 0 of 1 passed"])
            self.assertEqual(browser.value("document.querySelectorAll('#loss .curve').length"), 3)
            # The parts of a step fill it: their heights add up to that of the step.
            heights = browser.value("[...document.querySelector('.steps').querySelectorAll('rect')]"
                                    ".map(e => [e.classList[0], +e.getAttribute('height')])")
            of_steps = [height for kind, height in heights if kind != "hidden"]
            self.assertAlmostEqual(sum(of_steps[:3]) / sum(of_steps[3:6]), 5 / 3, places=3)
            self.assertEqual([kind for kind, _ in heights], ["compute", "exposed", "other"] + 2 * ["compute", "exposed", "other", "hidden"])


if __name__ == "__main__":
    unittest.main()
