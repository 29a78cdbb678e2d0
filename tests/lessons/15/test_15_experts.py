"""Lesson 15: the same bits on every division of the ranks, the dense model where there is one expert, bytes of the routing
that was counted, checkpoints of other layouts, and what is refused.

With RANKWISE_ALL every combination is tried; else a set that covers them.
"""

import itertools
import re
import unittest

import zero_case
from zero_case import ALL, L01, L03, P

PROGRAM = "lessons/15_experts"
C, L, T = 64, 4, 64  # of nano
MLP = 8 * C * C + 5 * C  # parameters of one expert


class Experts:
    program = PROGRAM


def layouts():
    """Numbers of ranks, and how many of them share the experts."""
    return [(ranks, ep) for ranks in (1, 2, 4, 8) for ep in (1, 2, 4, 8) if ep <= ranks]


class Exactness(Experts, zero_case.Lesson):
    def same_digest(self, fixed, variants):
        """Digest and losses of the first variant are those of all others."""
        reports = [self.report(*fixed, *options, ranks=ranks) for ranks, *options in variants]
        for (ranks, *options), report in zip(variants, reports):
            with self.subTest(ranks=ranks, options=options):
                for what in ("digest", "loss", "grad_norm", "validation"):
                    self.assertEqual(report[what], reports[0][what], what)

    def test_every_division_of_the_ranks_gives_the_same_bits(self):
        fixed = [*self.small, "--arithmetic=exact", "--experts=8", "--dropout=0.1", "--clip=0.5"]
        some = layouts() if ALL else [(1, 1), (2, 1), (2, 2), (4, 2), (4, 4), (8, 8), (8, 2)]
        sizes = (1, 2) if ALL else (2,)
        self.same_digest(fixed, [(ranks, f"--ep={ep}", f"--micro-batch={B}") for (ranks, ep), B in itertools.product(some, sizes)])

    def test_with_two_choices_a_capacity_or_experts_in_every_block(self):
        for options in (["--experts-per-token=2"], ["--capacity-factor=1"], ["--experts-per-token=2", "--capacity-factor=0.5"],
                        ["--expert-every=1", "--auxiliary-loss=0"], ["--precision=bf16"]):
            fixed = [self.data, "--layers=2", "--steps=2", "--arithmetic=exact", *options]
            self.same_digest(fixed, [(1, "--micro-batch=4"), (2, "--ep=2", "--micro-batch=1"), (4, "--ep=2", "--micro-batch=2")])

    def test_one_expert_is_the_dense_model(self):
        fixed = [*self.small, "--arithmetic=exact", "--dropout=0.1"]
        expected = self.report_of(L01, *fixed)["digest"]
        for ranks in (1, 2, 4):
            self.assertEqual(self.report(*fixed, "--experts=1", ranks=ranks)["digest"], expected)
        fixed = [*self.small, "--clip=0"]  # in fast arithmetic, with the sums of lesson 03
        self.assertEqual(self.report(*fixed, "--experts=1", ranks=4 if ALL else 2)["digest"],
                         self.report_of(L03, *fixed, "--strategy=flat", ranks=4 if ALL else 2)["digest"])

    def test_chaos_and_the_algorithm_change_nothing(self):
        fixed = [self.data, "--layers=2", "--steps=2", "--arithmetic=exact", "--micro-batch=2"]
        self.same_digest(fixed, [(1,), *((4, f"--ep={ep}", f"--chaos={seed}", "--check-messages")
                                         for seed, ep in ((1, 2), (2, 4))), (4, "--collectives=shared")])


class FastSums(Experts, zero_case.Lesson):
    def test_losses_stay_near_those_of_one_device(self):
        fixed = [*self.small, "--experts=6", "--global-batch=12"]
        single = self.report(*fixed, ranks=1)["loss"]
        for ranks, ep in [(2, 2), (3, 3), (4, 2), (6, 6), (3, 1)]:
            with self.subTest(ranks=ranks, ep=ep):
                for a, b in zip(self.report(*fixed, f"--ep={ep}", ranks=ranks)["loss"], single):
                    self.assertLess(abs(a - b), 1e-6 * b)

    def test_the_loss_falls_and_the_auxiliary_loss_evens_out_the_loads(self):
        imbalance = {}  # of the first block with experts, on the embedded text
        for weight in ("0", "0.1"):
            report = self.report("--steps=40", f"--auxiliary-loss={weight}", ranks=2)
            self.assertLess(report["loss"][-1], report["loss"][0] - 1)
            imbalance[weight] = report["experts"][0]["imbalance"]
        self.assertLess(imbalance["0.1"], 0.7 * imbalance["0"])


class Bytes(Experts, zero_case.Lesson):
    def test_model_state_of_a_rank_is_16_bytes_of_dense_parameters_and_its_experts(self):
        E, blocks = 4, 2
        dense = P - blocks * MLP + blocks * C * E
        for ranks, ep in [(1, 1), (2, 2), (4, 2), (4, 4)]:
            report = self.report(self.data, "--steps=1", f"--ep={ep}", ranks=ranks)
            self.assertEqual(report["model"]["parameters"], dense + blocks * E * MLP)
            for rank in report["memory_ranks"]:
                state = [rank["device"][c]["current"] for c in ("parameters", "optimizer")]
                self.assertEqual(state, [4 * (dense + blocks * E * MLP // ep), 8 * (dense + blocks * E * MLP // ep)])

    def test_memory_and_bytes_are_those_of_the_formulas(self):
        for ranks, *options in [(2, "--ep=2"), (4, "--ep=2", "--experts-per-token=2"), (4, "--ep=4", "--arithmetic=exact"),
                                (3, "--ep=3", "--experts=3", "--global-batch=12", "--capacity-factor=1.25"),
                                (2, "--ep=2", "--precision=bf16", "--gradients=f32", "--expert-every=1")]:
            with self.subTest(ranks=ranks, options=options):
                report = self.report(self.data, "--steps=2", "--layers=2", *options, ranks=ranks)
                for name, bytes_ in report["memory"].items():
                    self.assertEqual(bytes_["current"], bytes_["formula"], name)
                for axis, sent in report["traffic"].items():
                    self.assertEqual(sent["bytes"], sent["formula"], axis)

    def test_rows_of_the_last_step_add_up_and_stay_below_the_bound(self):
        options = ["--experts-per-token=2", "--ep=2", "--micro-batch=2"]
        report = self.report(self.data, "--steps=2", *options, ranks=4)
        for block in report["experts"]:
            self.assertEqual(sum(block["rows"]), 2 * 16 * T)  # k choices of each token of the global batch
        planned = self.run_program("--dry-run", self.data, *options, "--ranks=4").stdout
        at_most = int(re.search(r"at most +([\d,]+)", planned)[1].replace(",", ""))
        self.assertLessEqual(report["traffic"]["experts"]["bytes"], at_most)

    def test_with_a_capacity_no_expert_takes_more(self):
        report = self.report(self.data, "--steps=2", "--capacity-factor=1", "--ep=2", ranks=2)
        for block in report["experts"]:
            self.assertLessEqual(max(block["rows"]), 16 * T // 4)

    def test_a_dry_run_plans_what_a_run_takes(self):
        report = self.report(self.data, "--steps=1", "--ep=2", "--micro-batch=2", ranks=4)
        done = self.run_program("--dry-run", self.data, "--ep=2", "--micro-batch=2", "--ranks=4")
        total = int(re.search(r"^  total +([\d,]+)", done.stdout, re.MULTILINE)[1].replace(",", ""))
        self.assertEqual(total, sum(bytes_["peak"] for bytes_ in report["memory_ranks"][0]["device"].values()))


class Checkpoints(Experts, zero_case.Lesson):
    def test_what_one_layout_writes_any_other_goes_on_from(self):
        fixed = [self.data, "--layers=2", "--arithmetic=exact", "--dropout=0.1"]
        whole = self.report(*fixed, "--steps=4", ranks=1)["digest"]
        for number, ((writers, *how), (readers, *so)) in enumerate([((4, "--ep=4"), (2, "--ep=1")), ((1,), (4, "--ep=2")),
                                                                    ((2, "--ep=2"), (1,))]):
            file = f"--checkpoint={self.path(f'{number}.h5')}"
            self.report(*fixed, "--steps=2", file, *how, ranks=writers)
            report = self.report(*fixed, "--steps=4", file, "--resume", *so, ranks=readers)
            self.assertEqual((report["first_step"], report["digest"]), (2, whole))

    def test_the_dense_model_is_that_of_other_lessons_and_no_other_is(self):
        file = f"--checkpoint={self.path('run.h5')}"
        fixed = [self.data, "--layers=2", "--arithmetic=exact"]
        whole = self.report_of(L01, *fixed, "--steps=4")["digest"]
        self.report_of(L03, *fixed, "--steps=2", file, ranks=2)
        self.assert_refused(*fixed, "--steps=4", file, "--resume", ranks=2, says=["holds another model", "--experts"])
        self.assertEqual(self.report(*fixed, "--steps=4", file, "--resume", "--experts=1", ranks=2)["digest"], whole)


class Output(Experts, zero_case.Lesson):
    def test_sample_is_the_same_on_every_layout(self):
        options = [self.data, "--layers=2", "--steps=1", "--arithmetic=exact", "--sample=10"]
        text = {re.search(r"# sample:\n(# .*\n)+", self.run_program(*options, *more, ranks=ranks).stdout).group()
                for ranks, *more in [(1,), (2, "--ep=2"), (4, "--ep=2")]}
        self.assertEqual(len(text), 1)

    def test_the_program_finds_its_own_deviation(self):
        report = self.report(self.data, "--steps=3", "--layers=2", "--arithmetic=exact", "--compare=3", "--ep=2", ranks=2)
        self.assertEqual(report["deviation"], {"steps": 3, "loss": 0, "parameters": 0})


class WrongInput(Experts, zero_case.Lesson):
    def test_what_cannot_be_is_refused_before_anything_is_sent(self):
        self.assert_all_refused([
            (["--ep=3"], ["--ep=3 does not divide 4 ranks", "--ep=1, 2, 4"]),
            (["--ep=-1"], ["--ep=-1"]),
            (["--ep=4", "--experts=2"], ["--ep=4 does not divide 4 ranks and 2 experts", "--ep=1, 2"]),
            (["--experts=0"], ["--experts=0"]),
            (["--experts-per-token=5"], ["--experts-per-token=5"]),
            (["--experts-per-token=0"], ["--experts-per-token=0"]),
            (["--capacity-factor=-1"], ["--capacity-factor=-1"]),
            (["--auxiliary-loss=-1"], ["--auxiliary-loss=-1"]),
            (["--expert-every=0"], ["--expert-every=0"]),
            (["--expert-every=5"], ["--expert-every=5"]),
            (["--recompute=block"], ["--recompute=block cannot be combined with --experts=4"]),
            (["--global-batch=15"], ["--global-batch=15 cannot be shared out among"]),
            (["--arithmetic=exact", "--collectives=ring"], ["--collectives=ring", "halving"]),
        ], ranks=4)


if __name__ == "__main__":
    unittest.main()
