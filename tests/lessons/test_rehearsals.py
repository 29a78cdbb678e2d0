"""A dry run with --link rehearses a step in one process. Every lesson on many layouts: its time is that of the virtual clock of
a run, to the picosecond.

With RANKWISE_ALL every combination is tried; else a set that covers them.
"""

import itertools
import json
import os
import unittest

from program_case import ALL, ShortTextCase

FLAT, NODES = "--link=5us,1GB/s", "--link=1us,10GB/s,50us,500MB/s,2"
EXACT, BF16, RECOMPUTE, HALVES = "--arithmetic=exact", "--precision=bf16", "--recompute=block", "--sequence-parallel"
SIZES = [(4, 16, 64), (8, 8, 64), (4, 32, 32), (6, 16, 16), (8, 24, 48)]  # layers, channels of a head, tokens

# Of each lesson, options that change what is sent, or when.
VARIANTS = {
    "03_ddp": [[], [EXACT], ["--bucket=1B", "--micro-batch=2"], ["--collectives=tree"], [BF16, "--collectives=halving"]],
    "04_zero1": [[], [EXACT, "--bucket=1B"], [BF16]],
    "05_zero2": [[], [EXACT], ["--bucket=1B", "--micro-batch=2"]],
    "06_zero3": [[], [EXACT], ["--prefetch=0"], ["--prefetch=3", RECOMPUTE], ["--unit=branch", "--micro-batch=2"]],
    "07_offload": [[], ["--offload=optimizer"]],
    "08_tensor_parallel": [[], [EXACT], [HALVES], [HALVES, "--regather", RECOMPUTE]],
    "09_pipeline_parallel": [[], ["--schedule=gpipe"], ["--micro-batch=1", RECOMPUTE], [EXACT]],
    "10_3d_parallel": [[], ["--zero=0", EXACT], ["--tp=2", HALVES]],
    "11_zero_bubble": [[], ["--micro-batch=1"]],
    "12_bert": [[], [EXACT]],
    "13_mesh_zero3": [[], ["--zero=2"], ["--tp=1", "--shard-ranks=2"]],
    "14_context_parallel": [[], ["--attention=all-to-all"], [RECOMPUTE]],
    "15_experts": [["--experts=1"]],
    "16_five_axes": [[], ["--cp=1", "--tp=2"], [EXACT]],
}
THREE = ["03_ddp", "06_zero3", "09_pipeline_parallel"]  # with three ranks too


class Rehearsals(ShortTextCase):
    def rehearsed(self, lesson, ranks, *options):
        """Times of every rank, whose memory has the size that the formula of the lesson says."""
        self.program = "lessons/" + lesson
        report = self.report("--dry-run", f"--ranks={ranks}", *options)
        steps = report["rehearsed"]
        self.assertEqual([step.pop("peak_bytes") for step in steps],
                         [rank["memory"]["device"]["total"]["peak"] for rank in report["plan"]["ranks"]])
        return steps

    def times(self, lesson, ranks, *options):
        """Times of rank 0: in the rehearsal and in a run."""
        planned = self.rehearsed(lesson, ranks, *options)
        self.assertEqual(len(planned), ranks)
        return planned[0], self.report("--steps=2", *options, ranks=ranks)["virtual"][-1]

    def check(self, lesson, ranks, *options):
        with self.subTest(lesson=lesson, ranks=ranks, options=options):
            planned, measured = self.times(lesson, ranks, *options)
            self.assertEqual(planned, measured)

    def fixed(self, lesson):
        return [] if lesson == "12_bert" else [self.data]

    def test_every_lesson(self):
        for number, (lesson, variants) in enumerate(VARIANTS.items()):
            for i, (options, link, ranks) in enumerate(itertools.product(variants, (FLAT, NODES), (1, 2, 4))):
                if ranks == 1 and {"--tp=2", "--shard-ranks=2"} & set(options):
                    continue
                if ALL or i == number % 4 or (ranks == 4 and i % 6 == 5):
                    self.check(lesson, ranks, link, *self.fixed(lesson), *options)

    def test_three_ranks(self):
        for lesson in THREE:
            self.check(lesson, 3, NODES, self.data, "--layers=3", "--heads=3", "--channels=48", "--global-batch=12")

    def test_all_meshes_of_two_to_eight_ranks(self):
        meshes = [mesh for mesh in itertools.product(range(1, 9), repeat=3) if 2 <= mesh[0] * mesh[1] * mesh[2] <= 8]
        self.assertEqual(len(meshes), 37)
        for i, (dp, tp, pp) in enumerate(meshes if ALL else meshes[::2]):
            for layers, of_head, tokens in SIZES if ALL else [SIZES[i % len(SIZES)]]:
                heads = 4 if 4 % tp == 0 else tp
                self.check("10_3d_parallel", dp * tp * pp, (FLAT, NODES)[i % 2], self.data, f"--dp={dp}", f"--tp={tp}",
                           f"--pp={pp}", f"--layers={max(layers, pp)}", f"--heads={heads}", f"--channels={heads * of_head}",
                           f"--sequence={tokens}", f"--global-batch={4 * dp}")

    def test_uneven_experts_take_about_as_long(self):
        # A rehearsal knows no rows: it sends each expert equally many.
        for lesson, options in [("15_experts", []), ("16_five_axes", ["--dp=2", "--ep=2", "--cp=2"])]:
            planned, measured = self.times(lesson, 4, FLAT, self.data, *options)
            self.assertEqual(planned["compute_ps"], measured["compute_ps"])
            self.assertAlmostEqual(planned["step_ps"] / measured["step_ps"], 1, delta=0.05)

    def test_a_dry_run_makes_no_file(self):
        folder = os.path.join(self.folder, "missing")  # a rehearsal that wrote to it would fail
        on_disk = self.rehearsed("07_offload", 2, FLAT, self.data, f"--tier=disk:{folder}")
        self.assertEqual(on_disk, self.rehearsed("07_offload", 2, FLAT, self.data))
        self.assertFalse(os.path.exists(folder))

    def test_a_script_has_the_arithmetic_that_is_timed(self):
        path = os.path.join(self.folder, "script.jsonl")
        steps = self.rehearsed("06_zero3", 2, FLAT, self.data, f"--script={path}")
        with open(path, encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
        for rank, step in enumerate(steps):
            computed = [line for line in lines if line["rank"] == rank and line["lane"] == "compute"]
            marks = [i for i, line in enumerate(computed) if line["do"] == "step"]
            self.assertEqual(len(marks), 4)  # two steps begin and end
            last = computed[marks[2]:marks[3]]
            self.assertEqual(sum(line["ps"] for line in last if line["do"] == "compute"), step["compute_ps"])
        sent = sum(message["bytes"] for line in lines for message in line.get("messages", []) if "to" in message)
        received = sum(message["bytes"] for line in lines for message in line.get("messages", []) if "from" in message)
        self.assertEqual(sent, received)
        self.assertGreater(sent, 0)

    def test_many_ranks_of_a_large_model(self):
        # Tensors are addresses: 64 ranks of a model of 1.5 billion parameters need no memory.
        options = ["--model=gpt2-xl", "--global-batch=64", "--micro-batch=1", "--precision=bf16", "--flops=150TFLOP/s"]
        steps = self.rehearsed("06_zero3", 64, "--link=5us,300GB/s,20us,25GB/s,8", *options)
        self.assertEqual(len(steps), 64)
        self.assertEqual(len({step["compute_ps"] for step in steps}), 1)


if __name__ == "__main__":
    unittest.main()
