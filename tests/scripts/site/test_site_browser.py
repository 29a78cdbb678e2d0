"""The site of the documentation in a browser, from file:// and at two widths. Skipped (status 77) where there is no Chromium.

    test_site_browser.py FOLDER_OF_THE_SITE
"""

import contextlib
import fcntl
import json
import os
import pathlib
import select
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

import small_tree

from build import KATEX

SKIPPED = 77
SLOWNESS = float(os.environ.get("RANKWISE_SLOWNESS", "1"))
PAGES = ("index.html", "lessons/06_zero3/README.html", "lessons/06_zero3/06_zero3.cpp.html", "docs/glossary.html",
         "lessons/06_zero3/sharded_parameters.hpp.html", "docs/performance.html", "gpt2/folder.html",
         "reference/index.html", "reference/collectives_8hpp.html", "reference/classrankwise_1_1ShardedParameters.html")
WIDTHS = (1280, 400)


class Browser:
    """Chromium without a window, driven over two pipes: messages of the DevTools protocol, each ended by a zero byte."""

    def __init__(self, profile):
        pipes = [*os.pipe(), *os.pipe()]
        to_read, self.to, self.answers, to_write = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in pipes)
        for end in pipes:
            os.close(end)
        # The browser reads from descriptor 3 and writes to 4.
        script = f'exec 3<&{to_read} 4>&{to_write} {to_read}<&- {to_write}>&-; exec "$@"'
        self.process = subprocess.Popen(
            ["bash", "-c", script, "bash", CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
             "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(to_read, to_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(to_write)
        self.number, self.buffer, self.events, self.session = 0, b"", [], None
        page = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def close(self):
        with contextlib.suppress(OSError, RuntimeError, TimeoutError):
            self.session = None
            self.call("Browser.close")
        os.close(self.to)
        os.close(self.answers)
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def receive(self, deadline):
        """The next message; events are kept, too."""
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.answers], [], [], max(0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError("the browser does not answer")
            piece = os.read(self.answers, 1 << 20)
            if not piece:
                raise RuntimeError("the browser has ended")
            self.buffer += piece
        message, self.buffer = self.buffer.split(b"\0", 1)
        message = json.loads(message)
        if "method" in message:
            self.events.append(message)
        return message

    def call(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + 30 * SLOWNESS
        while (answer := self.receive(deadline)).get("id") != self.number:
            pass
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def open(self, url, width):
        """Opens a page and waits until it has loaded; the events since then are kept."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.call("Page.navigate", url="about:blank")
        self.until("location.href === 'about:blank'")
        self.events.clear()
        self.call("Page.navigate", url=url)
        self.until(f"location.href !== 'about:blank' && document.readyState === 'complete'")

    def value(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def is_true(self, expression):
        """Whether an expression is true; not while the page that would answer makes way for the next one."""
        try:
            return self.value(expression)
        except RuntimeError as error:
            if "navigated or closed" in str(error):
                return False
            raise

    def until(self, expression):
        """Waits until an expression is true."""
        deadline = time.monotonic() + 30 * SLOWNESS
        while not self.is_true(expression):
            if time.monotonic() > deadline:
                raise TimeoutError(f"never true: {expression}")
            time.sleep(0.02)

    def complaints(self):
        """Errors on the console, exceptions, and requests that failed."""
        for event in self.events:
            params = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                yield params["exceptionDetails"]
            elif event["method"] == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
                yield params["args"]
            elif event["method"] == "Log.entryAdded" and params["entry"]["level"] == "error":
                yield params["entry"]
            elif event["method"] == "Network.loadingFailed":
                yield params

    def requests(self):
        return [e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"]


class OnePage(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.browser = Browser(f"{cls.folder.name}/profile")
        cls.addClassCleanup(cls.browser.close)

    def sound(self, folder):
        """No complaint, no request that leaves the folder, and nothing to scroll sideways."""
        self.assertEqual(list(self.browser.complaints()), [])
        root = folder.as_uri() + "/"
        self.assertEqual([url for url in self.browser.requests() if not url.startswith((root, "data:", "about:"))], [])
        self.assertIn(root, self.browser.requests()[0])
        width, window = self.browser.value("[document.documentElement.scrollWidth, innerWidth]")
        self.assertLessEqual(width, window)

    def test_pages(self):
        for page in PAGES:
            for width in WIDTHS:
                with self.subTest(page=page, width=width):
                    self.browser.open((SITE / page).as_uri(), width)
                    self.sound(SITE)
                    self.assertTrue(self.browser.value("document.body.textContent.length > 200"))

    def test_narrow_pages(self):
        """All pages of lessons, and the lists of the reference, fit into a narrow window."""
        for page in [*SITE.glob("lessons/*/*.html"), *SITE.glob("reference/functions*.html")]:
            with self.subTest(page=page.relative_to(SITE)):
                self.browser.open(page.as_uri(), 400)
                self.sound(SITE)

    def search(self, words):
        """Types words into the search; the lines that are found."""
        self.browser.value("document.getElementById('results').replaceChildren()")
        self.browser.value(f"""(() => {{ const input = document.getElementById("search"); input.focus();
            input.value = {json.dumps(words)}; input.dispatchEvent(new Event("input")); }})()""")
        self.browser.until("document.querySelectorAll('#results li').length > 0")
        return self.browser.value("[...document.querySelectorAll('#results li')].map((x) => x.textContent)")

    def test_search(self):
        for page, width in (("index.html", 1280), ("lessons/06_zero3/README.html", 400), ("reference/index.html", 1280)):
            self.browser.open((SITE / page).as_uri(), width)
            for words, first in (("all-reduce", "Glossary: all-reduce"), ("1f1b", "Glossary: 1F1B"),
                                 ("reduce-scatter", "Glossary: reduce-scatter"), ("allreduce", "Glossary: all-reduce"),
                                 ("plan_gathers", "Reference: plan_gathers"), ("steady state", "Glossary: steady state"),
                                 ("gather", "Glossary: gather"), ("Run", "Reference: Runstruct")):
                with self.subTest(page=page, words=words):
                    found = self.search(words)
                    self.assertTrue(found[0].startswith(first), found[:3])
                    self.assertGreater(len(found[0]), len(first) + 3, "there is no line of context")
            self.assertEqual(self.search("no such words anywhere"), ["Nothing found."])
            self.sound(SITE)

    def test_result_leads_to_its_page(self):
        self.browser.open((SITE / "lessons/06_zero3/06_zero3.cpp.html").as_uri(), 1280)
        self.search("1f1b")
        self.browser.value("document.querySelector('#results a').click()")
        self.browser.until("location.href.endsWith('docs/glossary.html#term-1f1b') && document.readyState === 'complete'")

    def background(self):
        return self.browser.value("getComputedStyle(document.body).backgroundColor")

    def test_dark_and_light(self):
        url = (SITE / "index.html").as_uri()
        colours = {}
        for scheme in ("light", "dark"):
            self.browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
            self.browser.open(url, 1280)
            colours[scheme] = self.background()
        self.assertNotEqual(colours["light"], colours["dark"])
        self.browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])
        self.browser.open(url, 1280)
        self.browser.value("document.getElementById('theme').click()")
        self.assertEqual(self.background(), colours["dark"])
        for page in ("lessons/06_zero3/README.html", "reference/index.html"):  # it is remembered
            self.browser.open((SITE / page).as_uri(), 1280)
            self.assertEqual(self.background(), colours["dark"], page)
        self.browser.value("document.getElementById('theme').click()")
        self.assertEqual(self.background(), colours["light"])

    def test_changes(self):
        self.browser.open((SITE / "lessons/06_zero3/06_zero3.cpp.html").as_uri() + "#changes", 1280)
        shown = "[...document.querySelectorAll('.line.gone')].filter((x) => x.getBoundingClientRect().height > 0).length"
        marked = "getComputedStyle(document.querySelector('.line.new')).backgroundColor"
        self.assertEqual(self.browser.value(shown), 0)
        of_new = self.browser.value(marked)
        self.browser.value("document.getElementById('show-new').click()")
        self.assertNotEqual(self.browser.value(marked), of_new)
        self.browser.value("document.getElementById('show-gone').click()")
        self.assertGreater(self.browser.value(shown), 20)
        self.sound(SITE)

    def test_menu_of_a_narrow_window(self):
        self.browser.open((SITE / "index.html").as_uri(), 400)
        height = "document.querySelector('nav.menu').getBoundingClientRect().height"
        self.assertEqual(self.browser.value(height), 0)
        self.browser.value("document.getElementById('open-menu').click()")
        self.assertGreater(self.browser.value(height), 100)

    @unittest.skipUnless(KATEX.exists(), f"{KATEX} is not there")
    def test_formulas(self):
        html = small_tree.make(f"{self.folder.name}/small").resolve()
        self.browser.open((html / "lessons/01_one/README.html").as_uri(), 400)
        self.assertEqual(self.browser.value("document.querySelectorAll('.math .katex').length"), 2)
        self.assertEqual(self.browser.value("document.querySelectorAll('.katex-error').length"), 0)
        self.browser.value("document.fonts.ready.then(() => 0)")
        self.assertTrue(self.browser.value("document.fonts.check('16px KaTeX_Main')"))
        self.sound(html)


if __name__ == "__main__":
    CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if CHROMIUM is None:
        print("skipped: there is no Chromium here")
        sys.exit(SKIPPED)
    SITE = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
