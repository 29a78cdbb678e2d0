#!/usr/bin/env python3
"""Tests scripts/course/leaks.py: what counts as the same lines, and that no solution of the course stands elsewhere."""

import unittest

from fake_course import SCRIPTS
from test_exercise import task_of
import pack
from exercise_tree import all_regions, read_tree
from leaks import find_leaks

SOLUTION = """const int first = begin(7);
  for (int i = 0; i < count; ++i) {
    total += values[i] * first;
    if (total > limit) break;
  }
  store(total, "sum");
  return total;"""
RENAMED = """/* the same */ const int a=begin_(7); // 1
for (int b = 0; b < n; ++b)
{
    t += v[b] * a;

    if (t > most) break;
}
save(t, "sum");"""


def leaks(searched, path="common/b.cpp", solution=SOLUTION):
    tree = {"gpt2/a.cpp": f"  // BEGIN EXERCISE 01.1\n  {solution}\n  // END EXERCISE\n".encode(), **task_of("01.1")}
    return [(leak.path, leak.first, leak.last) for leak in find_leaks(tree, all_regions(tree), {path: searched.encode()})]


class Lines(unittest.TestCase):
    def test_names_comments_and_layout_do_not_matter(self):
        self.assertEqual(leaks(RENAMED), [("common/b.cpp", 1, 8)])
        self.assertEqual(leaks("\n\n" + SOLUTION), [("common/b.cpp", 3, 8)])

    def test_names_are_the_same_throughout(self):
        mixed = RENAMED.replace("t += v[b] * a", "t += v[a] * b").replace("if (t > most)", "if (most > t)")
        self.assertEqual(leaks(mixed), [])

    def test_one_line_in_the_middle_may_differ_but_no_more(self):
        self.assertEqual(leaks(RENAMED.replace("if (t > most) break;", "log(t);")), [("common/b.cpp", 1, 8)])
        self.assertEqual(leaks(RENAMED.replace("if (t > most) break;", "log(t);").replace("* a", "/ a")), [])

    def test_literals_and_keywords_count(self):
        self.assertEqual(leaks(RENAMED.replace('"sum"', '"total"')), [])
        self.assertEqual(leaks(RENAMED.replace("const int a", "const long a")), [])

    def test_a_solution_of_four_lines_cannot_leak(self):
        self.assertEqual(leaks(SOLUTION, solution=SOLUTION.split("\n  store")[0]), [])

    def test_pages_scripts_comments_and_patches_are_searched(self):
        self.assertEqual(leaks(f"# Title\n\n```cpp\n{RENAMED}\n```\n", "README.md"), [("README.md", 4, 11)])
        for mark, path in (("// ", "gpt2/c.hpp"), ("/// ", "gpt2/c.hpp"), ("# ", "scripts/a.py"), ("+ ", "a.patch"), ("> ", "a.md")):
            commented = "".join(f"{mark}{line}\n" for line in SOLUTION.split("\n"))
            self.assertEqual(leaks(commented, path), [(path, 1, 6)], mark)

    def test_files_that_are_no_text_are_left_out(self):
        self.assertEqual(leaks("\0" + RENAMED, "a.png"), [])


class Course(unittest.TestCase):
    tree = read_tree(SCRIPTS.parent)

    def test_no_solution_stands_elsewhere_in_any_pack(self):
        lessons = pack.lessons_of(self.tree)
        for packed in [[lesson] for lesson in lessons] + [["03", "06"], lessons]:
            self.assertEqual(list(map(str, pack.leaks_of(self.tree, packed))), [], packed)

    def test_every_twin_is_one(self):
        """Without its marks each twin is found: they mark what would leak and nothing else."""
        marked, plain = set(), dict(self.tree)
        for path, content in self.tree.items():
            if path.startswith("lessons/") and b"// BEGIN TWIN" in content:
                marked |= {(match[2], path) for match in pack.TWIN.finditer(content.decode())}
                plain[path] = content.replace(b"// BEGIN TWIN", b"//").replace(b"// END TWIN", b"//")
        found = {(leak.exercise, leak.path) for leak in pack.leaks_of(plain, pack.lessons_of(plain))}
        self.assertTrue(marked)
        self.assertEqual(found, marked)


if __name__ == "__main__":
    unittest.main()
