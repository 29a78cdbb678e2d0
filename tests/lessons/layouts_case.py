"""Layouts of every lesson that trains, and what is the same on all of them."""

from program_case import ShortTextCase

NANO = ("--steps=3", "--sequence=32", "--layers=4", "--seed=4", "--dropout=0.1")
LAYOUTS = (  # program, ranks, options
    ("03_ddp", 2, ()),
    ("03_ddp", 4, ("--micro-batch=2",)),
    ("04_zero1", 2, ()),
    ("05_zero2", 4, ()),
    ("06_zero3", 2, ()),
    ("06_zero3", 4, ("--recompute=block",)),
    ("07_offload", 2, ()),
    ("07_offload", 2, ("--offload=all",)),
    ("08_tensor_parallel", 2, ("--sequence-parallel",)),
    ("08_tensor_parallel", 4, ("--tp=2", "--dp=2")),
    ("09_pipeline_parallel", 2, ("--schedule=interleaved",)),
    ("09_pipeline_parallel", 4, ("--micro-batch=2",)),
    ("10_3d_parallel", 4, ("--dp=2", "--tp=2")),
    ("10_3d_parallel", 8, ()),
    ("11_zero_bubble", 2, ()),
    ("13_mesh_zero3", 4, ()),
    ("13_mesh_zero3", 4, ("--zero=2", "--shard-ranks=1", "--offload=all")),
    ("14_context_parallel", 4, ("--cp=2",)),
    ("14_context_parallel", 2, ("--attention=all-to-all",)),
    ("15_experts", 4, ("--experts=1",)),
    ("16_five_axes", 4, ("--experts=1", "--cp=2", "--dp=2")),
)


class LayoutsCase(ShortTextCase):
    def run_of(self, lesson, *options, ranks=None):
        self.program = "lessons/" + lesson
        return self.report(self.data, *NANO, *options, ranks=ranks)

    def assert_one_digest(self, *options):
        """Runs every layout in exact arithmetic; returns the report of one device."""
        alone = self.run_of("01_single_device", "--arithmetic=exact", *options)
        for lesson, ranks, of_layout in LAYOUTS:
            with self.subTest(lesson=lesson, ranks=ranks):
                report = self.run_of(lesson, "--arithmetic=exact", *options, *of_layout, ranks=ranks)
                for same in ("digest", "validation", "grad_norm"):
                    self.assertEqual(report[same], alone[same])
        return alone

    def assert_three_ranks_agree(self, *options):
        """Three ranks have the losses of one device up to rounding."""
        alone = self.run_of("01_single_device", "--global-batch=12", *options)
        for lesson in ("03_ddp", "06_zero3", "09_pipeline_parallel"):
            with self.subTest(lesson=lesson):
                report = self.run_of(lesson, "--global-batch=12", *options, ranks=3)
                for loss, expected in zip(report["loss"], alone["loss"], strict=True):
                    self.assertAlmostEqual(loss, expected, delta=1e-5)
