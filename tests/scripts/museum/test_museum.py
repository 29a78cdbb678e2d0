"""Each exhibit of the museum of bugs applies, says where it is from, and has its row in docs/museum.md.

    test_museum.py
"""

import pathlib
import re
import sys
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts/museum"))

import museum  # noqa: E402
from exercise_tree import apply_patch, read_tree  # noqa: E402
from museum import INSTRUMENTS  # noqa: E402


class Museum(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.exhibits = museum.exhibits()
        cls.tree = read_tree(ROOT)
        cls.page = (ROOT / "docs/museum.md").read_text(encoding="utf-8")

    def test_there_are_at_least_twenty_and_their_numbers_are_consecutive(self):
        self.assertGreaterEqual(len(self.exhibits), 20)
        self.assertEqual([exhibit.number for exhibit in self.exhibits], [f"{i:02d}" for i in range(1, len(self.exhibits) + 1)])

    def test_each_applies_changes_only_sources_and_builds_on_a_lesson(self):
        for exhibit in self.exhibits:
            with self.subTest(exhibit.number):
                changed = apply_patch(self.tree, exhibit.patch, exhibit.path)
                self.assertTrue(all(path.endswith(".cpp") for path in changed), "only .cpp files are compiled anew")
                self.assertTrue(all(content != self.tree[path] for path, content in changed.items()))
                self.assertIn(f"lessons/{exhibit.lesson}/{exhibit.lesson}.cpp", self.tree)

    def test_each_has_a_source_and_a_paragraph(self):
        for exhibit in self.exhibits:
            with self.subTest(exhibit.number):
                self.assertRegex(exhibit.source, r"^https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+$")
                self.assertTrue(3 <= len(exhibit.text.split("\n")) <= 7, "a paragraph of some lines")

    def test_the_page_has_each_with_what_catches_it(self):
        caught = museum.read_caught()
        self.assertEqual(sorted(caught), [exhibit.number for exhibit in self.exhibits])
        for exhibit in self.exhibits:
            with self.subTest(exhibit.number):
                self.assertLessEqual(set(caught[exhibit.number]), {*INSTRUMENTS, "first wrong number"})
                row = re.search(rf"^\| {exhibit.number} \| {re.escape(exhibit.title)} \|(.*)\|$", self.page, re.MULTILINE)
                self.assertTrue(row, "scripts/check/update_output.py docs/museum.md")
                cells = [cell.strip() for cell in row[1].split("|")]
                self.assertEqual(cells[:len(INSTRUMENTS)], [caught[exhibit.number].get(name, "") for name in INSTRUMENTS])
                self.assertIn(f"({exhibit.source})", self.page)

    def test_an_unknown_one_is_refused_before_anything_is_built(self):
        with tempfile.TemporaryDirectory() as folder, mock.patch("museum.Bench", side_effect=AssertionError):
            self.assertRaises(museum.Refused, museum.look_at_all, "run", ["99"], pathlib.Path(folder))


if __name__ == "__main__":
    unittest.main()
