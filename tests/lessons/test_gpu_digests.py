"""One digest for all layouts on GPUs, in exact arithmetic: that of a CPU."""

import unittest

from gpu_case import GPUS, HALVES, GpuCase


class Digests(GpuCase):
    def check_digest(self, expected, lesson, ranks, options, transports=None):
        """Trains over each of these transports; by default over those of this number of ranks."""
        for transport in transports or self.transports(ranks):
            with self.subTest(lesson=lesson, ranks=ranks, options=options, transport=transport):
                report = self.report_of(lesson, *options, f"--transport={transport}", ranks=ranks)
                self.assertEqual(report["digest"], expected)

    def test_exact_arithmetic_gives_one_digest_for_all_layouts(self):
        fixed = self.options("--arithmetic=exact", "--dropout=0.1")
        expected = self.report_of("01", *fixed)["digest"]
        self.assertEqual(self.report_of("01", *fixed, "--micro-batch=1", "--recompute=block")["digest"], expected)
        self.assertEqual(self.report_of("01", *fixed, device="cpu")["digest"], expected)
        for ranks, *options in [(1,), (2, "--micro-batch=1", "--bucket=5kB"), (4, "--strategy=flat"),
                                (2, "--strategy=per-tensor"), (4, "--bucket=5kB")]:
            self.check_digest(expected, "03", ranks, [*fixed, *options])

    def test_shards_of_a_model_have_its_digest(self):
        fixed = self.options("--arithmetic=exact", "--dropout=0.1")
        expected = self.report_of("01", *fixed)["digest"]
        for lesson, ranks, *options in [("04", 2, "--micro-batch=1", "--bucket=5kB"), ("04", 4),
                                        ("05", 2, "--micro-batch=1", "--bucket=1B"), ("05", 4, "--bucket=5kB"),
                                        ("06", 2, "--micro-batch=1", "--persist=16"),
                                        ("06", 4, "--unit=branch", "--recompute=block", "--prefetch=2"),
                                        ("06", 2, "--reshard=after-backward", "--prefetch=0"),
                                        ("07", 1, *self.off("all", "host"), "--micro-batch=1"),
                                        ("07", 2, *self.off("all", "disk"), "--micro-batch=1", "--persist=16"),
                                        ("07", 4, *self.off("all", "host"), "--unit=branch", "--recompute=block"),
                                        ("07", 2, *self.off("optimizer", "host"), "--prefetch=0"),
                                        ("07", 2, *self.off("optimizer", "disk"), "--unit=model"),
                                        ("07", 2, *self.off("gradients", "disk"), "--micro-batch=1"),
                                        ("07", 1, *self.off("gradients", "host")),
                                        ("07", 2, *self.off("parameters", "disk"), "--reshard=after-backward"),
                                        ("07", 4, *self.off("parameters", "host"), "--prefetch=2")]:
            self.check_digest(expected, lesson, ranks, [*fixed, *options])

    def test_a_bert_has_one_digest_and_the_losses_of_the_cpu(self):
        fixed = self.options("--dropout=0.1", "--context=48")
        exact = [*fixed, "--arithmetic=exact"]
        expected = self.report_of("12", *exact)["digest"]
        self.assertEqual(self.report_of("12", *exact, device="cpu")["digest"], expected)
        for ranks, *options in [(2, "--zero=1", "--micro-batch=1"), (4, "--zero=3", "--recompute=block"), (2, "--zero=0")]:
            self.check_digest(expected, "12", ranks, [*exact, *options])
        for precision, bound in [("f32", 1e-5), ("bf16", 2e-2)]:
            losses = [self.report_of("12", *fixed, f"--precision={precision}", ranks=2, device=device)["loss"]
                      for device in ("cpu", "cuda")]
            for a, b in zip(*losses):
                self.assertLess(abs(a - b), bound * a, precision)

    def test_parts_of_a_model_have_its_digest(self):
        fixed = self.options("--arithmetic=exact", "--dropout=0.1", "--heads=4", "--vocabulary=257")
        expected = self.report_of("01", *fixed)["digest"]
        for ranks, *options in [(2,), (2, *HALVES, "--micro-batch=2"), (4, *HALVES, "--regather", "--recompute=block"),
                                (4, "--tp=2", "--dp=2", *HALVES, "--micro-batch=1"), (4, "--micro-batch=1")]:
            self.check_digest(expected, "08", ranks, [*fixed, *options])

    def test_stages_of_a_model_have_its_digest(self):
        fixed = self.options("--arithmetic=exact", "--dropout=0.1", "--layers=4", "--vocabulary=257")
        expected = self.report_of("01", *fixed)["digest"]
        for ranks, *options in [(2, "--schedule=interleaved", "--recompute=block"), (4,),
                                (2, "--schedule=gpipe", "--micro-batch=2"), (1,)]:
            self.check_digest(expected, "09", ranks, [*fixed, *options])
        for ranks, *options in [(2,), (4, "--recompute=block"), (1,)]:
            self.check_digest(expected, "11", ranks, [*fixed, *options])

    def test_meshes_have_its_digest(self):
        fixed = self.options("--arithmetic=exact", "--dropout=0.1", "--layers=4", "--vocabulary=257")
        expected = self.report_of("01", *fixed)["digest"]
        for dp, tp, pp, *options in [(2, 2, 2, "--chaos=1"), (1, 2, 2, *HALVES, "--schedule=gpipe", "--chaos=2"),
                                     (2, 1, 2, "--schedule=interleaved", "--zero=0", "--check-messages"),
                                     (2, 2, 1, *HALVES, "--regather", "--recompute=block")]:
            mesh = [f"--dp={dp}", f"--tp={tp}", f"--pp={pp}", *options]
            chaos = any(option.startswith("--chaos") for option in options)  # of both: over NCCL receives wait on a stream
            ranks = dp * tp * pp
            self.check_digest(expected, "10", ranks, [*fixed, *mesh], ["mpi", "nccl"] if chaos and ranks <= GPUS else None)

    def test_shards_of_parts_have_its_digest(self):
        fixed = self.options("--arithmetic=exact", "--dropout=0.1", "--vocabulary=257")
        expected = self.report_of("01", *fixed)["digest"]
        for ranks, *options in [(4, *HALVES, "--micro-batch=1", "--chaos=1"), (4, "--zero=2", "--shard-ranks=1", "--chaos=2"),
                                (4, "--tp=1", "--shard-ranks=2", "--micro-batch=1", *self.off("all", "host"))]:
            chaos = any(option.startswith("--chaos") for option in options)
            self.check_digest(expected, "13", ranks, [*fixed, *options], ["mpi", "nccl"] if chaos and ranks <= GPUS else None)

    def test_a_divided_sequence_has_the_digest_of_one_device(self):
        fixed = self.options("--arithmetic=exact", "--dropout=0.1")
        expected = self.report_of("01", *fixed)["digest"]
        for ranks, *options in [(2, "--check-messages"), (4, "--cp=2", "--attention=all-to-all"), (4, "--chaos=1"),
                                (2, "--order=contiguous", "--recompute=block")]:
            self.check_digest(expected, "14", ranks, [*fixed, *options])

    def test_experts_have_one_digest(self):
        for model in ([], ["--experts-per-token=2", "--capacity-factor=1"]):
            fixed = self.options("--arithmetic=exact", "--dropout=0.1", "--expert-every=1", *model)
            expected = self.report_of("15", *fixed)["digest"]
            self.assertEqual(self.report_of("15", *fixed, device="cpu")["digest"], expected)
            for ranks, *options in [(2, "--ep=2", "--micro-batch=1"), (4, "--ep=2", "--check-messages"), (4, "--ep=4", "--chaos=1")]:
                self.check_digest(expected, "15", ranks, [*fixed, *options])
        fixed = self.options("--arithmetic=exact", "--dropout=0.1")
        self.check_digest(self.report_of("01", *fixed)["digest"], "15", 2, [*fixed, "--experts=1"])

    def test_five_axes_have_its_digest(self):
        fixed = self.options("--arithmetic=exact", "--dropout=0.1", "--expert-every=1", "--layers=2")
        expected = self.report_of("15", *fixed)["digest"]
        for ranks, *options in [(8, "--dp=2", "--tp=2", "--cp=2", "--ep=2", *HALVES), (4, "--pp=2", "--cp=2", "--check-messages")]:
            self.check_digest(expected, "16", ranks, [*fixed, *options])


if __name__ == "__main__":
    unittest.main()
