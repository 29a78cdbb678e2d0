"""nanoGPT's recipe on Tiny Shakespeare reaches the validation loss that its author reports. Needs the text."""

import os
import pathlib
import unittest

from program_case import ProgramCase

ROOT = pathlib.Path(__file__).resolve().parents[3]
TEXT = os.path.join(os.environ.get("RANKWISE_DATA", os.path.join(ROOT, "..", "shared", "data")), "tinyshakespeare.txt")
RECIPE = os.path.join(ROOT, "lessons/01_single_device/shakespeare.conf")


@unittest.skipUnless(os.path.exists(TEXT), f"{TEXT} is not there")
class Shakespeare(ProgramCase):
    program = "lessons/01_single_device"

    def test_the_recipe_reaches_its_published_loss(self):
        tokens = os.path.join(self.folder, "shakespeare.h5")
        self.assertEqual(self.run_program(TEXT, tokens, program="data/prepare").returncode, 0)
        report = self.report(f"--config={RECIPE}", f"--data={tokens}", "--threads=2")
        self.assertLessEqual(report["validation"][-1]["loss"], 1.90)


if __name__ == "__main__":
    unittest.main()
