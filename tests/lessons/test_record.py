"""--record and --check-against: two runs are compared tensor by tensor, whatever their layouts."""

import json
import os
import subprocess
import unittest

from program_case import ALL, BUILD, ShortTextCase

SMALL = ("--steps=2", "--layers=2", "--channels=32", "--heads=4", "--context=32", "--global-batch=8")
EXACT = (*SMALL, "--arithmetic=exact")
# Models, each with the run on one rank that is right, and ranks and options of layouts of it: 50 and more at night.
MODELS = [
    ("01_single_device", "", {
        "03_ddp": [(4, "--micro-batch=2"), (3, ""), (2, "--micro-batch=1"), (4, "--strategy=per-tensor"),
                   (4, "--strategy=flat --collectives=shared"), (4, "--strategy=bucketed --bucket=20kB"), (2, "--recompute=block")],
        "04_zero1": [(2, ""), (3, ""), (4, "--micro-batch=1"), (4, "--bucket=20kB --recompute=block")],
        "05_zero2": [(2, "--micro-batch=2"), (3, "--micro-batch=1"), (4, ""), (4, "--bucket=20kB --micro-batch=1")],
        "06_zero3": [(4, "--recompute=block"), (3, "--persist=100"), (2, "--unit=branch --prefetch=2"), (4, "--micro-batch=1"),
                     (2, "--unit=model --prefetch=0 --reshard=after-backward")],
        "07_offload": [(2, ""), (3, "--micro-batch=1"), (2, "--offload=optimizer"), (4, "--offload=gradients --persist=100")],
        "08_tensor_parallel": [(4, "--micro-batch=2 --sequence-parallel"), (2, "--micro-batch=2"), (4, "--tp=2 --dp=2"), (4, ""),
                               (4, "--tp=2 --dp=2 --sequence-parallel --regather"), (2, "--recompute=block --sequence-parallel")],
        "09_pipeline_parallel": [(2, "--micro-batch=2"), (2, "--micro-batch=1 --schedule=gpipe"), (2, "--micro-batch=4 --recompute=block")],
        "10_3d_parallel": [(4, "--tp=2 --pp=2 --micro-batch=2"), (4, "--dp=2 --pp=2 --micro-batch=1"), (4, "--dp=2 --tp=2 --zero=0"),
                           (4, "--dp=2 --tp=2 --sequence-parallel --regather"), (4, "--dp=4 --tp=1 --pp=1")],
        "11_zero_bubble": [(2, "--micro-batch=2"), (2, "--micro-batch=1")],
        "13_mesh_zero3": [(4, ""), (4, "--tp=1 --shard-ranks=2"), (4, "--zero=2 --sequence-parallel"), (2, "--tp=1 --micro-batch=1")],
        "14_context_parallel": [(2, "--micro-batch=1"), (4, "--micro-batch=1 --cp=2"), (4, "--micro-batch=1 --attention=all-to-all"),
                                (2, "--micro-batch=1 --order=contiguous"), (4, "--micro-batch=1")]}),
    ("12_bert", "", {"12_bert": [(2, "--micro-batch=2"), (4, "--zero=0 --bucket=20kB"), (4, "--zero=1"), (4, "--unit=branch")]}),
    ("15_experts", "", {
        "15_experts": [(4, ""), (2, "--micro-batch=1"), (4, "--ep=2")],
        "16_five_axes": [(4, "--dp=2 --ep=2 --cp=2 --tp=1 --pp=1 --micro-batch=1"), (2, "--dp=1 --cp=1 --tp=2 --pp=1"),
                         (4, "--dp=2 --ep=2 --tp=1 --cp=1 --pp=2 --micro-batch=1")]}),
    ("15_experts", "--experts-per-token=2 --capacity-factor=1", {
        "15_experts": [(4, "--ep=2 --micro-batch=1"), (2, "")],
        "16_five_axes": [(4, "--dp=2 --ep=2 --tp=2 --cp=1 --pp=1")]}),
]
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
        for program, model, lessons in MODELS if ALL else MODELS[:1]:
            common = ("--dropout=0.1", *model.split())
            right = self.record("right", *common, "--micro-batch=2", program=f"lessons/{program}", ranks=None)
            for lesson, layouts in lessons.items():
                for ranks, options in layouts if ALL else layouts[:2 * (lesson in CHOSEN)]:
                    with self.subTest(lesson=lesson, model=model, ranks=ranks, options=options):
                        self.assert_no_difference(right, self.record("other", *common, *options.split(),
                                                                     program=f"lessons/{lesson}", ranks=ranks))

    def assert_no_difference(self, right, other):
        done = self.compare(right, other)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("bit by bit.\nNo difference.", done.stdout)
        self.assertGreater(int(done.stdout.split(" ")[0].replace(",", "")), 500)

    def test_there_are_fifty_pairs(self):
        self.assertGreaterEqual(sum(len(layouts) for _, _, lessons in MODELS for layouts in lessons.values()), 50)

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

    def test_the_file_has_every_step(self):
        counts = []
        for steps in (1, 3):
            path = os.path.join(self.folder, f"{steps}.h5")
            done = self.run_program(f"--steps={steps}", *EXACT[1:], self.data, f"--record={path}")
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            counts.append(int(self.compare(path, path).stdout.split(" ")[0].replace(",", "")))
        self.assertEqual(counts[1], 3 * counts[0])
        one, three = (os.path.join(self.folder, f"{steps}.h5") for steps in (1, 3))
        for files, which in (((one, three), "second record has step 1: the first has 1, the second 3 of them."),
                             ((three, one), "first record has step 1: the first has 3, the second 1 of them.")):
            done = self.compare(*files)
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertIn(f"No difference in the steps that both have.\nOnly the {which}\n", done.stdout)

    def test_one_changed_bit_is_noticed(self):
        right = self.record("right")
        with open(right, "r+b") as file:
            file.seek(os.path.getsize(right) // 2)
            byte = file.read(1)[0]
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte ^ 4]))
        done = self.compare(right, right)
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("is damaged: its bytes do not have the digest", done.stderr)

    def test_a_run_that_ends_with_an_error_leaves_the_steps_before(self):
        right, path = self.record("right"), os.path.join(self.folder, "ended.h5")
        done = self.run_program("--steps=9", *EXACT[1:], self.data, "--learning-rate=1e30", "--warmup=1", f"--record={path}",
                                program="lessons/03_ddp", ranks=2)
        self.assertNotIn(done.returncode, (0, 2), done.stdout + done.stderr)
        self.assertRegex(done.stderr, f"{path} has what was noted in the (step|\\d steps) before")
        self.assertIn("First difference: step 0, loss and norm: learning rate.", self.compare(right, path).stdout)

    def test_tensors_of_other_shapes_are_not_compared(self):
        right = self.record("right")
        for option in ("--sequence=16", "--channels=64", "--vocabulary=257", "--global-batch=4", "--layers=1"):
            name = option.split("=", maxsplit=1)[0]
            base = [word for word in EXACT if not word.startswith(name)]
            path = os.path.join(self.folder, "other.h5")
            self.assertEqual(self.run_program(*base, self.data, option, f"--record={path}").returncode, 0)
            self.assert_is_refusal(self.compare(right, path), ["different models, batches or lengths of sequences"])

    def test_what_cannot_be_recorded_is_refused(self):
        none = os.path.join(self.folder, "none.h5")
        self.assert_refused(f"--record={none}", "--record-values=loss,h.0.atn", says=[
            "--record-values=loss,h.0.atn names no tensor of this model with h.0.atn.", "Did you mean h.0.attn? Its tensors are called loss"])
        self.assert_refused("--record-values=*", says=["--record-values=*", "--record=FILE"])
        self.assert_refused("--check-against=reference", "--resume", f"--checkpoint={none}", says=["--check-against=reference", "--seed"])
        self.assert_refused("--record=/nowhere/x.h5", says=["/nowhere", "--record"])
        self.assert_refused("--record=/dev/null", says=["--record=/dev/null", "a device or a pipe"])
        for files in ([], [none, none], [__file__, __file__]):
            done = self.compare(*files) if len(files) == 2 else subprocess.run(
                [os.path.join(BUILD, "data/compare_records")], capture_output=True, text=True, check=False)
            self.assertEqual((done.returncode, done.stderr.count("error:")), (2, 1), done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
