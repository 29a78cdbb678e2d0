"""The digests of exact arithmetic are constants: those of five steps of each model with default options are in
tests/golden_digests.json, and every lesson has them, on every machine, with every compiler.

Each lesson runs with one further option, in turn; with RANKWISE_ALL with default options and with each. A digest changes with
what is computed (a new order of sums, another initial value), and then the file, the README's ladder and every output with a
digest do so together.

The class Quick is a test of its own: one run of each lesson on two ranks with default options, and one that is refused.
"""

import json
import os
import unittest

from program_case import ALL, ProgramCase

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
with open(os.path.join(ROOT, "tests/golden_digests.json"), encoding="utf-8") as golden_file:
    GOLDEN = json.load(golden_file)  # by model, by option
FIXED = ["--steps=5", "--arithmetic=exact"]
LESSONS = (  # program, its model, ranks, options
    ("01_single_device", "gpt2", None, []),
    ("03_ddp", "gpt2", 2, []),
    ("04_zero1", "gpt2", 2, []),
    ("05_zero2", "gpt2", 4, []),
    ("06_zero3", "gpt2", 2, []),
    ("07_offload", "gpt2", 2, []),
    ("08_tensor_parallel", "gpt2", 2, []),
    ("09_pipeline_parallel", "gpt2", 4, []),
    ("10_3d_parallel", "gpt2", 8, []),
    ("11_zero_bubble", "gpt2", 2, []),
    ("12_bert", "bert", 2, []),
    ("13_mesh_zero3", "gpt2", 4, []),
    ("14_context_parallel", "gpt2", 2, []),
    ("15_experts", "gpt2", 2, ["--experts=1"]),
    ("15_experts", "experts", 4, []),
    ("16_five_axes", "gpt2", 2, ["--experts=1"]),
    ("16_five_axes", "experts", 4, ["--dp=2", "--ep=2", "--cp=2"]),
)
REFUSED = {("08_tensor_parallel", "--precision=bf16"), ("10_3d_parallel", "--precision=bf16"), ("13_mesh_zero3", "--precision=bf16"),
           ("15_experts", "--recompute=block")}


class GoldenDigests(ProgramCase):
    def test_every_lesson_has_the_digest_of_its_model(self):
        for i, (program, model, ranks, options) in enumerate(LESSONS):
            further = list(GOLDEN[model])[1:]
            for option in ["", *further] if ALL else [further[i % len(further)]]:
                if (program, option) in REFUSED:
                    continue
                with self.subTest(program=program, option=option):
                    self.program = "lessons/" + program
                    report = self.report(*FIXED, *options, *([option] if option else []), ranks=ranks)
                    self.assertEqual(report["digest"], GOLDEN[model][option])

    def test_recomputation_alone_changes_no_bit(self):
        for model, digests in GOLDEN.items():
            with_others = [digest for option, digest in digests.items() if option != "--recompute=block"]
            self.assertEqual(len(set(with_others)), len(with_others), model)
            self.assertEqual(digests.get("--recompute=block", digests[""]), digests[""], model)


class Quick(ProgramCase):
    TWO_RANKS = {"10_3d_parallel": ["--dp=1", "--tp=2", "--pp=1"], "15_experts": ["--experts=1"], "16_five_axes": ["--experts=1"]}

    def test_each_lesson_on_two_ranks_has_its_digest_and_its_bytes(self):
        for program, model, ranks, _ in LESSONS:
            if model == "experts":
                continue
            with self.subTest(program=program):
                self.program = "lessons/" + program
                report = self.report(*FIXED, *self.TWO_RANKS.get(program, []), ranks=ranks and 2)
                self.assertEqual(report["digest"], GOLDEN[model][""])
                names = {check["name"] for check in report["checks"]}  # report() has seen that all of them hold
                self.assertIn("bytes of activations", names)
                if ranks:
                    self.assertTrue(any(name.startswith("traffic") for name in names), names)

    def test_what_trains_nothing_runs_too(self):
        machine = f"--machine={ROOT}/lessons/17_choose_a_layout/machines/a100-80gb-sxm.conf"
        for program, ranks, *options in (("00_mpi", 2), ("02_collectives", 2, "--count=1000"), ("17_choose_a_layout", None, machine)):
            with self.subTest(program=program):
                done = self.run_program(*options, ranks=ranks, program="lessons/" + program)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_a_mistake_is_refused(self):
        for program, _, ranks, _ in LESSONS:
            self.program = "lessons/" + program
            self.assert_refused("--steps=none", says=["--steps=none is not a whole number"], ranks=ranks and 2)


if __name__ == "__main__":
    unittest.main()
