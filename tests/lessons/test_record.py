"""--record and --check-against: two runs are compared tensor by tensor, whatever their layouts."""

import json
import os
import subprocess
import unittest

from program_case import ALL, BUILD, ShortTextCase

SMALL = ("--steps=2", "--layers=2", "--channels=32", "--heads=4", "--context=32", "--global-batch=8")
EXACT = (*SMALL, "--arithmetic=exact")
# ranks, options: layouts of one run. Those without ALL have every kind of group and of shard.
LAYOUTS = {
    "03_ddp": [(4, "--micro-batch=2"), (3, "")],
    "04_zero1": [(2, "")],
    "05_zero2": [(2, "--micro-batch=2")],
    "06_zero3": [(4, "--recompute=block")],
    "07_offload": [(2, "")],
    "08_tensor_parallel": [(4, "--micro-batch=2 --sequence-parallel"), (2, "--micro-batch=2")],
    "09_pipeline_parallel": [(2, "--micro-batch=2")],
    "10_3d_parallel": [(4, "--tp=2 --pp=2 --micro-batch=2")],
    "11_zero_bubble": [(2, "--micro-batch=2")],
    "13_mesh_zero3": [(4, "")],
    "14_context_parallel": [(2, "--micro-batch=1")],
}
CHOSEN = ("03_ddp", "06_zero3", "08_tensor_parallel", "10_3d_parallel", "14_context_parallel")


class Records(ShortTextCase):
    program = "lessons/01_single_device"

    def record(self, name, *options, program=None, ranks=None):
        path = os.path.join(self.folder, f"{name}.h5")
        done = self.run_program(*EXACT, self.data, *options, f"--record={path}", program=program, ranks=ranks)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return path

    def compare(self, right, other):
        return subprocess.run([os.path.join(BUILD, "data/compare_records"), right, other], capture_output=True, text=True,
                              check=False)

    def test_the_layout_changes_no_tensor(self):
        right = self.record("right", "--dropout=0.1", "--micro-batch=2")
        for lesson, layouts in LAYOUTS.items():
            for ranks, options in layouts if ALL or lesson in CHOSEN else []:
                with self.subTest(lesson=lesson, ranks=ranks, options=options):
                    other = self.record("other", "--dropout=0.1", *options.split(), program=f"lessons/{lesson}", ranks=ranks)
                    done = self.compare(right, other)
                    self.assertEqual(done.returncode, 0, done.stdout)
                    self.assertIn("bit by bit.\nNo difference.", done.stdout)
                    self.assertGreater(int(done.stdout.split(" ")[0].replace(",", "")), 500)

    def test_another_seed_differs_from_the_first_tensor_on(self):
        done = self.compare(self.record("right"), self.record("other", "--seed=2"))
        self.assertEqual(done.returncode, 1)
        self.assertIn("First difference: step 0, forward: embedding, sequences 0 to 7.", done.stdout)

    def test_what_an_option_changes_first_is_named(self):
        right = self.record("right", "--dropout=0.1")
        for option, says in [("--dropout=0.2", "forward: embedding, sequences 0 to 7. All before it is equal, and dropout is on: perhaps"),
                             ("--mask=full", "forward: h.0.attn.heads, sequences 0 to 7."),
                             ("--freeze=wpe.weight", "gradients summed: summed gradient of wpe.weight. It is zero"),
                             ("--learning-rate=2e-3", "loss and norm: learning rate. It is 2 times the right one."),
                             ("--beta1=0.8", "update: first moment of wte.weight after the update. It is 2 times the right one."),
                             ("--beta2=0.9", "update: second moment of wte.weight after the update. It is 2 times the right one."),
                             ("--epsilon=1", "update: wte.weight after the update. Gradients, loss and norm are equal")]:
            with self.subTest(option=option):
                dropout = [] if option.startswith("--dropout") else ["--dropout=0.1"]
                done = self.compare(right, self.record("other", *dropout, option))
                self.assertIn(f"First difference: step 0, {says}", done.stdout)

    def test_a_record_changes_nothing(self):
        plain, noted = self.report(*EXACT, self.data), self.report(*EXACT, self.data, f"--record={self.folder}/x.h5")
        self.assertEqual(plain["digest"], noted["digest"])
        self.assertEqual(plain["memory"], noted["memory"])

    def test_against_the_reference(self):
        self.program = "lessons/06_zero3"
        for options in ("--arithmetic=exact", "--arithmetic=fast", "--arithmetic=fast --precision=bf16"):
            with self.subTest(options=options):
                report = self.report(*SMALL, self.data, *options.split(), "--check-against=reference", ranks=2)
                self.assertEqual(report["first_difference"], "")

    def test_a_run_that_leaves_the_reference_fails(self):
        # Rounding decides elements with tiny gradients, and so large a learning rate makes much of that.
        path = os.path.join(self.folder, "report.json")
        done = self.run_program("--steps=8", *SMALL[1:], self.data, "--learning-rate=1", "--warmup=1",
                                "--check-against=reference", f"--report={path}")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertRegex(done.stdout, "FAIL  tensors that differ from the reference run +step \\d, ")
        with open(path, encoding="utf-8") as file:
            self.assertIn("step ", json.load(file)["first_difference"])

    def test_what_cannot_be_recorded_is_refused(self):
        none = os.path.join(self.folder, "none.h5")
        self.assert_refused("--record-values=*", says=["--record-values=*", "--record=FILE"])
        self.assert_refused("--check-against=reference", "--resume", f"--checkpoint={none}", says=["--check-against=reference", "--seed"])
        self.assert_refused("--record=/nowhere/x.h5", says=["/nowhere", "--record"])
        for files in ([], [none, none], [__file__, __file__]):
            done = self.compare(*files) if len(files) == 2 else subprocess.run(
                [os.path.join(BUILD, "data/compare_records")], capture_output=True, text=True, check=False)
            self.assertEqual((done.returncode, done.stderr.count("error:")), (2, 1), done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
