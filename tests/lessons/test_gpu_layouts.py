"""All layouts on GPUs in fast arithmetic: the losses of the CPU, its bytes, its virtual time."""

import unittest

from gpu_case import HALVES, GpuCase


class Layouts(GpuCase):
    def check_near_the_cpu(self, lesson, ranks, options, layout=(), own=(), beside="01"):
        """Trains on GPUs, over what may carry so many ranks' messages, with the losses of one rank of lesson 01, or of another that
        trains the same model, on the CPU, which is not told the layout nor the lesson's own options.

        @return the reports."""
        alone = [o for o in options if not o.startswith((*own, "--coll"))]
        single = self.report_of(beside, *alone, device="cpu")["loss"]
        bound = 2e-3 if "--precision=bf16" in options else 2e-5
        reports = []
        for transport in self.transports(ranks):
            with self.subTest(ranks=ranks, layout=layout, options=options, transport=transport):
                report = self.report_of(lesson, *layout, *options, f"--transport={transport}", "--sample=5", ranks=ranks)
                for a, b in zip(report["loss"], single):
                    self.assertLess(abs(a - b), bound * b)
                reports.append(report)
        return reports

    def check_formulas(self, reports):
        """Memory and traffic of each report."""
        for report in reports:
            for name, bytes_ in report["memory"].items():
                self.assertEqual(bytes_["current"], bytes_["formula"], name)
            for axis, sent in report["traffic"].items():
                self.assertEqual(sent["bytes"], sent["formula"], axis)

    def test_parts_of_a_model_stay_near_the_cpu(self):
        for ranks, *options in [(2, *HALVES), (4, "--heads=4", "--collectives=library"),
                                (3, "--heads=3", "--channels=24", "--collectives=tree"),
                                (2, *HALVES, "--regather", "--precision=bf16")]:
            self.check_near_the_cpu("08", ranks, self.options("--steps=4", *options), own=("--seq", "--reg"))

    def test_stages_of_a_model_stay_near_the_cpu(self):
        for ranks, *options in [(2, "--schedule=interleaved"), (3, "--schedule=gpipe", "--recompute=block"),
                                (4, "--collectives=library"), (2, "--precision=bf16")]:
            self.check_near_the_cpu("09", ranks, self.options("--steps=4", "--layers=4", *options), own=("--sched",))

    def test_halves_of_backward_passes_stay_near_the_cpu(self):
        for ranks, *options in [(3, "--recompute=block"), (2, "--precision=bf16")]:
            self.check_near_the_cpu("11", ranks, self.options("--steps=4", "--layers=4", *options))

    def test_meshes_stay_near_the_cpu_and_keep_to_their_formulas(self):
        for dp, tp, pp, *options in [(2, 2, 2, *HALVES), (1, 2, 2, "--schedule=gpipe", "--collectives=library"),
                                     (2, 1, 2, "--recompute=block", "--precision=bf16")]:
            self.check_formulas(self.check_near_the_cpu("10", dp * tp * pp, self.options("--layers=4", *options),
                                                        [f"--dp={dp}", f"--tp={tp}", f"--pp={pp}"], ("--seq", "--sched")))

    def test_shards_of_parts_stay_near_the_cpu_and_keep_to_their_formulas(self):
        for ranks, *options in [(4, *HALVES), (4, "--zero=2", "--shard-ranks=1"), (2, "--precision=bf16", "--zero=2")]:
            self.check_formulas(self.check_near_the_cpu("13", ranks, self.options(*options), own=("--seq", "--zero", "--shard")))

    def test_divided_sequences_stay_near_the_cpu_and_keep_to_their_formulas(self):
        for ranks, *options in [(4, "--cp=2"), (4, "--cp=2", "--collectives=library", "--attention=all-to-all"),
                                (2, "--precision=bf16", "--recompute=block")]:
            self.check_formulas(self.check_near_the_cpu("14", ranks, self.options("--steps=4", *options), own=("--cp", "--att")))

    def test_experts_stay_near_the_cpu_and_keep_to_their_formulas(self):
        for ranks, *options in [(4, "--ep=2"), (4, "--ep=4", "--experts-per-token=2", "--collectives=library"),
                                (3, "--experts=3", "--global-batch=6"), (2, "--capacity-factor=1.25", "--precision=bf16")]:
            self.check_formulas(self.check_near_the_cpu("15", ranks, self.options("--steps=4", "--expert-every=1", *options),
                                                        own=("--ep",), beside="15"))

    def test_five_axes_stay_near_the_cpu_and_keep_to_their_formulas(self):
        for ranks, *options in [(8, "--dp=2", "--tp=2", "--cp=2", "--ep=2", *HALVES), (4, "--pp=2", "--cp=2", "--collectives=library")]:
            self.check_formulas(self.check_near_the_cpu("16", ranks, self.options("--layers=2", "--expert-every=1", *options),
                                                        own=("--dp", "--tp", "--pp", "--cp", "--ep", "--seq"), beside="15"))

    def test_bytes_off_the_device_are_those_of_the_cpu(self):
        for what, tier in [("all", "disk"), ("optimizer", "host"), ("parameters", "disk")]:
            options = self.options("--micro-batch=1", *self.off(what, tier))
            gpu, cpu = (self.report_of("07", *options, ranks=2, device=device) for device in ("cuda", "cpu"))
            self.assertEqual(gpu["tiers"], cpu["tiers"])
            for link in ("host to device", "device to host", "disk to host", "host to disk"):
                self.assertEqual(gpu["links"].get(link, {}).get("bytes"), cpu["links"].get(link, {}).get("bytes"), link)

    def test_what_is_offloaded_stays_near_the_cpu(self):
        for what, tier in [("all", "host"), ("optimizer", "disk"), ("gradients", "host"), ("parameters", "disk")]:
            with self.subTest(what=what, tier=tier):
                options = self.options("--steps=4", "--micro-batch=1")
                report = self.report_of("07", *options, *self.off(what, tier), ranks=2)
                for a, b in zip(report["loss"], self.report_of("01", *options, device="cpu")["loss"]):
                    self.assertLess(abs(a - b), 2e-5 * b)

    def test_fast_arithmetic_on_any_number_of_ranks(self):
        single = self.report_of("01", *self.options("--global-batch=12"))
        for ranks, *options in [(1,), (2, "--strategy=bucketed"), (3, "--bucket=5kB"), (4, "--collectives=library"),
                                (4, "--collectives=tree", "--check-messages"), (2, "--chaos=3", "--collectives=auto"),
                                (4, "--collectives=hierarchical", "--ranks-per-node=2")]:
            for transport in self.transports(ranks):
                with self.subTest(ranks=ranks, options=options, transport=transport):
                    report = self.report_of("03", *self.options("--global-batch=12", *options),
                                            f"--transport={transport}", ranks=ranks)
                    for a, b in zip(report["loss"], single["loss"]):
                        self.assertLess(abs(a - b), 1e-5 * b)

    def test_the_virtual_clock_counts_as_on_the_cpu(self):
        options = self.options("--link=5us,1GB/s", "--bucket=5kB")
        gpu, cpu = (self.report_of("03", *options, ranks=2, device=device) for device in ("cuda", "cpu"))
        self.assertEqual(gpu["virtual"], cpu["virtual"])

    def test_collectives_between_gpus(self):
        for ranks in (1, 2, 3, 4):
            for transport in self.transports(ranks):
                with self.subTest(ranks=ranks, transport=transport):
                    self.report_of("02", "--count=1003", "--repeats=1", f"--transport={transport}", ranks=ranks)


if __name__ == "__main__":
    unittest.main()
