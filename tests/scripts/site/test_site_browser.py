"""The site of the documentation in a browser, from file:// and at two widths. Skipped (status 77) where there is no Chromium.

    test_site_browser.py FOLDER_OF_THE_SITE
"""

import json
import pathlib
import sys
import tempfile
import unittest

import small_tree

from browser import CHROMIUM, SKIPPED, Browser
from build import KATEX

PAGES = ("index.html", "lessons/06_zero3/README.html", "lessons/06_zero3/06_zero3.cpp.html", "docs/glossary.html",
         "lessons/parallel/zero/sharded_parameters.hpp.html", "docs/performance.html", "gpt2/folder.html",
         "reference/index.html", "reference/collectives_8hpp.html", "reference/classrankwise_1_1ShardedParameters.html")
WIDTHS = (1280, 400)


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
    if CHROMIUM is None:
        print("skipped: there is no Chromium here")
        sys.exit(SKIPPED)
    SITE = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
