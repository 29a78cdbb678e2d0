"""The site of the documentation: links, anchors, order of lessons, annotated programs, what is new since the parent lesson.

    test_site.py
"""

import collections
import re
import subprocess
import tempfile
import unittest

import small_tree
from small_tree import FILES, REPOSITORY

import annotate
import build
import check_links
import lessons
import prose
from tree import Tree

ONE, TWO = "lessons/01_one/README.md", "lessons/02_two/README.md"


class OfSmallTree(unittest.TestCase):
    """Makes the site of the small project in a folder of its own."""

    def make(self, changed=()):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.html = small_tree.make(folder.name, changed)
        return list(check_links.findings(self.html))

    def text(self, page):
        return (self.html / page).read_text(encoding="utf-8")


class Links(OfSmallTree):
    def test_sound(self):
        self.assertEqual(self.make(), [])

    def finds(self, path, text, *says):
        """A text at the end of a file gives one finding, with the page, the line of the file, and the message."""
        line = FILES[path].count("\n") + 2
        found = self.make({path: f"{FILES[path]}\n{text}\n"})
        self.assertEqual(len(found), 1, found)
        for part in (path.removesuffix(".md") + ".html:", f"(from {path}:{line})", *says):
            self.assertIn(part, found[0])

    def test_no_such_file(self):
        self.finds(ONE, "[a](missing.md)", "missing.md leads to no file")

    def test_second_line_of_a_paragraph(self):
        found = self.make({TWO: FILES[TWO] + "\nA\nparagraph, [a](missing.md)\n"})
        self.assertIn(f"(from {TWO}:6)", found[0])

    def test_no_such_picture(self):
        self.finds(ONE, "![a](missing.svg)", "missing.svg leads to no file")

    def test_no_such_anchor_here(self):
        self.finds(ONE, "[a](#missing)", "#missing leads to an anchor that does not exist")

    def test_no_such_anchor_there(self):
        self.finds(TWO, "[a](../01_one/README.md#missing)", "README.html#missing leads to an anchor")

    def test_no_such_line(self):
        self.finds(TWO, "[a](02_two.cpp#L99)", "02_two.cpp.html#L99 leads to an anchor")
        self.finds(TWO, "[a](02_two.cpp#stop)", "02_two.cpp.html#stop leads to an anchor")

    def test_leaves_the_folder(self):
        self.finds(ONE, "[a](../../../outside.md)", "leaves the site")
        self.finds(ONE, "[a](/etc/hosts)", "leaves the site")
        found = self.make({ONE: FILES[ONE] + '\n<a href="file:///etc/hosts">a</a>\n'})
        self.assertIn("file:///etc/hosts leaves the site", found[0])

    def test_loads_nothing_from_elsewhere(self):
        self.finds(ONE, "![a](https://example.org/a.png)", "is loaded from another site")

    def test_of_reference_and_style(self):
        self.make()
        (self.html / "reference/group.html").write_text('<p>\n<a href="missing.html">x</a></p>', encoding="utf-8")
        (self.html / "site/more.css").write_text("p { background: url(missing.png); }", encoding="utf-8")
        found = list(check_links.findings(self.html))
        self.assertIn("reference/group.html:2: the link missing.html leads to no file", found)
        self.assertIn("site/more.css:1: the link missing.png leads to no file", found)
        self.assertTrue(any("group.html#b2 leads to an anchor" in line for line in found), found)


class Texts(OfSmallTree):
    def setUp(self):
        self.make()
        self.page = self.text("lessons/01_one/README.html")

    def test_anchors_of_github(self):
        for heading, anchor in (("What to look for", "what-to-look-for"), ("ZeRO-1, `--persist` & more!", "zero-1---persist--more"),
                                ("All-reduce (ring)", "all-reduce-ring"), ("1F1B: snake_case", "1f1b-snake_case")):
            self.assertEqual(prose.slug(heading), anchor)

    def test_same_heading_twice(self):
        self.make({ONE: "# A\n\n## B\n\n## B\n"})
        self.assertRegex(self.text("lessons/01_one/README.html"), r'id="b">B.*\n.*id="b-1">B')

    def test_markdown(self):
        self.assertIn('<td style="text-align:right">2</td>', self.page)
        self.assertRegex(self.page, r"<li>a list\n<ul>\n<li>\n?(<p>)?in a list")
        self.assertIn("&lt;b&gt;", self.page)
        self.assertNotIn("output of", self.page)
        self.assertIn('src="picture.svg"', self.page)

    def test_terms_where_they_first_occur(self):
        self.assertEqual(self.page.count("glossary.html#term-all-reduce"), 1)
        self.assertEqual(self.page.count("glossary.html#term-zero"), 1)
        self.assertIn(">ZeRO</a> is not zero", self.page)
        self.assertNotIn("term-end", self.page)
        self.assertIn('id="term-1f1b"', self.text("docs/glossary.html"))

    def test_papers_and_functions(self):
        self.assertIn('docs/references.html#paper-miller-et-al-2020', self.page)
        self.assertIn("https://arxiv.org/abs/2001.00001", self.text("docs/references.html"))
        self.assertRegex(self.page, r'reference/sum_8hpp.html#a1"[^>]*><code>all_reduce\(\)')

    @unittest.skipUnless(build.KATEX.exists(), f"{build.KATEX} is not there")
    def test_formulas(self):
        self.assertIn('<span class="math">2 (N-1)/N</span>', self.page)
        self.assertIn('class="math display">\\sum_i x_i<', self.page)
        self.assertIn("not $5 or $6", self.page)
        self.assertIn("katex.min.js", self.page)
        self.assertNotIn("katex", self.text("lessons/02_two/README.html"))

    def test_front_page(self):
        front = self.text("index.html")
        for part in ("A small project.", "scripts/ladder.sh", "scripts/test.sh", '<svg class="ladder"', "02_two.cpp.html#changes"):
            self.assertIn(part, front)
        self.assertEqual(front.count('class="arrow"'), 1)

    def test_menu_has_every_text(self):
        self.assertEqual({path for path in Tree(REPOSITORY).files if path.startswith("docs/") and path.endswith(".md")} - dict(build.TEXTS).keys(),
                         {path for path in Tree(REPOSITORY).files if path.startswith("docs/instructor/answers/")})

    def test_film(self):
        self.assertIn('href="../../films/01_one.html"', self.page)
        self.assertIn("A film.", self.text("films/01_one.html"))
        self.assertNotIn("films/", self.text("lessons/02_two/README.html"))

    def test_neighbours(self):
        self.assertRegex(self.page, r'rel="next" href="../02_two/README.html"')
        self.assertRegex(self.text("lessons/02_two/README.html"), r'rel="prev" href="../01_one/README.html"')

    def test_index(self):
        index = self.text("site/search_index.js")
        for part in ('"all_reduce"', '"1F1B"', "Group::barrier", "Sums over the ranks."):
            self.assertIn(part, index)


class Order(unittest.TestCase):
    def read(self, **parents):
        """Lessons in the order of reading; parents: n01="", n03="01"."""
        with tempfile.TemporaryDirectory() as folder:
            programs = {}
            for name, parent in parents.items():
                number = name[1:]
                on = f"lesson {parent}" if parent else "nothing"
                programs[f"lessons/{number}_x/{number}_x.cpp"] = f"// Lesson {number}: x\n//\n// Builds on:    {on}\n"
            for path, text in programs.items():
                small_tree.pathlib.Path(folder, path).parent.mkdir(parents=True)
                small_tree.pathlib.Path(folder, path).write_text(text, encoding="utf-8")
            return lessons.read_lessons(Tree(folder))

    def order(self, **parents):
        return [lesson.number for lesson in self.read(**parents)]

    def test_by_number_after_the_parents(self):
        self.assertEqual(self.order(n01="00", n00="", n02=""), ["00", "01", "02"])
        self.assertEqual(self.order(n01="", n09="01", n10="11", n11="09"), ["01", "09", "11", "10"])

    def test_no_arrow_where_others_lead_there(self):
        found = self.read(n01="", n02="01", n03="02", n04="01 and lesson 03 and lesson 02")
        self.assertEqual([lessons.nearest(lesson, found) for lesson in found], [[], ["01"], ["02"], ["03"]])
        self.assertEqual(len(lessons.drawing(found)[2]), 3)

    def test_circle_and_missing_parent(self):
        for parents in ({"n01": "02", "n02": "01"}, {"n01": "07"}):
            with self.assertRaises(SystemExit):
                self.order(**parents)


class Programs(OfSmallTree):
    def setUp(self):
        self.make()
        self.page = self.text("lessons/01_one/01_one.cpp.html")

    def test_every_line_has_its_anchor_once(self):
        for path in ("lessons/01_one/01_one.cpp", "lessons/02_two/02_two.cpp"):
            found = re.findall(r'id="L(\d+)"', self.text(path + ".html"))
            self.assertEqual(sorted(map(int, found)), list(range(1, FILES[path].count("\n") + 1)))

    def test_of_the_repository(self):
        for lesson in lessons.read_lessons(Tree(REPOSITORY)):
            lines = (REPOSITORY / lesson.program).read_text(encoding="utf-8").splitlines()
            covered = [n for chunk in annotate.chunks(lines) for n in range(chunk.first, chunk.end)]
            self.assertEqual(covered, list(range(1, len(lines) + 1)), lesson.program)

    def test_comment_beside_its_code(self):
        self.assertRegex(self.page, r'(?s)First the gradients\..{0,40}</div><pre><code>.{0,400}barrier')
        self.assertNotIn("// First", self.page)

    def test_task_of_an_exercise_beside_its_code(self):
        path = "lessons/01_one/01_one.cpp"
        marked = FILES[path].replace("    // First", "    // BEGIN EXERCISE 01.1\n    // First").replace("    int sum", "    // END EXERCISE\n    int sum")
        self.make({path: marked, "lessons/01_one/exercises.toml":
                   '[[exercise]]\n' 'number = "01.1"\nkind = "implement"\npoints = 7\ntext = """\nSum up:\nr < N."""\n'})
        self.assertRegex(self.text(path + ".html"), r"(?s)Exercise 01\.1</strong> \(7 points\): Sum up: r &lt; N\. The code.{0,99}</p>"
                         r".{0,9}First the gradients\..{0,40}</div><pre><code>.{0,400}barrier.*End of the exercise")

    def test_names_lead_to_the_reference(self):
        self.assertRegex(self.page, r'href="../../reference/group.html">Group<')
        self.assertRegex(self.page, r'href="../../reference/group.html#b2">barrier<')
        self.assertRegex(self.page, r'href="../../reference/sum_8hpp.html#a1">all_reduce<')
        self.assertRegex(self.page, r'href="../../reference/sum_8hpp.html">&quot;common/sum.hpp|href="../../reference/sum_8hpp.html">"common')
        self.assertNotRegex(self.page, r"<a [^>]*>sum</a>")

    def test_lessons_and_files_that_comments_name(self):
        page = self.text("lessons/02_two/02_two.cpp.html")
        self.assertRegex(page, r'<dd>.*href="../01_one/README.html"[^>]*>lesson 01</a> \(one\)')
        self.make({"lessons/01_one/more.hpp": "/// @file\n/// See lessons/01_one/01_one.cpp.\n"})
        self.assertRegex(self.text("lessons/01_one/more.hpp.html"), r'href="01_one.cpp.html"[^>]*>lessons/01_one/01_one.cpp</a>\.')

    def test_changes(self):
        page = self.text("lessons/02_two/02_two.cpp.html")
        self.assertIn('class="line gone" hidden', page)
        self.assertRegex(page, r'words new">.*NEW')
        self.assertRegex(page, r'class="line new" id="L9"')
        self.assertRegex(page, r'class="line" id="L15"')

    def test_places_of_lines_that_are_gone(self):
        def found(before, after):
            result = annotate.changes_of(None, before, after)
            return result.new, result.gone
        self.assertEqual(found("a\nb\nc\n", "a\nc\nd\n"), ({3}, {2: ["b"]}))
        self.assertEqual(found("a\nb\n", "a\n"), (set(), {2: ["b"]}))
        self.assertEqual(found("a\nb\n", "b\n"), (set(), {1: ["a"]}))
        ruler = "// ---- {} ----\n"
        self.assertEqual(found("a\nb\n" + ruler.format("X") + "c\n", "a\n" + ruler.format("Y") + "c\n"),
                         ({2, 3}, {2: ["b"], 4: [ruler.format("X").strip(), "c"]}))
        self.assertEqual(found("a\nb\n" + ruler.format("X") + "c\n", "a\nc\n" + ruler.format("X") + "d\n"),
                         ({2, 4}, {2: ["b"], 4: ["c"]}))

    def test_changes_are_those_of_diff_sh(self):
        """The same lines are new and gone for every lesson that builds on another."""
        tree = Tree(REPOSITORY)
        programs = {lesson.number: lesson for lesson in lessons.read_lessons(tree)}
        for lesson in programs.values():
            if not lesson.builds_on:
                continue
            after = tree.text(lesson.program)
            found = annotate.changes_of("", tree.text(programs[lesson.builds_on[0]].program), after)
            shown = subprocess.run([REPOSITORY / "scripts/course/diff.sh", lesson.number], capture_output=True, text=True,
                                   check=True, env=None).stdout.splitlines()
            for mark, lines in (("+", [after.splitlines()[n - 1] for n in found.new]), ("-", sum(found.gone.values(), []))):
                wanted = collections.Counter(line[1:].strip() for line in shown if line.startswith(mark))
                self.assertEqual(collections.Counter(line.strip() for line in lines), wanted, lesson.number + mark)


if __name__ == "__main__":
    unittest.main()
