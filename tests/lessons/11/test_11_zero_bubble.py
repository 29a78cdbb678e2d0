"""Lesson 11: the bits of lessons 01 and 09 with backward passes in two halves, bytes by the published figures, less idle time than
1F1B, checkpoints of every lesson on the ladder, and what cannot be ZB-H1.

With RANKWISE_ALL every combination is tried; else a set that covers them.
"""

import itertools
import json
import re
import unittest

import zero_case
from zero_case import ALL, L01

PROGRAM, L09 = "lessons/11_zero_bubble", "lessons/09_pipeline_parallel"
RECOMPUTE = "--recompute=block"
EIGHT = "--layers=8"  # blocks
G, T, C, L, H, V = 16, 64, 64, 4, 4, 256  # of nano
OF_A_BLOCK = 12 * C * C + 13 * C  # parameters
FAST_LINK = "--link=1us,100GB/s"


class Staged(zero_case.Staged):
    program = PROGRAM


class Exactness(Staged, zero_case.Exactness):
    def test_every_number_of_ranks_gives_the_bits_of_lesson_01(self):
        more = [["--dropout=0.1", "--clip=0.5"], ["--clip=0"]] if ALL else [["--dropout=0.1", "--clip=0.5"]]
        for options in more:
            self.same_digest(self.options(EIGHT, "--arithmetic=exact", *options), self.variants())

    def variants(self):
        if ALL:
            return [(p, f"--micro-batch={B}", f"--recompute={recompute}", f"--collectives={collectives}")
                    for p, B, recompute, collectives in itertools.product((1, 2, 4, 8), (1, 2, 4, 8, 16), ("none", "block"),
                                                                          ("halving", "shared"))
                    if G // B >= p]
        return [
            (1, "--micro-batch=8"),
            (1, RECOMPUTE, "--micro-batch=1"),
            (2, "--collectives=shared", "--partition=5,3"),
            (4, RECOMPUTE, "--threads=2"),
            (4, "--micro-batch=2", "--partition=3,1,2,2"),
            (8, "--micro-batch=1"),
        ]

    def test_the_bits_are_those_of_lesson_09(self):
        fixed = self.options("--arithmetic=exact", "--dropout=0.1", "--clip=0.5")
        for schedule in ("gpipe", "1f1b"):
            expected = self.report_of(L09, *fixed, f"--schedule={schedule}", ranks=4)
            report = self.report(*fixed, ranks=4)
            for what in ("loss", "grad_norm", "digest"):
                self.assertEqual(report[what], expected[what], what)

    def test_the_default_model(self):
        self.same_digest([self.data, "--steps=2", "--arithmetic=exact"], [(2,), (4, RECOMPUTE)])

    def test_other_masks_and_a_vocabulary_that_is_padded(self):
        """With a prefix some of the tokens are not counted."""
        for options in (["--mask=full", "--vocabulary=257"], ["--mask=prefix:5", "--vocabulary=300"]):
            self.same_digest(self.options("--arithmetic=exact", "--dropout=0.1", *options), [(2, RECOMPUTE), (4,)])

    def test_in_bf16_too(self):
        fixed = self.options("--arithmetic=exact", "--dropout=0.1", "--precision=bf16")
        self.same_digest(fixed, [(2, RECOMPUTE), (4, "--micro-batch=2")])

    def test_chaos_changes_nothing(self):
        fixed = self.options(EIGHT, "--arithmetic=exact")
        self.same_digest(fixed, [((8, 4, 2)[seed % 3], f"--chaos={seed}", "--check-messages", "--micro-batch=2")
                                 for seed in range(1, 21 if ALL else 4)])

    def test_watching_and_comparing_messages_change_nothing(self):
        fixed = self.options("--arithmetic=exact")
        self.same_digest(fixed, [(4, "--check-messages", "--timeout=60"), (2, "--timeout=0", "--link=5us,1GB/s")])

    def test_the_program_finds_no_deviation_itself(self):
        report = self.report(*self.options("--arithmetic=exact", "--compare=3", "--dropout=0.1", "--clip=0.5"), ranks=4)
        self.assertEqual(report["deviation"], {"steps": 3, "loss": 0, "parameters": 0})


class FastSums(Staged, zero_case.Lesson):
    def test_parameters_and_losses_stay_near_those_of_one_device(self):
        cases = [(2, "--collectives=auto", RECOMPUTE, "--clip=0.5"), (3, "--micro-batch=1"), (3, "--partition=2,5,1", "--micro-batch=2"),
                 (4, RECOMPUTE, "--micro-batch=2"), (4, "--collectives=hierarchical", "--ranks-per-node=2", "--micro-batch=1")]
        for ranks, *options in cases:
            with self.subTest(ranks=ranks, options=options):
                report = self.report(*self.options(EIGHT, "--steps=4", "--global-batch=8", "--compare=4", *options),
                                     ranks=ranks)
                self.assertTrue(0 < report["deviation"]["loss"] <= 1e-6, report["deviation"])
                self.assertTrue(0 < report["deviation"]["parameters"] <= 1e-5, report["deviation"])

    def test_bf16_stays_near_one_device(self):
        fixed = self.options("--precision=bf16", "--dropout=0.1")
        single = self.report_of(L01, *fixed)["loss"]
        for ranks, *options in [(4, RECOMPUTE), (3,), (1, "--gradients=bf16", "--micro-batch=16")]:
            with self.subTest(ranks=ranks, options=options):
                for a, b in zip(self.report(*fixed, *options, ranks=ranks)["loss"], single):
                    self.assertLess(abs(a - b), 2e-3 * b)  # bf16 has 8 bits, and the mean of a thousand tokens more


class Bytes(Staged, zero_case.Lesson):
    def of_activations(self, p, rank, b, recompute, size=4):
        """Bytes of p micro-batches of nano, with one block a rank. Stage 0 keeps tokens and the gradient of the embedding's
        output too, the last one the head's activations; W needs 9 C numbers a row, and the norms' gradients."""
        rows = b * T
        stream, statistics, norm = size * rows * C, 4 * rows, 2 * 4 * C
        block = 16 * stream + (4 + H) * statistics
        kept = (stream if recompute else block) + 9 * stream + 2 * norm
        if rank == 0:
            kept += 4 * rows + stream
        if rank == p - 1:
            kept += 2 * stream + size * rows * V + 5 * statistics + 4 * rows + norm
        return p * kept + recompute * (block - stream)

    def of_parameters(self, p, rank):
        """A rank's part of nano: its blocks, the embedding and the final norm; the last rank has a copy of the embedding."""
        return L // p * OF_A_BLOCK + (rank == 0) * (V + T) * C + (rank == p - 1) * (2 * C + (p > 1) * V * C)

    def test_of_a_rank_are_those_of_its_stage(self):
        for b, *options in [(2,), (4, RECOMPUTE)]:
            with self.subTest(b=b, options=options):
                report = self.report(self.data, "--steps=1", f"--micro-batch={b}", *options, ranks=4)
                for rank, tiers in enumerate(report["memory_ranks"]):
                    P = self.of_parameters(4, rank)
                    self.assertEqual([tiers["device"][c]["current"] for c in ("parameters", "gradients", "optimizer")],
                                     [4 * P, 4 * P, 8 * P])
                    self.assertEqual(tiers["device"]["activations"]["current"],
                                     self.of_activations(4, rank, b, RECOMPUTE in options))
                    self.assertEqual(tiers["device"]["activations"]["peak"], tiers["device"]["activations"]["current"])

    def test_p_micro_batches_are_in_flight_on_every_rank(self):
        for p in (1, 2, 3, 4):
            numbers = " ".join(p * [str(p)])
            done = self.run_program("--dry-run", "--global-batch=12", "--micro-batch=2", ranks=p)
            self.assertRegex(done.stdout, rf"in flight +{numbers} += {numbers} +activations by rank")

    def test_bf16_and_other_sums_keep_to_the_formula(self):
        for ranks, *options in [(2, "--precision=bf16"), (4, "--arithmetic=exact", "--micro-batch=2"), (1, RECOMPUTE),
                                (3, "--vocabulary=257", "--collectives=tree", RECOMPUTE), (4, "--collectives=shared"),
                                (2, "--precision=bf16", "--arithmetic=exact", RECOMPUTE)]:
            self.keeps_to_the_formula(ranks, *options)

    def test_a_dry_run_plans_what_a_run_takes(self):
        for ranks, *options in [(2, "--precision=bf16"), (4, RECOMPUTE), (4, "--vocabulary=1024")]:
            with self.subTest(ranks=ranks, options=options):
                report = self.report(*self.options("--steps=1", *options), ranks=ranks)
                done = self.run_program("--dry-run", *self.options(*options), ranks=ranks)
                self.assertEqual(done.returncode, 0, done.stderr)
                reported = {name: int(bytes_.replace(",", ""))
                            for name, bytes_ in re.findall(r"^  (a step|\w+) +([\d,]+) +bytes", done.stdout, re.MULTILINE)}
                expected = {name: bytes_["formula"] for name, bytes_ in report["memory"].items() if bytes_["formula"] > 0}
                self.assertEqual(reported, expected | {"total": sum(expected.values()),
                                                       "a step": report["traffic"]["pp"]["bytes"]})

    def test_a_step_sends_what_1f1b_sends(self):
        for p, b in [(1, 4), (2, 4), (3, 4), (4, 2)]:
            with self.subTest(p=p, b=b):
                options = [self.data, "--steps=2", f"--micro-batch={b}"]
                traffic = self.report(*options, ranks=p)["traffic"]
                self.assertEqual(traffic, self.report_of(L09, *options, ranks=p)["traffic"])
                sent = (p > 1) * 4 * G * T * C  # by rank 0: forwards m B T C numbers
                self.assertEqual(traffic["pp"], {"bytes": sent, "messages": (p > 1) * G // b, "formula": sent})
                if p > 1:  # by ring one of the two halves of a sum of V C numbers between two
                    self.assertEqual((traffic["tied"]["bytes"], traffic["tied"]["formula"]), (4 * V * C, 4 * V * C))


class Schedule(Staged, zero_case.Lesson):
    """On paper, on the virtual clock and on the wall clock, for four ranks and eight micro-batches."""

    def of(self, program, *options):
        return self.report_of(program, *self.options(EIGHT, "--steps=2", "--micro-batch=2", "--flops=1GFLOP/s", *options),
                              ranks=4)["schedule"]

    def test_idle_shares_and_timelines(self):
        reported = self.of(PROGRAM, FAST_LINK)
        self.assertEqual((reported["name"], reported["ranks"], reported["virtual_stages"], reported["micro_batches"]),
                         ("zero-bubble", 4, 1, 8))
        self.assertEqual(reported["max_in_flight"], [4, 4, 4, 4])
        self.assertAlmostEqual(reported["idle"]["formula"], 3 / 27)
        self.assertLess(abs(reported["idle"]["virtual"] - reported["idle"]["planned"]), 0.01)
        self.assertEqual(sorted(reported["timelines"]), ["planned", "virtual", "wall"])
        for ranks in reported["timelines"].values():
            for number, rank in enumerate(ranks):
                done = [(action["kind"], action["micro_batch"]) for action in rank]
                self.assertEqual({action["stage"] for action in rank}, {number})
                self.assertEqual(sorted(done), sorted(itertools.product(("forward", "backward-input", "backward-weights"), range(8))))
                for i in range(8 - number):  # W is that many micro-batches behind B
                    self.assertEqual(done.index(("backward-input", i + number)) + 1, done.index(("backward-weights", i)))

    def test_ranks_are_idle_for_less_time_than_with_1f1b(self):
        ours, theirs = (self.of(program, FAST_LINK)["idle"] for program in (PROGRAM, L09))
        for clock in ("formula", "planned", "virtual"):
            self.assertLess(ours[clock], 0.75 * theirs[clock], clock)

    def test_a_trace_has_its_actions(self):
        trace = self.path("run.trace.json")
        reported = self.of(PROGRAM, f"--trace={trace}")["timelines"]["wall"]
        with open(trace, encoding="utf-8") as file:
            events = [event for event in json.load(file)["traceEvents"] if event["ph"] == "X"]
        for rank, actions in enumerate(reported):
            names = [event["name"] for event in events if event["pid"] == rank]
            for action in actions:  # in two steps; validation goes forwards too
                name = f"{action['kind']} of micro-batch {action['micro_batch']} in stage {action['stage']}"
                self.assertGreaterEqual(names.count(name), 2, name)


class Checkpoints(Staged, zero_case.Checkpoints):
    def setUp(self):
        super().setUp()
        self.fixed = self.model("--arithmetic=exact", "--dropout=0.1")

    def test_stages_and_the_lesson_may_change(self):
        whole = self.report_of(L01, *self.fixed, "--steps=4")["digest"]
        for step, (lesson, ranks, *options) in enumerate([(PROGRAM, 4), (L09, 2, "--schedule=interleaved"),
                                                          (PROGRAM, 2, "--partition=3,1"), (PROGRAM, 1, RECOMPUTE)]):
            report = self.report_of(lesson, *self.fixed, f"--steps={step + 1}", self.checkpoint, *options,
                                    *(["--resume"] if step > 0 else []), ranks=ranks)
            self.assertEqual(report["first_step"], step)
        self.assertEqual(report["digest"], whole)

    def test_three_ranks_of_any_lesson_go_on_from_three_of_any_other(self):
        self.three_ranks_go_on_near_the_run_that_never_stopped("--layers=4", "--heads=3", "--channels=48", "--sequence=16")

    def test_three_ranks_write_what_three_and_one_go_on_from(self):
        fixed = self.model("--vocabulary=257")
        whole = self.report(*fixed, "--steps=3", ranks=3)["digest"]
        self.report(*fixed, "--steps=2", self.checkpoint, ranks=3)
        three = self.report(*fixed, "--steps=3", self.checkpoint, "--resume", ranks=3)
        one = self.report_of(PROGRAM, *fixed, "--steps=4", self.checkpoint, "--resume", ranks=1)
        self.assertEqual((three["first_step"], one["first_step"]), (2, 3))
        self.assertEqual(three["digest"], whole)


class Output(Staged, zero_case.Lesson):
    def test_validation_is_that_of_lesson_01(self):
        """The last micro-batch of 18 windows is not full."""
        options = self.options(EIGHT, "--arithmetic=exact", "--evaluate-every=2")
        expected = self.report_of(L01, *options)["validation"]
        for ranks, *layout in [(2, RECOMPUTE), (4,)]:
            with self.subTest(ranks=ranks, layout=layout):
                self.assertEqual(self.report(*options, *layout, ranks=ranks)["validation"], expected)

    def test_a_sample_is_that_of_lesson_01(self):
        options = self.options("--steps=1", "--arithmetic=exact", "--sample=40")  # the window slides
        text = [re.search(r"# sample:\n(# .*\n)+", self.run_program(*options, ranks=ranks, program=program).stdout).group()
                for ranks, program in [(None, L01), (2, None), (4, None)]]
        self.assertEqual(text[1:], 2 * text[:1])

    def test_what_is_checked(self):
        report = self.report(*self.options("--global-batch=12"), ranks=3)
        names = {check["name"] for check in report["checks"]}
        self.assertTrue({"digest on every rank", "tied embedding on first and last stage", "traffic of a step",
                         "traffic of a step, of the tied embedding", "bytes of optimizer", "bytes of activations"} <= names,
                        names)
        self.assertEqual(report["layout"], {"dp": 1, "tp": 1, "pp": 3})

    drawn = ["01aAbB", "0a1bAB"]  # by rank: forward passes, gradients of activations and of parameters

    def test_the_schedule_is_drawn_as_planned_and_as_it_ran(self):
        done = self.run_program(*self.options(FAST_LINK, "--micro-batch=8"), ranks=2)
        for name in ("planned", "virtual", "wall"):
            drawn = re.search(rf"# {name}, [\d.]+ ms:\n# rank  0 \|(.+)\|\n# rank  1 \|(.+)\|\n", done.stdout)
            self.assertIsNotNone(drawn, done.stdout)
            lines = [re.sub(r"(.)\1*", r"\1", line.replace(".", "")) for line in drawn.groups()]
            if name == "wall":  # on a busy machine an action may be too short to be drawn
                for line, whole in zip(lines, self.drawn):
                    self.assertTrue(line, drawn)
                    self.assertRegex(line, f"^{'?'.join(whole)}?$")
            else:
                self.assertEqual(lines, self.drawn, name)

    def test_a_gradient_that_is_not_finite_is_named(self):
        done = self.run_program(*self.options("--steps=5", "--learning-rate=1e38", "--warmup=0", "--clip=0"), ranks=4)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertRegex(done.stderr, r"step [1-4]: .*wte\.weight is not finite")


class WrongInput(Staged, zero_case.Lesson):
    def test_what_cannot_be_zero_bubble_is_refused_before_anything_is_sent(self):
        for ranks, cases in [
                (2, [(["--layers=1"], ["make 2 stages, but the model has 1 blocks", "at most 1", "--layers"]),
                     (["--micro-batch=16"], ["as many micro-batches as ranks, 2; there are 1", "Use --micro-batch=1, 2, 4, 8,",
                                             "a larger --global-batch", "lesson 09 with --schedule=1f1b"]),
                     (["--schedule=1f1b"], ["--schedule"]),
                     (["--virtual-stages=2"], ["--virtual-stages"]),
                     (["--partition=1,2"], ["--partition=1,2: 2 stages with 3 blocks", "4 blocks", "--partition=2,2"]),
                     (["--partition=2,x"], ["'x' is not a number of blocks"]),
                     (["--micro-batch=3"], ["--micro-batch=3"]),
                     (["--arithmetic=exact", "--collectives=ring"], ["--collectives=ring", "halving"])]),
                (3, [(["--arithmetic=exact"], ["3 is not a power of two", "2 or 4"])]),
                (4, [(["--global-batch=2"], ["ranks, 4; there are 2", "Use a larger --global-batch"])]),
                (5, [([], ["5 ranks with a stage each make 5 stages", "4 blocks", "at most 4"])])]:
            self.assert_all_refused(cases, ranks=ranks)

    def test_what_would_fit_is_said_and_fits(self):
        plans = [[], [RECOMPUTE], [RECOMPUTE, "--micro-batch=1"]]
        totals = [self.total(*options) for options in plans]
        self.assertEqual(totals, sorted(totals, reverse=True))
        for options, total in zip(plans[1:], totals[1:]):
            done = self.run_program(f"--memory-limit={total}B", ranks=2)
            self.assert_is_refusal(done, [f"{total:,} bytes are enough with {' '.join(options)}."])
        self.assert_is_refusal(self.run_program(f"--memory-limit={totals[-1] - 1}B", ranks=2),
                               [f"The least that works with 2 stages is {totals[-1]:,} bytes, with {' '.join(plans[-1])}",
                                "lesson 09"])
        self.report(self.data, "--steps=1", *plans[-1], f"--memory-limit={totals[-1]}B", ranks=2)

    def total(self, *options):
        done = self.run_program("--dry-run", *options, ranks=2)
        self.assertEqual(done.returncode, 0, done.stderr)
        return int(re.search(r"  total +([\d,]+)", done.stdout).group(1).replace(",", ""))


if __name__ == "__main__":
    unittest.main(verbosity=2)
