"""Lesson 08: the bits of lesson 01 however a model is divided, bytes and messages by the published figures, checkpoints of
every lesson on the ladder, and what cannot be divided.

With RANKWISE_ALL every combination is tried; else a set that covers them.
"""

import concurrent.futures
import itertools
import re
import unittest

import zero_case
from zero_case import ALL, L01, L03

PROGRAM = "lessons/08_tensor_parallel"
HALVES, AGAIN, RECOMPUTE = "--sequence-parallel", "--regather", "--recompute=block"
SIX_HEADS = ["--heads=6", "--channels=96"]  # which three parts divide
BETWEEN_LAYERS = ([], [HALVES], [HALVES, AGAIN])
B, T, C, L, H, V = 16, 64, 64, 4, 4, 256  # of nano and its one micro-batch


class Divided:
    """Beside a case of zero_case: ranks divide the model, and not the batch."""

    program = PROGRAM
    watched = ["--threads=2"]
    replicas = "digest on every rank"

    def cut(self, size):
        """The option that changes how messages are cut."""
        return HALVES if size == "1B" else "--micro-batch=2"


def of_whom(ranks, tp):
    """The options with which `tp` of the ranks divide a model."""
    return [] if tp == ranks else [f"--tp={tp}", f"--dp={ranks // tp}"]


class Exactness(Divided, zero_case.Exactness):
    def variants(self):
        if ALL:
            return [(ranks, *of_whom(ranks, tp), *between, f"--micro-batch={b}", f"--recompute={recompute}",
                     f"--collectives={collectives}")
                    for (ranks, tp), between, b, recompute, collectives in itertools.product(
                        [(1, 1), (2, 2), (2, 1), (4, 4), (4, 2), (8, 4), (8, 2)], BETWEEN_LAYERS, (1, 2, 4),
                        ("none", "block"), ("halving", "shared"))
                    if b * ranks // tp <= 16]
        return [
            (1,),
            (1, HALVES, AGAIN, RECOMPUTE),
            (2,),
            (2, HALVES, AGAIN, RECOMPUTE, "--micro-batch=2", "--collectives=shared"),
            (4, RECOMPUTE, "--micro-batch=1"),
            (4, HALVES, AGAIN, "--micro-batch=8"),
            (4, HALVES, "--collectives=shared", RECOMPUTE),
            (4, "--tp=2", "--dp=2", "--micro-batch=2", "--threads=2"),
            (4, "--dp=2", HALVES, AGAIN, RECOMPUTE, "--micro-batch=4"),
            (8, "--tp=4", HALVES, "--dp=2"),
        ]

    def test_any_number_of_replicas_and_of_sequences(self):
        for G, *variants in [(7, (6, "--dp=3"), (5, "--dp=5")), (12, (6, "--dp=3", HALVES), (4, "--dp=2", "--micro-batch=4"))]:
            self.same_digest([*self.small, "--arithmetic=exact", "--dropout=0.1", f"--global-batch={G}"], variants)

    def test_eight_parts_of_eight_heads(self):
        fixed = [*self.small, "--heads=8", "--arithmetic=exact", "--dropout=0.1", "--clip=1"]
        cases = [(8, HALVES, "--micro-batch=2"), (8, RECOMPUTE)]
        if ALL:
            cases = [(ranks, *between, f"--micro-batch={b}", f"--recompute={recompute}")
                     for ranks, between, b, recompute in itertools.product(
                         (1, 2, 4, 8), BETWEEN_LAYERS, (1, 4, 16), ("none", "block"))]
        self.same_digest(fixed, cases)

    def test_other_masks_and_a_vocabulary_that_is_padded(self):
        for options in (["--mask=full", "--vocabulary=257"], ["--mask=prefix:5", "--vocabulary=300", "--heads=8"]):
            fixed = [self.data, "--layers=1", "--steps=2", "--arithmetic=exact", "--dropout=0.1", "--sequence=32", *options]
            ranks = 8 if "--heads=8" in options else 4
            self.same_digest(fixed, [(ranks, HALVES, "--micro-batch=8"), (2,)])

    def test_the_vocabulary_of_gpt2(self):
        """50,257 entries, of which 2 parts store 25,132 and 4 store 12,566."""
        fixed = [self.data, "--vocabulary=50257", "--layers=1", "--channels=32", "--context=16", "--global-batch=2",
                 "--steps=2"]
        exact = [*fixed, "--arithmetic=exact"]
        expected = self.report_of(L01, *exact)
        for ranks, *options in [(2,), (4, HALVES)]:
            with self.subTest(ranks=ranks, options=options):
                report = self.report(*exact, *options, ranks=ranks)
                for what in ("digest", "loss", "grad_norm", "validation"):
                    self.assertEqual(report[what], expected[what], what)
        for ranks, *options in [(2, HALVES), (4,)]:
            with self.subTest(ranks=ranks, options=options):
                report = self.report(*fixed, *options, ranks=ranks)
                for a, b in zip(report["loss"], expected["loss"]):
                    self.assertLess(abs(a - b), 1e-6 * b)

    def test_in_bf16_too(self):
        fixed = [*self.small, "--arithmetic=exact", "--dropout=0.1", "--precision=bf16"]
        self.same_digest(fixed, [(1, "--micro-batch=4", RECOMPUTE), (2, "--tp=1", "--dp=2", HALVES, AGAIN)])

    def test_chaos_changes_nothing(self):
        fixed = [self.data, "--layers=1", "--steps=2", "--arithmetic=exact"]
        self.same_digest(fixed, [(2 + 2 * (seed % 2), f"--chaos={seed}", *BETWEEN_LAYERS[seed % 3], "--check-messages")
                                 for seed in range(1, 21 if ALL else 4)])


class FastSums(Divided, zero_case.Lesson):
    def test_parameters_and_losses_stay_near_those_of_one_device(self):
        cases = [(2, HALVES, AGAIN, "--collectives=tree"), (3, *SIX_HEADS), (3, *SIX_HEADS, HALVES, AGAIN, "--sequence=48"),
                 (4, "--tp=2", "--dp=2", "--micro-batch=2"), (2, HALVES, "--collectives=shared"),
                 (4, "--collectives=hierarchical", "--ranks-per-node=2")]
        if ALL:
            cases = [(ranks, *(SIX_HEADS if ranks in (3, 6) else []), *between, f"--collectives={collectives}", "--sequence=48",
                      f"--recompute={recompute}")
                     for ranks, between, collectives, recompute in itertools.product(
                         (1, 2, 3, 4, 6), BETWEEN_LAYERS, ("ring", "tree", "shared", "library", "auto"), ("none", "block"))]
        for ranks, *options in cases:
            with self.subTest(ranks=ranks, options=options):
                report = self.report(self.data, "--layers=2", "--steps=4", "--global-batch=8", "--compare=4", *options,
                                     ranks=ranks)
                self.assertTrue(0 < report["deviation"]["loss"] <= 1e-6, report["deviation"])
                self.assertTrue(0 < report["deviation"]["parameters"] <= 1e-5, report["deviation"])

    def test_replicas_that_are_not_divided_are_those_of_lesson_03(self):
        fixed = [*self.small, "--global-batch=12", "--clip=0"]
        self.assertEqual(self.report(*fixed, "--tp=1", "--dp=3", ranks=3)["digest"],
                         self.report_of(L03, *fixed, "--strategy=flat", ranks=3)["digest"])

    def test_bf16_stays_near_one_device(self):
        fixed = [*self.small, "--precision=bf16", "--dropout=0.1"]
        single = self.report_of(L01, *fixed)["loss"]
        for ranks, *options in [(2, HALVES), (4, HALVES, AGAIN, RECOMPUTE), (3, *SIX_HEADS), (2, "--gradients=bf16")]:
            with self.subTest(ranks=ranks, options=options):
                report = self.report(*fixed, *options, ranks=ranks)
                wanted = self.report_of(L01, *fixed, *options)["loss"] if SIX_HEADS[0] in options else single
                for a, b in zip(report["loss"], wanted):
                    self.assertLess(abs(a - b), 2e-3 * b)  # bf16 has 8 bits, and the mean of a thousand tokens more


class Bytes(Divided, zero_case.Lesson):
    def of_parameters(self, t):
        """Elements of a rank's shard of nano: 1/t of the divided tensors, all positions, norms, and biases after a sum."""
        everybody_s = T * C + L * 6 * C + 2 * C
        return everybody_s + (zero_case.P - everybody_s) // t

    @staticmethod
    def of_activations(t, halves, again, recompute, size=4, b=B):
        """Bytes of a micro-batch of b sequences: the published share of a layer, without T x T, and statistics in f32."""
        rows, shared = b * T, b * T // (t if halves else 1)
        stream, normalised = size * shared * C, size * (shared if again else rows) * C
        block = 2 * stream + 2 * normalised + size * rows * 12 * C // t + 4 * (4 * shared + rows * H // t)
        head = stream + normalised + size * rows * V // t + 4 * (2 * shared + 3 * rows) + 8 * rows
        return (L * stream + block - stream if recompute else L * block) + head

    def test_of_a_rank_are_those_of_its_part(self):
        cases = [(2, ()), (4, ()), (2, (HALVES,)), (4, (HALVES, AGAIN)), (4, (HALVES, AGAIN, RECOMPUTE)), (1, (RECOMPUTE,))]
        for t, options in cases:
            with self.subTest(t=t, options=options):
                report = self.report(self.data, "--steps=2", "--sample=2", *options, ranks=t)
                for rank in report["memory_ranks"]:
                    device = rank["device"]
                    P = self.of_parameters(t)
                    self.assertEqual([device[c]["current"] for c in ("parameters", "gradients", "optimizer")],
                                     [4 * P, 4 * P, 8 * P])
                    self.assertEqual(device["activations"]["current"],
                                     self.of_activations(t, HALVES in options, AGAIN in options, RECOMPUTE in options))

    def test_figures_of_that(self):
        """Figures of the header: 4 C + 12 C / t a row and layer, and 16 C / t where rows are divided and gathered again."""
        def of_layer(t, *between):
            return (self.of_activations(t, *between, False) - self.of_activations(t, *between, True)) / (L - 1) / (4 * B * T * C)

        for t in (1, 2, 4):
            statistics = H / t / C
            self.assertAlmostEqual(of_layer(t, False, False), 3 + 12 / t + 4 / C + statistics)  # its input stays anyway
            self.assertAlmostEqual(of_layer(t, True, False), 2 + 13 / t + 4 / C / t + statistics)
            self.assertAlmostEqual(of_layer(t, True, True), 15 / t + 4 / C / t + statistics)

    def test_bf16_and_other_sums_keep_to_the_formula(self):
        for ranks, *options in [(2, "--precision=bf16", HALVES), (4, "--arithmetic=exact", "--micro-batch=2", HALVES, AGAIN),
                                (3, *SIX_HEADS, "--vocabulary=257", "--collectives=tree"),
                                (4, "--dp=2", "--collectives=shared", "--micro-batch=4"),
                                (2, "--precision=bf16", "--arithmetic=exact", "--tp=1", "--dp=2", "--micro-batch=2", RECOMPUTE)]:
            with self.subTest(ranks=ranks, options=options):
                report = self.report(self.data, "--steps=1", "--layers=2", *options, ranks=ranks)
                for name, bytes_ in report["memory"].items():
                    self.assertEqual((bytes_["current"], bytes_["peak"]), (bytes_["formula"], bytes_["formula"]), name)

    def test_a_dry_run_plans_what_a_run_takes(self):
        for ranks, *options in [(2,), (4, HALVES, AGAIN, RECOMPUTE), (3, *SIX_HEADS, "--precision=bf16"),
                                (4, "--dp=2", HALVES, "--arithmetic=exact", "--micro-batch=2")]:
            with self.subTest(ranks=ranks, options=options):
                report = self.report(self.data, "--steps=1", *options, ranks=ranks)
                done = self.run_program("--dry-run", *options, ranks=ranks)
                self.assertEqual(done.returncode, 0, done.stderr)
                told = {name: int(bytes_.replace(",", ""))
                        for name, bytes_ in re.findall(r"^  (a step|\w+) +([\d,]+) +bytes", done.stdout, re.MULTILINE)}
                expected = {name: bytes_["formula"] for name, bytes_ in report["memory"].items() if bytes_["formula"] > 0}
                self.assertEqual(told, expected | {"total": sum(expected.values()),
                                                   "a step": report["traffic"]["tp"]["bytes"]})
                alone = self.run_program("--dry-run", f"--ranks={ranks}", *options)  # one process answers for all
                self.assertEqual(*(p.stdout.partition("\nplan")[2] for p in (done, alone)))

    def test_a_dry_run_tells_who_has_what(self):
        done = self.run_program("--dry-run", "--model=gpt2", ranks=4)
        for text in (r"# tensor-parallel rank 0 of 4 has\n", r"wte\.weight +\(50257, 768\)  rows 0\.\.12565\n",
                     r"h\.0\.attn\.c_attn\.weight +\(768, 2304\)  columns 0\.\.191 768\.\.959 1536\.\.1727\n",
                     r"h\.0\.mlp\.c_proj\.weight +\(3072, 768\)  rows 0\.\.767\n"):
            self.assertRegex(done.stdout, text)


class Traffic(Divided, zero_case.Lesson):
    def assert_sent(self, t, *options, passes=1, size=4, b=B, extra=0):
        """By ring: 8 (t-1)/t B T C elements a layer and micro-batch (10 where rows are gathered again, 4 more where blocks are
        recomputed), 4 (5) more for embedding and head, three numbers a token; and the sums of RowGradients."""
        halves, again, recompute = (option in options for option in (HALVES, AGAIN, RECOMPUTE))
        rows = b * T
        layer, beside = 8 + 2 * again + 4 * recompute, 4 + again
        elements = (layer * L + beside) * rows * C * (t - 1) // t
        numbers = 4 * ((t - 1) * rows + 2 * 2 * rows * (t - 1) // t)
        of_rows = 4 * 2 * b * (6 * L + 2) * C * (t - 1) // t if halves else 0
        report = self.report(self.data, "--steps=2", f"--micro-batch={b}", *options, ranks=t)
        traffic = report["traffic"]["tp"]
        self.assertEqual(traffic["bytes"], traffic["formula"])
        self.assertEqual(traffic["bytes"], passes * (size * elements + numbers + of_rows) + extra)

    def test_a_step_sends_the_published_figures(self):
        for t, options in [(1, ()), (2, ()), (4, ()), (2, (HALVES,)), (4, (HALVES, AGAIN)), (2, (RECOMPUTE,)),
                           (4, (HALVES, AGAIN, RECOMPUTE))]:
            with self.subTest(t=t, options=options):
                self.assert_sent(t, *options)
        self.assert_sent(2, HALVES, passes=4, b=4)
        self.assert_sent(2, "--precision=bf16", size=2)

    def test_replicas_send_their_gradients_once_a_step(self):
        report = self.report(self.data, "--steps=2", "--dp=2", "--micro-batch=2", ranks=4)
        self.assertEqual(report["traffic"]["dp"]["bytes"], 4 * Bytes().of_parameters(2))
        self.assertEqual(report["traffic"]["dp"]["bytes"], report["traffic"]["dp"]["formula"])

    def test_other_collectives_keep_to_their_formula(self):
        cases = [(3, "tree", *SIX_HEADS), (4, "halving", HALVES), (4, "shared"), (2, "auto", HALVES, AGAIN), (2, "library")]
        for ranks, collectives, *options in cases:
            with self.subTest(ranks=ranks, collectives=collectives):
                report = self.report(self.data, "--steps=1", "--layers=2", f"--collectives={collectives}", *options, ranks=ranks)
                self.assertEqual(report["traffic"]["tp"]["bytes"], report["traffic"]["tp"]["formula"])


class Checkpoints(Divided, zero_case.Checkpoints):
    def test_how_it_is_divided_may_change(self):
        whole = self.report_of(L01, *self.fixed, "--steps=5")["digest"]
        for step, (lesson, ranks, *options) in enumerate([(PROGRAM, 4, HALVES), (PROGRAM, 2, "--micro-batch=2"),
                                                          (PROGRAM, 4, "--dp=2", HALVES, AGAIN), (self.partners()[-1], 2),
                                                          (PROGRAM, 4, RECOMPUTE)]):
            report = self.report_of(lesson, *self.fixed, f"--steps={step + 1}", self.checkpoint, *options,
                                    *(["--resume"] if step > 0 else []), ranks=ranks)
            self.assertEqual(report["first_step"], step)
        self.assertEqual(report["digest"], whole)

    def test_three_ranks_of_any_lesson_go_on_from_three_of_any_other(self):
        self.three_ranks_go_on_near_the_run_that_never_stopped("--layers=1", *SIX_HEADS)

    def test_three_ranks_write_what_three_and_one_go_on_from(self):
        fixed = [self.data, "--layers=1", "--vocabulary=257", *SIX_HEADS]
        whole = self.report(*fixed, "--steps=3", ranks=3)["digest"]
        self.report(*fixed, "--steps=2", self.checkpoint, ranks=3)
        three = self.report(*fixed, "--steps=3", self.checkpoint, "--resume", ranks=3)
        one = self.report_of(L01, *fixed, "--steps=4", self.checkpoint, "--resume")
        self.assertEqual((three["first_step"], one["first_step"]), (2, 3))
        self.assertEqual(three["digest"], whole)

    def test_master_weights_in_bf16(self):
        fixed = [self.data, "--layers=1", "--dropout=0.1", "--precision=bf16", HALVES]
        whole = self.report(*fixed, "--steps=4", ranks=2)["digest"]
        self.report(*fixed, "--steps=2", self.checkpoint, ranks=2)
        self.assertEqual(self.report(*fixed, "--steps=4", self.checkpoint, "--resume", ranks=2)["digest"], whole)


class Output(Divided, zero_case.Output):
    def test_validation_and_sample_are_those_of_lesson_01(self):
        options = [*self.small, "--arithmetic=exact", "--evaluate-every=2"]
        expected = self.report_of(L01, *options)["validation"]
        for ranks, *layout in [(2, "--micro-batch=4"), (4, HALVES), (4, "--dp=2", HALVES, AGAIN, "--micro-batch=2"),
                               (2, "--dp=2", "--micro-batch=1")]:
            with self.subTest(ranks=ranks, layout=layout):
                self.assertEqual(self.report(*options, *layout, ranks=ranks)["validation"], expected)
        for more in [["--temperature=0.5", "--top-k=20"], *([[]] if ALL else [])]:
            options = [*self.small[:2], "--steps=1", "--arithmetic=exact", "--sample=80", *more]  # the window slides
            runs = [(None, L01), (2, None), (4, None)]
            text = [re.search(r"# sample:\n(# .*\n)+", self.run_program(*options, *([HALVES] if r == 4 else []), ranks=r,
                                                                        program=p).stdout).group() for r, p in runs]
            self.assertEqual(text[1:], 2 * text[:1])

    def test_what_is_checked(self):
        report = self.report(*self.small, "--dp=2", HALVES, "--global-batch=12", ranks=4)
        names = {check["name"] for check in report["checks"]}
        self.assertTrue({self.replicas, "traffic of a step", "traffic of a step, to replicas", "bytes of optimizer",
                         "bytes of communication"} <= names, names)
        self.assertEqual(report["layout"], {"dp": 2, "tp": 2, "pp": 1})

    def test_no_logits_are_gathered_to_train(self):
        """The largest vocabulary sends as many bytes as the smallest."""
        sent = [self.report(self.data, "--layers=1", "--steps=1", f"--vocabulary={v}", ranks=2)["traffic"]["tp"]
                for v in (256, 4096)]
        self.assertEqual(sent[0], sent[1])


class WrongInput(Divided, zero_case.Lesson):
    def test_what_cannot_be_divided_is_refused_before_anything_is_sent(self):
        for ranks, cases in [
                (3, [([], ["--tp=3 does not divide the 4 heads of the model", "--tp=1, 2, 4", "--heads"]),
                     (["--heads=3", "--channels=66", "--sequence=64", HALVES],
                      ["--tp=3 does not divide the 64 tokens of a sequence", "--tp=1, 2, 4, 8, 16, 32, 64", "--sequence"]),
                     ([*SIX_HEADS, "--arithmetic=exact"], ["--tp=3 is not a power of two", "2 or 4"])]),
                (2, [(["--tp=4"], ["4", "2"]),
                     (["--dp=3"], ["2 ranks", "--dp=3"]),
                     (["--tp=2", "--dp=2"], ["4", "2"]),
                     ([AGAIN], ["--regather needs --sequence-parallel"]),
                     (["--dp=2", "--global-batch=15"], ["--global-batch=15 cannot be shared out among 2"]),
                     (["--arithmetic=exact", "--collectives=ring"], ["--collectives=ring", "halving"]),
                     (["--arithmetic=exact", "--precision=bf16"], ["--precision=bf16 with --tp=2", "--precision=f32"])])]:
            self.assert_all_refused(cases, ranks=ranks)

    def test_sixteen_parts_are_no_exact_sum(self):
        self.assert_refused("--heads=16", "--arithmetic=exact", ranks=16, says=["--tp=16 is more than 8", "8 or less"])

    def test_what_would_fit_is_said_and_fits(self):
        """Each remedy is named when those before it are not enough."""
        plans = [[], [HALVES], [HALVES, AGAIN], [HALVES, AGAIN, RECOMPUTE], [HALVES, AGAIN, RECOMPUTE, "--micro-batch=1"]]
        totals = [self.total(*options) for options in plans]
        self.assertEqual(totals, sorted(totals, reverse=True))
        with concurrent.futures.ThreadPoolExecutor(max_workers=4) as pool:
            refused = list(pool.map(lambda limit: self.run_program(f"--memory-limit={limit}B", ranks=2),
                                    [*totals[1:], totals[-1] - 1]))
        for options, total, done in zip(plans[1:], totals[1:], refused):
            with self.subTest(options=options):
                self.assert_is_refusal(done, [f"{total:,} bytes are enough with {' '.join(options)}."])
        self.assert_is_refusal(refused[-1], ["The least that works with 2 tensor-parallel ranks is "
                                             f"{totals[-1]:,} bytes, with {' '.join(plans[-1])}"])
        for options, total in [(plans[2], totals[2]), (plans[-1], totals[-1])]:
            self.report(self.data, "--steps=1", *options, f"--memory-limit={total}B", ranks=2)
        self.assert_refused(*plans[-1], f"--memory-limit={totals[-1] - 1}B", ranks=2,
                            says=[f"this run needs {totals[-1]:,} bytes a rank"])

    def test_the_plan_is_that_of_the_rank_that_needs_most(self):
        """With nodes of three ranks and one, only the last rank's groups all span both nodes, which needs most memory."""
        options = [self.data, "--steps=1", "--dp=2", "--collectives=auto", "--ranks-per-node=3"]
        total = self.total(*options, ranks=4)
        ranks = self.report(*options, f"--memory-limit={total}B", ranks=4)["memory_ranks"]
        needs = [sum(category["peak"] for category in rank["device"].values()) for rank in ranks]
        self.assertEqual(needs[3], total)
        self.assertLess(max(needs[:3]), total)

    def test_rows_that_cannot_be_divided_are_no_remedy(self):
        done = self.assert_refused("--memory-limit=3MB", "--sequence=63", ranks=2, says=["bytes"])
        self.assertNotIn(HALVES, done.stderr)

    def total(self, *options, ranks=2):
        done = self.run_program("--dry-run", *options, ranks=ranks)
        self.assertEqual(done.returncode, 0, done.stderr)
        return int(re.search(r"  total +([\d,]+)", done.stdout).group(1).replace(",", ""))


if __name__ == "__main__":
    unittest.main(verbosity=2)
