"""Wrong solutions and broken lessons (tests/mutants), as they stand in files: all fit their places. Those located (located.json): each
has its entry, nearly all that change a number are located, and docs/records.md has the table.

    test_located.py
"""

import contextlib
import io
import pathlib
import re
import sys
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts/museum"))

import locate_mutants  # noqa: E402
from exercise_tree import all_regions, read_tree  # noqa: E402
from locate_mutants import MADE_BY, all_mutants, changed_sources, made_by  # noqa: E402
from mutants import Tally, read_mutants  # noqa: E402


class Located(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.mutants = {mutant.name: mutant for mutant in all_mutants(read_tree(ROOT))}
        cls.known = locate_mutants.read_located()
        cls.changed = {name: found for name, found in cls.known.items() if "first" in found}

    def test_all_fit_their_places(self):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            tally, tree = Tally(), read_tree(ROOT)
            read_mutants(tree, all_regions(tree), "", tally)
        self.assertEqual(tally.count, {True: 1, False: 0}, printed.getvalue())

    def test_each_has_its_entry(self):
        self.assertEqual(sorted(self.known), sorted(self.mutants))

    def test_nearly_all_that_change_a_number_are_located(self):
        for name, found in self.changed.items():
            self.assertEqual(found["located"], made_by(name, self.mutants[name].broken, found["first"]), name)
        self.assertGreater(len(self.changed), 100)
        self.assertGreaterEqual(sum(found["located"] for found in self.changed.values()), 0.95 * len(self.changed))

    def test_sources_that_include_a_changed_header_are_compiled_anew(self):
        changed = self.mutants["06_updates_forgotten"].changed
        self.assertEqual(changed_sources(read_tree(ROOT), changed, "06"), {"lessons/06_zero3/06_zero3.cpp"})

    def test_a_pattern_is_of_something_that_is_broken(self):
        self.assertLessEqual(set(MADE_BY), {*self.mutants, *(mutant.broken for mutant in self.mutants.values())})

    def test_a_sentence_about_something_else_is_not_located(self):
        self.assertTrue(made_by("04.2_own_shard_only", "04.2", "step 0, loss and norm: gradient norm. It is 2 times"))
        self.assertFalse(made_by("04.2_own_shard_only", "04.2", "step 0, forward: embedding"))
        self.assertFalse(made_by("99_unknown", "99", "step 0, forward: embedding"))

    def test_the_page_has_the_table(self):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            locate_mutants.table()
        page = re.search(r"locate_mutants\.py table -->\n(.*?)<!-- end", (ROOT / "docs/records.md").read_text(encoding="utf-8"), re.DOTALL)
        self.assertEqual(page[1], printed.getvalue(), "scripts/check/update_output.py docs/records.md")

    def test_an_unknown_one_is_refused_before_anything_is_built(self):
        with tempfile.TemporaryDirectory() as folder, mock.patch("locate_mutants.Bench", side_effect=AssertionError):
            self.assertRaises(locate_mutants.Refused, locate_mutants.look_at_all, "run", ["zz"], pathlib.Path(folder))


if __name__ == "__main__":
    unittest.main()
