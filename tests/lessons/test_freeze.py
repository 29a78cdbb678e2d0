"""--freeze: frozen tensors keep their values on every layout, and do not count in the gradient's norm."""

import json
import os
import struct
import unittest

from layouts_case import NANO, LayoutsCase
from program_case import ALL

PATTERNS = ["wte.weight,h.[01].*", "*.bias,h.2.attn.*"]


class Freeze(LayoutsCase):
    def path(self, name):
        return os.path.join(self.folder, name)

    def parameters(self, checkpoint):
        """Name -> bytes of every tensor of a checkpoint."""
        exported = self.path("weights.safetensors")
        done = self.run_program("export", checkpoint, exported, program="data/weights")
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(exported, "rb") as file:
            header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
            data = file.read()
        return {name: data[slice(*tensor["data_offsets"])] for name, tensor in header.items() if name != "__metadata__"}

    def test_one_digest_on_every_layout(self):
        for pattern in PATTERNS if ALL else PATTERNS[:1]:
            alone = self.assert_one_digest(f"--freeze={pattern}")
            self.assertNotEqual(alone["digest"], self.run_of("01_single_device", "--arithmetic=exact")["digest"])

    def test_three_ranks_agree_to_the_last_digits(self):
        self.assert_three_ranks_agree("--freeze=wte.weight,h.[01].*")

    def test_frozen_tensors_keep_their_values_and_all_others_change(self):
        self.run_of("01_single_device", "--learning-rate=0", "--weight-decay=0", f"--checkpoint={self.path('before.h5')}")
        old = self.parameters(self.path("before.h5"))
        frozen = ("wte.weight", "h.1.mlp.c_fc.weight", "h.1.mlp.c_proj.weight")
        for lesson, ranks in (("01_single_device", None), ("06_zero3", 2), ("07_offload", 2), ("09_pipeline_parallel", 2)):
            with self.subTest(lesson=lesson):
                after = self.path(lesson + ".h5")
                report = self.run_of(lesson, "--freeze=wte.weight,h.1.mlp.*.weight", f"--checkpoint={after}", ranks=ranks)
                self.assertEqual(report["model"]["frozen"], (256 + 2 * 4 * 64) * 64)
                new = self.parameters(after)
                self.assertEqual(sorted(name for name, values in new.items() if values == old[name]), sorted(frozen))

    def test_frozen_tensors_do_not_count_in_the_norm(self):
        a, b = "wte.weight,h.*.weight", "wpe.weight,h.*.bias,ln_f.*"  # together all tensors
        for lesson, ranks, *more in (("01_single_device", None), ("06_zero3", 2), ("07_offload", 2, "--offload=all"),
                                     ("08_tensor_parallel", 2), ("09_pipeline_parallel", 2),
                                     ("13_mesh_zero3", 4), ("14_context_parallel", 2), ("15_experts", 4, "--ep=2"),
                                     ("16_five_axes", 4, "--pp=2", "--cp=2")):
            with self.subTest(lesson=lesson):
                without_a, without_b, whole = (self.run_of(lesson, *options, *more, ranks=ranks)["grad_norm"][0]
                                               for options in ([f"--freeze={a}"], [f"--freeze={b}"], []))
                self.assertAlmostEqual(without_a ** 2 + without_b ** 2, whole ** 2, delta=1e-5 * whole ** 2)

    def test_a_run_is_resumed_with_the_same_tensors(self):
        kept = f"--checkpoint={self.path('run.h5')}"
        whole = self.run_of("03_ddp", "--arithmetic=exact", "--freeze=wpe.*", ranks=2)
        self.run_of("06_zero3", "--arithmetic=exact", "--freeze=wpe.*", "--stop-after=2", kept, ranks=2)
        done = self.run_program(self.data, *NANO, "--resume", kept)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--freeze=wpe.* there, --freeze= here", done.stderr)
        resumed = self.run_of("08_tensor_parallel", "--arithmetic=exact", "--freeze=wpe.*", "--resume", kept, ranks=2)
        self.assertEqual(resumed["digest"], whole["digest"])

    def test_patterns_that_freeze_nothing_or_all_are_refused(self):
        self.program = "lessons/04_zero1"
        for pattern, says in (("h.9.*", "names no tensor of this model with h.9.*"), ("*", "leaves no tensor to train"),
                              ("wte,wpe.*", "with wte.")):
            done = self.run_program(f"--freeze={pattern}", ranks=2)
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn(says, done.stderr)


if __name__ == "__main__":
    unittest.main()
