#!/usr/bin/env python3
"""Tests scripts/course.py similarity: what is compared, and that copies are found however they are renamed."""

import pathlib
import re
import shutil
import tempfile
import unittest

from fake_course import RIGHT, TREE, encoded, files_of, hand_in, run_course, write_course
import similarity
from exercise_tree import all_regions

ALICE = """  int sum = 0, step = 1;
  while (step <= x) {
    if (step % 2 == 0) sum += 3 * step - x;
    else sum -= step / 2 + 7;
    step = step * 2 + 1;
  }
  return (sum * 5 + x) / (step + 1);"""
BOB = re.sub(r"\bsum\b", "total", re.sub(r"\bstep\b", "k", ALICE)).replace("\n", "\n\n  // mine\n")
CAROL = """  const auto table = std::map<int, int>{{1, 2}, {2, 4}, {3, 6}};
  for (const auto& [key, value] : table) std::printf("%d %d\\n", key, value);
  return table.count(x) ? table.at(x) : std::accumulate(table.begin(), table.end(), 0, plus);"""


class Text(unittest.TestCase):
    def own(self, **bodies):
        tree = encoded(TREE)
        submitted = {path: text.encode() for path, text in files_of(**bodies).items()}
        return similarity.own_text(tree, all_regions(tree), submitted)

    def test_frame_and_solution_are_left_out(self):
        self.assertEqual(self.own(twice="  const int b = 2;\n  return b * x;").strip(), "")  # the course's, renamed
        self.assertEqual(self.own(twice="  int y = x;\n  y += x;\n  return y;").split("\n"), ["  int y = x;", "  y += x;", ""])

    def test_stubs_are_left_out(self):
        self.assertEqual(self.own(twice='  not_implemented("01.1", "Twice");').strip(), "")


@unittest.skipIf(shutil.which(similarity.PROGRAM) is None, "no similarity tester here")
class Pairs(unittest.TestCase):
    def test_a_renamed_copy_is_found_and_nothing_else(self):
        shares = similarity.shares_of({"alice": ALICE, "bob": BOB, "carol": CAROL})
        self.assertGreater(shares[("alice", "bob")], 0.9)
        self.assertEqual([pair for pair, share in shares.items() if share > 0.3], [("alice", "bob")])

    def test_the_report(self):
        with tempfile.TemporaryDirectory() as folder:
            root, handed_in = pathlib.Path(folder) / "course", pathlib.Path(folder) / "handed_in"
            write_course(root)
            for student, body in (("alice", ALICE), ("bob", BOB), ("carol", CAROL), ("dave", RIGHT["twice"]), ("erin", RIGHT["twice"])):
                hand_in(handed_in / student, twice=body, half=RIGHT["half"])
            (handed_in / "frank.zip").write_bytes(b"")
            status, output = run_course(root, "similarity", handed_in, "--lessons=01")
            self.assertEqual(status, 0, output)
            self.assertRegex(output, r"\| \d+% \| alice \| \d+ \| bob \| \d+ \|")
            self.assertEqual(len(re.findall(r"^\| *\d", output, re.MULTILINE)), 1, output)
            self.assertIn("3 students compared; 2 wrote fewer", output)
            self.assertIn("Left out: frank: frank.zip", output)


class Misuse(unittest.TestCase):
    def test_a_share_lies_between_0_and_1(self):
        with tempfile.TemporaryDirectory() as folder:
            write_course(pathlib.Path(folder))
            status, output = run_course(folder, "similarity", folder, "--lessons=01", "--at-least=50")
            self.assertEqual(status, 2)
            self.assertIn("between 0 and 1", output)


if __name__ == "__main__":
    unittest.main()
