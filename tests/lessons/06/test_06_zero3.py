"""Lesson 06: the bits of lessons 01 and 03, 1/N of the parameters too, what is gathered, how much of it is hidden."""

import itertools
import json
import unittest

import zero_case
from gathering import RESHARDS, UNITS, Pass, options_of
from zero_case import ALL, P, P_OF_A_LAYER

PROGRAM = "lessons/06_zero3"


class Sharded:
    """Adapts zero_case: this lesson divides the model into FSDP units, and replicates only small tensors."""

    program = PROGRAM
    watched = ["--persist=64"]

    def cut(self, size):
        return "--unit=" + {"1B": "branch", "1GB": "model"}.get(size, "block")


class Exactness(Sharded, zero_case.Exactness):
    def variants(self):
        if ALL:
            return [(ranks, f"--micro-batch={B}", f"--recompute={recompute}", *options_of(*gathering))
                    for ranks, B, recompute, *gathering in itertools.product(
                        (1, 2, 4, 8), (1, 4), ("none", "block"), UNITS, (0, 1, 2), RESHARDS, (0, 64, 1000000))
                    if B * ranks <= 16]
        return [
            (1, "--micro-batch=4", *options_of("block", 1, "after-backward", 64)),
            (2, "--micro-batch=2", *options_of("branch", 0, "after-forward")),
            (2, "--collectives=shared", *options_of("model", 0, "after-forward", 4096)),
            (2, "--micro-batch=4", *options_of("branch", 2, "after-backward", 1000000)),
            (4, "--micro-batch=1", "--recompute=block", *options_of("branch", 1, "after-backward", 256)),
            (4, "--micro-batch=2", "--recompute=block", *options_of("block", 2, "after-forward")),
            (4, "--collectives=shared", *options_of("block", 0, "after-backward", 16384)),
            (8, "--micro-batch=1", "--threads=2", *options_of("branch", 2, "after-forward", 64)),
        ]


class AnyNumber(Sharded, zero_case.AnyNumber):
    pass


class FastSums(Sharded, zero_case.FastSums):
    same_as_lesson_03 = [(1, "1GB"), (2, "1B"), (3, "1B", "--global-batch=12"), (4, "1GB"),
                         (4, "1B", "--precision=bf16", "--gradients=bf16"), (5, "1B", "--global-batch=10")]

    def test_when_units_are_gathered_changes_no_bit(self):
        fixed = [*self.small, "--global-batch=12", "--micro-batch=2"]
        digests = {self.report(*fixed, *options_of("branch", *when), ranks=3)["digest"]
                   for when in ((0, "after-forward"), (2, "after-forward"), (1, "after-backward"))}
        self.assertEqual(len(digests), 1)


class Memory(Sharded, zero_case.Memory):
    def state_of(self, ranks):
        self.assertEqual(16 * P // 4, 882176)  # the figure of the design
        return 16 * P // ranks

    def assert_memory(self, *options, ranks=2, **of_pass):
        """Bytes of parameters: 1/N, the replicated tensors, and the peak of gathered units."""
        expected = Pass(**of_pass)
        report = self.report(self.data, "--steps=1", "--sample=3", *options, ranks=ranks)
        for rank in report["memory_ranks"]:
            parameters = rank["device"]["parameters"]
            self.assertLess(abs(parameters["current"] - 4 * expected.stays - 4 * (expected.all - expected.stays) / ranks),
                            4 * 10)  # an element a unit at most
            self.assertEqual(parameters["peak"] - parameters["current"], 4 * expected.most, options)
        return report

    def test_the_most_parameters_alive_are_those_of_neighbouring_units(self):
        cases = [("block", 0, "after-forward", 0), ("block", 1, "after-forward", 64), ("block", 2, "after-forward", 0),
                 ("block", 1, "after-backward", 0), ("branch", 0, "after-forward", 64), ("branch", 1, "after-forward", 0),
                 ("branch", 2, "after-backward", 256), ("model", 0, "after-forward", 0)]
        if ALL:
            cases = itertools.product(UNITS, (0, 1, 2, 5), RESHARDS, (0, 64, 4096, 1000000))
        for unit, prefetch, reshard, persist in cases:
            with self.subTest(unit=unit, prefetch=prefetch, reshard=reshard, persist=persist):
                self.assert_memory(*options_of(unit, prefetch, reshard, persist), ranks=2, unit=unit, prefetch=prefetch,
                                   reshard=reshard, persist=persist)

    def test_figures_of_that(self):
        block, embedding, head, attention, mlp = 49984, 20480, 128, 16768, 33216
        self.assertEqual(Pass(prefetch=0).most, block)
        self.assertEqual(Pass().most, 2 * block)
        self.assertEqual(Pass(prefetch=2).most, 3 * block)
        self.assertEqual(Pass(unit="branch", prefetch=0).most, mlp)
        self.assertEqual(Pass(unit="branch").most, mlp + embedding + head)  # the head's place has the token embedding
        self.assertEqual(Pass(unit="branch", prefetch=2).most, max(mlp + attention + mlp, mlp + attention + embedding + head))
        self.assertEqual(Pass(reshard="after-backward").most, 4 * block + embedding + head)
        self.assertEqual(Pass(unit="model").most, P)
        self.assertEqual(Pass().all, P)

    def test_validation_sampling_saving_and_loading_gather_no_more(self):
        file, fixed = f"--checkpoint={self.path('run.h5')}", [self.data, "--micro-batch=4", "--recompute=block"]
        plain = self.report(*fixed, "--steps=1", ranks=4)["memory_ranks"]
        for options in (["--steps=2"], ["--steps=3", "--resume"]):
            with self.subTest(options=options):
                report = self.report(*fixed, *options, "--evaluate-every=1", "--checkpoint-every=1", file, ranks=4)
                self.assertEqual(report["memory_ranks"], plain)
        sampled = self.report(*fixed, "--steps=1", "--sample=5", ranks=4)["memory_ranks"]
        for memory in plain + sampled:
            most = P + 4 * Pass(recompute=True).most
            self.assertEqual(memory["device"]["parameters"], {"current": P, "formula": P, "peak": most, "formula_peak": most})


class Traffic(Sharded, zero_case.Traffic):
    def assert_sent(self, *options, ranks, passes=1, layers=1, bytes_=(4, 4), **of_pass):
        """(N-1)/N of the gathers and gradients of M micro-batches, and of the replicated tensors; at most the paper's 3 M."""
        expected = Pass(layers=layers, **of_pass)
        parameters = bytes_[0] * (passes * expected.gathered + expected.stays)
        gradients = bytes_[1] * passes * expected.all
        sent = self.sent(f"--layers={layers}", f"--micro-batch={16 // ranks // passes}", *options, ranks=ranks)
        self.assertEqual(sent, (parameters + gradients) * (ranks - 1) // ranks, (ranks, passes, options))
        alone = of_pass.get("recompute") and of_pass.get("unit") == "branch" and of_pass.get("prefetch") == 0
        most = 4 if alone else 3  # recomputation that goes from branch to branch gathers once more
        self.assertLessEqual(sent, 4 * most * passes * expected.all * (ranks - 1) // ranks)

    def test_a_step_sends_what_the_units_say_to_the_byte(self):
        cases = [(1, 2, 0, "branch", 1, "after-forward", 0), (2, 1, 0, "block", 1, "after-forward", 0),
                 (2, 4, 0, "branch", 0, "after-forward", 64), (4, 1, 1, "model", 0, "after-forward", 0),
                 (4, 4, 1, "branch", 2, "after-forward", 0), (4, 2, 0, "block", 0, "after-backward", 256),
                 (2, 2, 1, "branch", 1, "after-backward", 4096)]
        if ALL:
            cases = itertools.product((1, 2, 4), (1, 4), (0, 1), UNITS, (0, 1, 2), RESHARDS, (0, 64, 4096))
        for ranks, passes, recompute, unit, prefetch, reshard, persist in cases:
            with self.subTest(ranks=ranks, passes=passes, unit=unit, prefetch=prefetch, reshard=reshard, persist=persist):
                self.assert_sent(*options_of(unit, prefetch, reshard, persist), f"--recompute={('none', 'block')[recompute]}",
                                 ranks=ranks, passes=passes, unit=unit, prefetch=prefetch, reshard=reshard,
                                 persist=persist, recompute=bool(recompute))

    def test_each_half_has_its_own_type(self):
        for precision, gradients, bytes_ in [("f32", "f32", (4, 4)), ("bf16", "f32", (2, 4)), ("bf16", "bf16", (2, 2))]:
            self.assert_sent(f"--precision={precision}", f"--gradients={gradients}", ranks=2, bytes_=bytes_)

    def test_a_pass_gathers_twice_what_it_does_not_keep(self):
        deep = Pass(layers=8, prefetch=0)
        block, embedding, head = 49984, 20480, 128
        self.assertEqual(deep.gathered, 16 * block + 2 * embedding + head)  # no place is between the last block's two
        self.assertEqual(Pass(layers=8, reshard="after-backward").gathered, deep.all)
        self.assertEqual(Pass(layers=1, unit="model").gathered, P_OF_A_LAYER)


class Checkpoints(Sharded, zero_case.Checkpoints):
    def test_what_stays_and_how_it_is_gathered_may_change(self):
        whole = self.report_of(zero_case.L01, *self.fixed, "--steps=4")["digest"]
        self.report(*self.fixed, "--steps=2", self.checkpoint, "--persist=256", "--unit=branch", ranks=4)
        report = self.report(*self.fixed, "--steps=4", self.checkpoint, "--resume", "--persist=4096",
                             "--reshard=after-backward", ranks=2)
        self.assertEqual((report["first_step"], report["digest"]), (2, whole))


class Output(Sharded, zero_case.Output):
    replicas = "replicated parameters"

    def test_a_dry_run_says_what_stays(self):
        """Rajbhandari et al. 2020 keep tensors of up to 1e5 elements; of GPT-2 large these are the vectors of its norms
        and biases: 36 blocks of 8 and 2, (9 + 4) 1,280 elements a block and 2 of 1,280."""
        self.assertEqual((36 * 8 + 2, 36 * 13 * 1280 + 2 * 1280), (290, 601600))
        done = self.run_program("--dry-run", "--model=gpt2-large", "--persist=100000", ranks=4)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("290 tensors, 601,600 elements, are replicated", done.stdout)

    def test_a_dry_run_plans_what_is_gathered_too(self):
        for options in (["--unit=branch"], ["--unit=block", "--reshard=after-backward"]):
            done = self.run_program("--dry-run", *options, ranks=4)
            self.assertEqual(done.returncode, 0, done.stderr)
            expected = Pass(**dict(option[2:].split("=") for option in options)).most
            self.assertRegex(done.stdout, rf"parameters +{P + 4 * expected:,} +bytes")

    def test_a_dry_run_draws_when_units_are_gathered(self):
        done = self.run_program("--dry-run", "--layers=2", ranks=2)
        for line in ("unit 0 |G gU  |", "units 1-2 |gU  gU|", "units 3-4 | gU-U |", "unit 5 |  gU  |"):
            self.assertIn(line, done.stdout)

    def test_the_trace_shows_hidden_gathers(self):
        trace = self.path("trace.json")
        self.report(*self.small, f"--trace={trace}", ranks=2)
        with open(trace, encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
        self.assertTrue(any(e.get("cat") == "hidden" and "gathering unit" in e["name"] for e in events))


class VirtualClock(Sharded, zero_case.Lesson):
    def test_prefetching_one_unit_hides_what_is_gathered(self):
        """Twelve blocks on two ranks, and a link on which gathering one of them takes half its forward pass."""
        block, rows, T, flops_per_s = 49984, 8 * 64, 64, 10e9
        forward_s = rows * (2 * block + 4 * 64 * T) / flops_per_s
        bytes_per_s = 4 * block / 2 / (forward_s / 2)
        options = [self.data, "--layers=12", "--steps=1", "--flops=10GFLOP/s", f"--link=1us,{bytes_per_s / 1e3:.0f}kB/s"]
        times = {K: self.report(*options, f"--prefetch={K}", ranks=2)["virtual"][0] for K in (0, 1)}
        gathering = {K: 1e12 * 4 * Pass(layers=12, prefetch=K).gathered / 2 / bytes_per_s for K in times}  # ps
        self.assertGreater(times[0]["exposed_ps"], gathering[0], times)
        self.assertLess(times[1]["exposed_ps"], 0.15 * gathering[1], times)  # what of gradients is exposed included
        self.assertEqual(times[0]["compute_ps"], times[1]["compute_ps"])


class WrongInput(Sharded, zero_case.WrongInput):
    refused = [
        (["--prefetch=-1"], ["--prefetch=-1", "Use 0"]),
        (["--prefetch=18"], ["--prefetch=18", "18 places"]),
        (["--persist=-1"], ["--persist=-1"]),
        (["--unit=layer"], ["--unit=layer", "branch"]),
        (["--reshard=never"], ["--reshard=never", "after-backward"]),
        (["--bucket=1B"], ["--bucket"]),
    ]

    def test_a_memory_limit_that_lesson_05_needs_and_this_one_does_not(self):
        self.assert_fits_to_the_byte("lessons/05_zero2")

    def test_a_checkpoint_of_another_model(self):
        checkpoint = f"--checkpoint={self.path('run.h5')}"
        self.report(self.data, "--layers=1", "--steps=1", checkpoint, ranks=2)
        self.assert_refused(self.data, "--layers=2", "--steps=2", checkpoint, "--resume", ranks=2, says=["--layers"])


if __name__ == "__main__":
    unittest.main()
