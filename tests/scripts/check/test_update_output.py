"""Digests of exact runs in the pages: a run gives those of all blocks that scripts/check/update_output.py writes.

    test_update_output.py
"""

import pathlib
import re
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts/check"))

import update_output  # noqa: E402

DIGEST = re.compile(r"\b[0-9a-f]{16}(?:[0-9a-f]{48})?\b")


class Pages(unittest.TestCase):
    def test_digests_are_those_of_the_programs(self):
        pages = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
        blocks = [(page, block) for page in pages for block in update_output.BLOCK.finditer((ROOT / page).read_text(encoding="utf-8"))
                  if "--arithmetic=exact" in block["command"] and DIGEST.search(block["old"])]
        self.assertGreater(len(blocks), 5)
        for page, block in blocks:
            with self.subTest(page=page, command=block["command"]):
                printed = update_output.output_of(block["command"])
                self.assertEqual(DIGEST.findall(printed or ""), DIGEST.findall(block["old"]), f"scripts/check/update_output.py {page}")


if __name__ == "__main__":
    unittest.main()
