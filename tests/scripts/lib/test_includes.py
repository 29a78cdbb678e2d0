"""scripts/lib/includes.py, and what lessons/parallel/README.md says of who teaches what."""

import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts/lib"))
import includes  # noqa: E402

TREE = {"lessons/03_a/03_a.cpp": '#include "common/x.hpp"\n#include "lessons/parallel/p/a.hpp"\n',
        "lessons/parallel/p/a.hpp": "", "lessons/parallel/p/a.cpp": '#include "lessons/parallel/p/b.hpp"\n',
        "lessons/parallel/p/b.hpp": '#include "lessons/parallel/p/a.hpp"\n', "lessons/parallel/p/c.hpp": "",
        "lessons/04_b/04_b.cpp": '#include "lessons/04_b/own.hpp"\n', "lessons/04_b/own.hpp": '#include "lessons/parallel/p/c.hpp"\n'}


class Includes(unittest.TestCase):
    def test_sources_beside_headers_and_circles(self):
        self.assertEqual(includes.reached(["lessons/03_a/03_a.cpp"], TREE.get),
                         {"lessons/03_a/03_a.cpp", *(f"lessons/parallel/p/{name}" for name in ("a.hpp", "a.cpp", "b.hpp"))})

    def test_the_first_that_includes_a_file_teaches_it(self):
        taught = includes.teachers(TREE, TREE.get)
        self.assertEqual(taught["lessons/parallel/p/b.hpp"], "03")
        self.assertEqual(taught["lessons/parallel/p/c.hpp"], "04")

    def test_the_page_of_lessons_parallel_is_true(self):
        paths = [path.relative_to(ROOT).as_posix() for path in ROOT.glob("lessons/**/*.[ch]pp")]
        taught = includes.teachers(paths, lambda path: (ROOT / path).read_text("utf-8") if (ROOT / path).exists() else None)
        rows = re.findall(r"^\| (\d\d) \| \[(\w+\.hpp)\]\((\w+)/\2\) \| \S", (ROOT / "lessons/parallel/README.md").read_text("utf-8"), re.MULTILINE)
        self.assertEqual({f"lessons/parallel/{idea}/{name}": lesson for lesson, name, idea in rows},
                         {path: lesson for path, lesson in taught.items() if path.endswith(".hpp")})
        self.assertEqual([path for path in paths if path.startswith("lessons/parallel/") and path not in taught], [])


if __name__ == "__main__":
    unittest.main()
