"""Lesson 04: the bits of lessons 01 and 03, 1/N of the moments, what travels, and what is refused."""

import os
import re
import unittest

from program_case import ProgramCase

SMALL = ["--layers=2", "--steps=3"]
ALL = "RANKWISE_ALL" in os.environ  # every combination instead of a covering set
L01, L03 = "lessons/01_single_device", "lessons/03_ddp"


class Lesson(ProgramCase):
    program = "lessons/04_zero1"

    def report_of(self, program, *options, ranks=None):
        """The report of another lesson with the same options."""
        self.program, own = program, self.program
        try:
            return self.report(*options, ranks=None if program == L01 else ranks)
        finally:
            self.program = own

    def path(self, name):
        return os.path.join(self.folder, name)


class Exactness(Lesson):
    def same_digest(self, fixed, variants):
        expected = self.report_of(L01, *fixed)["digest"]
        for ranks, *options in variants:
            with self.subTest(ranks=ranks, options=options):
                self.assertEqual(self.report(*fixed, *options, ranks=ranks)["digest"], expected)

    def test_every_number_of_ranks_gives_the_bits_of_lesson_01(self):
        fixed = [*SMALL, "--arithmetic=exact", "--dropout=0.1", "--clip=0.5"]
        variants = [
            (1, "--micro-batch=4"),
            (2, "--micro-batch=2", "--bucket=1B"),
            (2, "--collectives=shared"),
            (4, "--bucket=100kB", "--micro-batch=1", "--recompute=block"),
            (4, "--bucket=1GB", "--micro-batch=2", "--collectives=shared"),
            (8, "--micro-batch=1", "--threads=2"),
        ]
        if ALL:
            variants = [(ranks, f"--micro-batch={B}", f"--bucket={bucket}", f"--recompute={recompute}")
                        for ranks in (1, 2, 4, 8) for B in (1, 2, 4, 8, 16) if B * ranks <= 16
                        for bucket in ("1B", "100kB", "1GB") for recompute in ("none", "block")]
        self.same_digest(fixed, variants)

    def test_in_bf16_too(self):
        fixed = [*SMALL, "--arithmetic=exact", "--dropout=0.1", "--precision=bf16"]
        self.same_digest(fixed, [(2, "--micro-batch=4"), (4, "--micro-batch=2", "--bucket=1B")])

    def test_chaos_changes_nothing(self):
        fixed = ["--layers=1", "--steps=2", "--arithmetic=exact", "--micro-batch=2"]
        self.same_digest(fixed, [(2 + 2 * (seed % 2), f"--chaos={seed}", "--bucket=50kB", "--check-every=1")
                                 for seed in range(1, 21 if ALL else 4)])

    def test_watching_and_comparing_messages_change_nothing(self):
        fixed = ["--layers=1", "--steps=2", "--arithmetic=exact"]
        self.same_digest(fixed, [(2, "--check-messages", "--timeout=60", "--check-every=1"),
                                 (2, "--timeout=0", "--link=5us,1GB/s")])

    def test_the_program_finds_no_deviation_itself(self):
        report = self.report("--steps=4", "--layers=1", "--arithmetic=exact", "--compare=3", ranks=2)
        self.assertEqual(report["deviation"], {"steps": 3, "loss": 0, "parameters": 0})


class FastSums(Lesson):
    def test_one_pass_and_no_clipping_give_the_bits_of_lesson_03(self):
        for ranks, *options in [(1,), (2,), (3, "--global-batch=12"), (4, "--bucket=100kB"),
                                (4, "--precision=bf16"), (5, "--global-batch=10", "--bucket=1B")]:
            with self.subTest(ranks=ranks, options=options):
                fixed = [*SMALL, "--clip=0", *options]
                self.assertEqual(self.report(*fixed, ranks=ranks)["digest"],
                                 self.report_of(L03, *fixed, ranks=ranks)["digest"])

    def test_losses_stay_within_their_bound_on_any_number_of_ranks(self):
        for ranks, *options in [(2, "--micro-batch=2"), (3, "--global-batch=24"), (5, "--global-batch=40"),
                                (4, "--collectives=tree"), (4, "--collectives=library"),
                                (4, "--collectives=hierarchical", "--ranks-per-node=2")]:
            with self.subTest(ranks=ranks, options=options):
                batch = [o for o in options if o.startswith("--global-batch")]
                report, single = self.report("--steps=10", *options, ranks=ranks), self.report_of(L01, "--steps=10", *batch)
                for a, b in zip(report["loss"], single["loss"]):
                    self.assertLess(abs(a - b), 1e-6 * b)

    def test_the_program_prints_its_own_deviation(self):
        report = self.report("--steps=10", "--compare=10", "--micro-batch=4", ranks=4)
        self.assertTrue(0 < report["deviation"]["loss"] <= 1e-6, report["deviation"])
        self.assertTrue(0 < report["deviation"]["parameters"] <= 1e-5, report["deviation"])


class Memory(Lesson):
    def test_model_state_is_the_paper_s_on_every_rank(self):
        P = 220544
        for ranks, expected in [(1, 16 * P), (2, 12 * P), (4, 2205440)]:
            report = self.report("--steps=2", ranks=ranks)
            for rank in report["memory_ranks"]:
                state = sum(rank["device"][c]["current"] for c in ("parameters", "gradients", "optimizer"))
                self.assertEqual(state, expected, ranks)

    def test_each_rank_keeps_the_moments_of_its_own_elements(self):
        for ranks, options, bytes_an_element in [(3, [], 8), (5, ["--bucket=1B"], 8), (3, ["--precision=bf16"], 12)]:
            with self.subTest(ranks=ranks, options=options):
                report = self.report("--steps=2", "--global-batch=15", *options, ranks=ranks)
                own = [rank["device"]["optimizer"]["current"] for rank in report["memory_ranks"]]
                self.assertEqual(sum(own), bytes_an_element * 220544)
                self.assertLessEqual(max(own) - min(own), bytes_an_element * 10)  # an element a bucket at most
                for name, bytes_ in report["memory"].items():
                    self.assertEqual(bytes_["current"], bytes_["formula"], name)


class Traffic(Lesson):
    ELEMENTS = 256 * 64 + 64 * 64 + 49984 + 128  # of one layer

    def test_a_step_sends_what_the_paper_says_to_the_byte(self):
        for ranks in (1, 2, 4):
            for bucket in ("1B", "200kB"):
                sent = self.report("--steps=2", "--layers=1", f"--bucket={bucket}", "--micro-batch=4",
                                   ranks=ranks)["traffic"]["world"]
                self.assertEqual(sent["bytes"], 8 * self.ELEMENTS * (ranks - 1) // ranks, (ranks, bucket))
                self.assertEqual(sent["bytes"], sent["formula"])

    def test_where_segments_differ_by_an_element_the_formula_knows(self):
        for collectives in ("ring", "halving", "tree", "shared"):
            sent = self.report(*SMALL, "--global-batch=12", f"--collectives={collectives}", ranks=3)["traffic"]["world"]
            self.assertEqual(sent["bytes"], sent["formula"], collectives)

    def test_each_half_has_its_own_type(self):
        sent = {(p, g): self.report("--steps=2", "--layers=1", f"--precision={p}", f"--gradients={g}",
                                    ranks=2)["traffic"]["world"]["bytes"]
                for p, g in [("f32", "f32"), ("bf16", "f32"), ("bf16", "bf16")]}
        half = self.ELEMENTS // 2
        self.assertEqual(sent, {("f32", "f32"): 8 * half, ("bf16", "f32"): 6 * half, ("bf16", "bf16"): 4 * half})

    def test_accumulation_sends_nothing_more(self):
        sent = [self.report("--steps=2", "--layers=1", f"--micro-batch={B}", ranks=2)["traffic"] for B in (8, 4, 1)]
        self.assertEqual(sent[0], sent[1])
        self.assertEqual(sent[0], sent[2])


class Checkpoints(Lesson):
    WRITERS = [(L01, 1), (L03, 4), ("lessons/04_zero1", 1), ("lessons/04_zero1", 2), ("lessons/04_zero1", 4)]
    FIXED = ["--layers=1", "--arithmetic=exact", "--global-batch=16", "--dropout=0.1"]

    def test_what_one_lesson_writes_any_other_goes_on_from(self):
        file = self.path("run.h5")
        whole = self.report_of(L01, *self.FIXED, "--steps=4")["digest"]
        pairs = [(w, r) for w in range(len(self.WRITERS)) for r in range(len(self.WRITERS))]
        if not ALL:
            pairs = [(0, 3), (1, 4), (3, 0), (3, 2), (4, 1), (4, 3), (4, 4)]
        for w, r in pairs:
            writer, reader = self.WRITERS[w], self.WRITERS[r]
            with self.subTest(writer=writer, reader=reader):
                self.report_of(writer[0], *self.FIXED, "--steps=2", f"--checkpoint={file}", ranks=writer[1])
                report = self.report_of(reader[0], *self.FIXED, "--steps=4", f"--checkpoint={file}", "--resume",
                                        ranks=reader[1])
                self.assertEqual((report["first_step"], report["digest"]), (2, whole))
                os.remove(file)

    def test_three_ranks_write_what_three_and_one_go_on_from(self):
        file, fixed = self.path("run.h5"), ["--layers=1", "--global-batch=12"]
        whole = self.report(*fixed, "--steps=3", ranks=3)["digest"]
        self.report(*fixed, "--steps=2", f"--checkpoint={file}", ranks=3)
        three = self.report(*fixed, "--steps=3", f"--checkpoint={file}", "--resume", ranks=3)
        one = self.report_of(L01, *fixed, "--steps=4", f"--checkpoint={file}", "--resume")
        self.assertEqual((three["first_step"], one["first_step"]), (2, 3))
        self.assertEqual(three["digest"], whole)

    def test_master_weights_in_bf16(self):
        file, fixed = self.path("run.h5"), [*self.FIXED, "--precision=bf16"]
        whole = self.report_of(L01, *fixed, "--steps=4")["digest"]
        self.report(*fixed, "--steps=2", f"--checkpoint={file}", ranks=4)
        self.assertEqual(self.report(*fixed, "--steps=4", f"--checkpoint={file}", "--resume", ranks=2)["digest"], whole)

    def test_parameters_to_start_from(self):
        file = self.path("run.h5")
        self.report(*self.FIXED, "--steps=2", f"--checkpoint={file}", ranks=4)
        options = [*self.FIXED, "--steps=2", "--seed=2", f"--initial={file}"]
        self.assertEqual(self.report(*options, ranks=2)["digest"], self.report_of(L01, *options)["digest"])


class Output(Lesson):
    def test_validation_and_sample_are_those_of_lesson_01(self):
        options = [*SMALL, "--arithmetic=exact", "--sample=20", "--evaluate-every=2"]
        self.assertEqual(self.report(*options, ranks=4)["validation"], self.report_of(L01, *options)["validation"])
        text = [re.search(r"# sample:\n(# .*\n)+", self.run_program(*options, ranks=r, program=p).stdout).group()
                for r, p in [(2, None), (None, L01)]]
        self.assertEqual(text[0], text[1])

    def test_what_is_checked(self):
        report = self.report(*SMALL, "--check-every=1", "--global-batch=12", ranks=3)
        names = {check["name"] for check in report["checks"]}
        self.assertTrue({"parameters on every rank", "traffic of a step", "bytes of optimizer"} <= names, names)

    def test_a_dry_run_plans_what_a_run_needs(self):
        done = self.run_program("--dry-run", ranks=4)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"optimizer +441,088 +bytes")
        self.assertRegex(done.stdout, r"a step +1,323,264 +bytes sent by rank 0")


class Breakdown(Lesson):
    def test_a_gradient_that_is_not_finite_is_named_whoever_owns_it(self):
        done = self.run_program("--steps=5", "--layers=1", "--learning-rate=1e38", "--warmup=0", "--clip=0", ranks=4)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertRegex(done.stderr, r"step [1-4]: .*wte\.weight is not finite")


class WrongInput(Lesson):
    def test_what_cannot_be_is_refused_before_anything_is_sent(self):
        for options, says in [
            (["--global-batch=15"], ["--global-batch=15 cannot be shared out among 2 ranks"]),
            (["--bucket=0"], ["--bucket=0"]),
            (["--check-every=-1"], ["--check-every=-1"]),
            (["--arithmetic=exact", "--collectives=ring"], ["--collectives=ring", "halving"]),
            (["--arithmetic=exact", "--global-batch=12"], ["power of two", "8 or 16"]),
            (["--gradients=bf16"], ["--precision=bf16"]),
            (["--strategy=flat"], ["--strategy"]),
        ]:
            with self.subTest(options=options):
                self.assert_refused(*options, ranks=2, says=says)

    def test_a_memory_limit_that_lesson_03_needs_and_this_one_does_not(self):
        options = ["--micro-batch=1", "--memory-limit=3876608B", "--steps=2"]
        self.program = L03
        self.assert_refused(*options, ranks=4, says=["--memory-limit", "optimizer"])
        self.program = Lesson.program
        self.report(*options, ranks=4)

    def test_a_memory_limit_below_what_is_needed_says_what_would_fit(self):
        self.assert_refused("--memory-limit=3900kB", ranks=4, says=["optimizer", "--micro-batch=1 would fit"])


if __name__ == "__main__":
    unittest.main()
