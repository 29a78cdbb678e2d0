"""Base of the tests of the lessons on ZeRO: runs of them beside lessons 01 and 03, on a short text.

A lesson's test derives its cases from these and says which `program` it tests, and how it is cut() and watched. With
RANKWISE_ALL every combination is tried; else a set that covers them.
"""

import itertools
import json
import os
import re
import shutil

from program_case import ALL, ShortTextCase

LADDER = ["lessons/01_single_device", "lessons/03_ddp", "lessons/04_zero1", "lessons/05_zero2", "lessons/06_zero3",
          "lessons/07_offload", "lessons/08_tensor_parallel", "lessons/09_pipeline_parallel", "lessons/11_zero_bubble",
          "lessons/10_3d_parallel", "lessons/13_mesh_zero3"]
L01, L03 = LADDER[:2]
P = 220544  # parameters of nano
P_OF_A_LAYER = 256 * 64 + 64 * 64 + 49984 + 128  # those of nano with --layers=1


class Lesson(ShortTextCase):
    watched = ["--check-every=1"]  # replicas are compared after each step

    def cut(self, size):
        """The option that cuts a model into pieces of at least this size: 1B for a unit each, 1GB for all in one."""
        return f"--bucket={size}"

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.small = [cls.data, "--layers=2", "--steps=3"]

    def report_of(self, program, *options, ranks=None):
        """The report of another lesson with the same options."""
        self.program, own = program, self.program
        try:
            return self.report(*options, ranks=None if program == L01 else ranks)
        finally:
            self.program = own

    def same_as(self, program, fixed, variants, *own):
        """Every variant has the numbers of another lesson on one rank; `own` are options of that lesson alone."""
        expected = self.report_of(program, *fixed, *own, ranks=1)
        for ranks, *options in variants:
            report = self.report(*fixed, *options, ranks=ranks)
            with self.subTest(ranks=ranks, options=options):
                for what in ("digest", "loss", "grad_norm", "validation"):
                    self.assertEqual(report[what], expected[what], what)

    def keeps_to_the_formula(self, ranks, *options):
        """A step, and a sample where the tokenizer has text for all tokens, 256, need the bytes that were planned."""
        with self.subTest(ranks=ranks, options=options):
            sample = [] if "--vocabulary=257" in options else ["--sample=2"]
            report = self.report(*self.options("--steps=1", *sample, *options), ranks=ranks)
            for name, bytes_ in report["memory"].items():
                self.assertEqual((bytes_["current"], bytes_["peak"]), (bytes_["formula"], bytes_["formula"]), name)

    def path(self, name):
        return os.path.join(self.folder, name)


class Staged:
    """Beside a case: ranks have stages of a model with blocks enough for four ranks."""

    def model(self, *more):
        """Options of a small model, unless the given options replace them, and the given options."""
        said = {option.split("=")[0] for option in more}
        return [o for o in (self.data, "--layers=4", "--channels=32", "--sequence=16") if o.split("=")[0] not in said] + list(more)

    def options(self, *more):
        """Options of the model, with three steps unless they give another number."""
        return self.model(*more, *([] if any(o.startswith("--steps=") for o in more) else ["--steps=3"]))


class Exactness(Lesson):
    def same_digest(self, fixed, variants):
        expected = self.report_of(L01, *fixed)["digest"]
        for ranks, *options in variants:
            with self.subTest(ranks=ranks, options=options):
                self.assertEqual(self.report(*fixed, *options, ranks=ranks)["digest"], expected)

    def test_every_number_of_ranks_gives_the_bits_of_lesson_01(self):
        self.same_digest([*self.small, "--arithmetic=exact", "--dropout=0.1", "--clip=0.5"], self.variants())

    def variants(self):
        """Ranks and options that change no bit."""
        if ALL:
            return [(ranks, f"--micro-batch={B}", f"--bucket={bucket}", f"--recompute={recompute}")
                    for ranks, B, bucket, recompute in itertools.product(
                        (1, 2, 4, 8), (1, 2, 4, 8, 16), ("1B", "100kB", "1GB"), ("none", "block"))
                    if B * ranks <= 16]
        return [
            (1, "--micro-batch=4"),
            (2, "--micro-batch=2", "--bucket=1B"),
            (4, "--bucket=100kB", "--micro-batch=1", "--recompute=block", "--threads=2"),
            (4, "--bucket=1GB", "--micro-batch=2", "--collectives=shared"),
        ]

    def test_in_bf16_too(self):
        fixed = [*self.small, "--arithmetic=exact", "--dropout=0.1", "--precision=bf16"]
        self.same_digest(fixed, [(2, "--micro-batch=4"), (4, "--micro-batch=2", self.cut("1B"))])

    def test_chaos_changes_nothing(self):
        fixed = [self.data, "--layers=1", "--steps=2", "--arithmetic=exact", "--micro-batch=2"]
        self.same_digest(fixed, [(2 + 2 * (seed % 2), f"--chaos={seed}", self.cut("50kB"), *self.watched)
                                 for seed in range(1, 21 if ALL else 3)])

    def test_watching_and_comparing_messages_change_nothing(self):
        fixed = [self.data, "--layers=1", "--steps=2", "--arithmetic=exact"]
        self.same_digest(fixed, [(2, "--check-messages", "--timeout=60", *self.watched),
                                 (2, "--timeout=0", "--link=5us,1GB/s")])

    def test_the_program_finds_no_deviation_itself(self):
        report = self.report(self.data, "--steps=4", "--layers=1", "--arithmetic=exact", "--compare=3", ranks=2)
        self.assertEqual(report["deviation"], {"steps": 3, "loss": 0, "parameters": 0})


class AnyNumber(Lesson):
    """In exact arithmetic ranks and sequences need not be powers of two, nor one divide the other."""

    def test_any_number_of_ranks_and_of_sequences_gives_the_bits_of_lesson_01(self):
        for G, variants in [
            (16, [(3, "--micro-batch=2"), (5, self.cut("1B")), (6,), (7, self.cut("1GB"))]),
            (12, [(1, "--micro-batch=8"), (2,), (3, "--micro-batch=2"), (5, "--recompute=block"), (8,)]),
            (7, [(2,), (3, "--check-messages"), (4, self.cut("50kB")), (5, "--chaos=1"), (7,)]),
        ]:
            if not ALL:
                variants = variants[-1:] if G > 7 else variants[1::2]
            fixed = [*self.small, "--sequence=32", "--arithmetic=exact", "--dropout=0.1", f"--global-batch={G}"]
            expected = self.report_of(L01, *fixed)["digest"]
            for ranks, *options in variants:
                with self.subTest(G=G, ranks=ranks, options=options):
                    self.assertEqual(self.report(*fixed, *options, ranks=ranks)["digest"], expected)


class FastSums(Lesson):
    same_as_lesson_03 = [(1, "200kB"), (2, "200kB"), (3, "200kB", "--global-batch=12"), (4, "100kB"),
                         (4, "200kB", "--precision=bf16", "--gradients=bf16"), (5, "1B", "--global-batch=10")]

    def test_one_pass_and_no_clipping_give_the_bits_of_lesson_03(self):
        for ranks, bucket, *options in self.same_as_lesson_03 if ALL else self.same_as_lesson_03[2:5:2]:
            with self.subTest(ranks=ranks, bucket=bucket, options=options):
                fixed = [*self.small, "--clip=0", *options]
                self.assertEqual(self.report(*fixed, self.cut(bucket), ranks=ranks)["digest"],
                                 self.report_of(L03, *fixed, f"--bucket={bucket}", ranks=ranks)["digest"])

    def test_losses_stay_within_their_bound_on_any_number_of_ranks(self):
        more = [(2, "--micro-batch=2"), (5, "--global-batch=40"), (4, "--collectives=tree"), (4, "--collectives=library")]
        for ranks, *options in [(3, "--global-batch=24"), (4, "--collectives=hierarchical", "--ranks-per-node=2"),
                                *(more if ALL else [])]:
            with self.subTest(ranks=ranks, options=options):
                fixed = [self.data, "--steps=10" if ALL else "--steps=5"]
                batch = [o for o in options if o.startswith("--global-batch")]
                report, single = self.report(*fixed, *options, ranks=ranks), self.report_of(L01, *fixed, *batch)
                for a, b in zip(report["loss"], single["loss"]):
                    self.assertLess(abs(a - b), 1e-6 * b)

    def test_the_program_prints_its_own_deviation(self):
        fixed = ["--steps=10", "--compare=10"] if ALL else [*self.small, "--compare=3"]
        report = self.report(*fixed, "--micro-batch=4", ranks=4)
        self.assertTrue(0 < report["deviation"]["loss"] <= 1e-6, report["deviation"])
        self.assertTrue(0 < report["deviation"]["parameters"] <= 1e-5, report["deviation"])


class Memory(Lesson):
    """A lesson's `state_of(N)` is the paper's model state in bytes, where N divides every bucket."""

    def test_model_state_is_the_paper_s_on_every_rank(self):
        for ranks in (1, 2, 4):
            report = self.report(self.data, "--steps=2", ranks=ranks)
            for rank in report["memory_ranks"]:
                state = sum(rank["device"][c]["current"] for c in ("parameters", "gradients", "optimizer"))
                self.assertEqual(state, self.state_of(ranks), ranks)

    def test_a_trace_shows_it_over_time_on_every_rank(self):
        trace = self.path("run.trace.json")
        report = self.report(self.data, "--layers=1", "--steps=2", "--global-batch=12", f"--trace={trace}", ranks=3)
        with open(trace, encoding="utf-8") as file:
            events = [event for event in json.load(file)["traceEvents"] if event["ph"] == "C"]
        for rank, tiers in enumerate(report["memory_ranks"]):
            held = [event["args"] for event in events if event["pid"] == rank]
            measured = {category: of["current"] for category, of in tiers["device"].items()}
            self.assertEqual(held[-1], {category: measured[category] for category in held[-1]})
            self.assertEqual(sum(held[-1].values()), sum(measured.values()))
            self.assertEqual(max(h["gradients"] for h in held), tiers["device"]["gradients"]["peak"])

    def test_each_rank_keeps_the_states_of_its_own_elements(self):
        for ranks, options, bytes_an_element in [(3, [], 8), (5, [self.cut("1B")], 8), (3, ["--precision=bf16"], 12)]:
            with self.subTest(ranks=ranks, options=options):
                report = self.report(self.data, "--steps=2", "--global-batch=15", *options, ranks=ranks)
                own = [rank["device"]["optimizer"]["current"] for rank in report["memory_ranks"]]
                self.assertEqual(sum(own), bytes_an_element * P)
                self.assertLessEqual(max(own) - min(own), bytes_an_element * 10)  # an element a bucket at most
                for name, bytes_ in report["memory"].items():
                    self.assertEqual(bytes_["current"], bytes_["formula"], name)


class Traffic(Lesson):
    def sent(self, *options, ranks=2):
        """Bytes that rank 0 sends in a step, which are those of the formula."""
        traffic = self.report(self.data, "--steps=2", *options, ranks=ranks)["traffic"]["world"]
        self.assertEqual(traffic["bytes"], traffic["formula"], options)
        return traffic["bytes"]

    def test_where_segments_differ_by_an_element_the_formula_knows(self):
        for collectives in ("ring", "halving", "tree", "shared"):
            self.sent("--layers=2", "--global-batch=12", "--micro-batch=2", f"--collectives={collectives}", ranks=3)

    def test_each_half_has_its_own_type(self):
        sent = {(p, g): self.sent("--layers=1", f"--precision={p}", f"--gradients={g}")
                for p, g in [("f32", "f32"), ("bf16", "f32"), ("bf16", "bf16")]}
        half = P_OF_A_LAYER // 2
        self.assertEqual(sent, {("f32", "f32"): 8 * half, ("bf16", "f32"): 6 * half, ("bf16", "bf16"): 4 * half})


class Checkpoints(Lesson):
    def partners(self):
        """The lessons whose checkpoints are read and that read checkpoints, lesson 01 first: all below, or the first and last."""
        below = LADDER[:LADDER.index(self.program)]
        return below if ALL else [L01, below[-1]]

    def setUp(self):
        super().setUp()
        self.fixed = [self.data, "--layers=1", "--arithmetic=exact", "--global-batch=16", "--dropout=0.1"]
        self.file = self.path("run.h5")
        self.checkpoint = f"--checkpoint={self.file}"

    def layouts(self):
        """Layouts on which this lesson writes and reads checkpoints: ranks and options."""
        return [(1,), (2,), (4,)]

    def test_what_one_lesson_writes_any_other_goes_on_from(self):
        """Pairs of this lesson and those below it on the ladder: a later one's test has the pairs with that."""
        below = self.partners()
        others, own = [(L01, 1), *((lesson, 4) for lesson in below[1:])], [(self.program, *layout) for layout in self.layouts()]
        met = zip(own, itertools.cycle(others))  # each layout writes for another lesson or reads what that one wrote
        pairs = [*((mine, other) if i % 2 else (other, mine) for i, (mine, other) in enumerate(met)), (own[2], own[1])]
        if ALL:
            everyone = [(L01, 1), *itertools.product(below[1:], (1, 2, 4)), *own]
            pairs = itertools.product(everyone, repeat=2)
        whole = self.report_of(L01, *self.fixed, "--steps=4")["digest"]
        for (writer, writers, *how), (reader, readers, *so) in pairs:
            with self.subTest(writer=writer, writers=writers, how=how, reader=reader, readers=readers, so=so):
                file = self.path("".join([os.path.basename(writer), f"-{writers}", *how, ".h5"]))
                if not os.path.exists(file):
                    self.report_of(writer, *self.fixed, "--steps=2", f"--checkpoint={file}", *how, ranks=writers)
                shutil.copy(file, self.file)
                report = self.report_of(reader, *self.fixed, "--steps=4", self.checkpoint, "--resume", *so, ranks=readers)
                self.assertEqual((report["first_step"], report["digest"]), (2, whole))

    def test_three_ranks_of_any_lesson_go_on_from_three_of_any_other(self):
        """In fast arithmetic, where sums are the same: one pass, no clipping, a unit at a time."""
        fixed = [self.data, "--layers=1", "--global-batch=12", "--clip=0"]
        below = LADDER[1:LADDER.index(self.program)]
        pieces = {lesson: "--unit=branch" if lesson >= "lessons/06" else "--bucket=1B" for lesson in [*below, self.program]}
        whole = self.report_of(L03, *fixed, "--bucket=1B", "--steps=3", ranks=3)["digest"]
        pairs = itertools.permutations(pieces, 2) if ALL else [(below[-1], self.program), (self.program, below[0])]
        for writer, reader in pairs:
            with self.subTest(writer=writer, reader=reader):
                self.report_of(writer, *fixed, pieces[writer], "--steps=2", self.checkpoint, ranks=3)
                report = self.report_of(reader, *fixed, pieces[reader], "--steps=3", self.checkpoint, "--resume", ranks=3)
                self.assertEqual((report["first_step"], report["digest"]), (2, whole))
                os.remove(self.file)

    def three_ranks_go_on_near_the_run_that_never_stopped(self, *fixed):
        """Resumes a lesson that sums in another order than lesson 03: losses are near those of lesson 01."""
        fixed = [self.data, *fixed, "--global-batch=12"]
        whole = self.report_of(L01, *fixed, "--steps=3")["loss"]
        below = LADDER[1:LADDER.index(self.program)]
        for writer, reader in [(below[-1], self.program), (self.program, below[0])]:
            with self.subTest(writer=writer, reader=reader):
                self.report_of(writer, *fixed, "--steps=2", self.checkpoint, ranks=3)
                report = self.report_of(reader, *fixed, "--steps=3", self.checkpoint, "--resume", ranks=3)
                self.assertEqual(report["first_step"], 2)
                self.assertLess(abs(report["loss"][0] - whole[2]), 1e-6 * whole[2])
                os.remove(self.file)

    def test_three_ranks_write_what_three_and_one_go_on_from(self):
        fixed = [self.data, "--layers=1", "--global-batch=12"]
        whole = self.report(*fixed, "--steps=3", ranks=3)["digest"]
        self.report(*fixed, "--steps=2", self.checkpoint, ranks=3)
        three = self.report(*fixed, "--steps=3", self.checkpoint, "--resume", ranks=3)
        one = self.report_of(L01, *fixed, "--steps=4", self.checkpoint, "--resume")
        self.assertEqual((three["first_step"], one["first_step"]), (2, 3))
        self.assertEqual(three["digest"], whole)

    def test_master_weights_in_bf16(self):
        fixed = [*self.fixed, "--precision=bf16"]
        whole = self.report_of(L01, *fixed, "--steps=4")["digest"]
        self.report(*fixed, "--steps=2", self.checkpoint, ranks=4)
        self.assertEqual(self.report(*fixed, "--steps=4", self.checkpoint, "--resume", ranks=2)["digest"], whole)

    def test_parameters_to_start_from(self):
        self.report(*self.fixed, "--steps=2", self.checkpoint, ranks=4)
        options = [*self.fixed, "--steps=2", "--seed=2", f"--initial={self.file}"]
        self.assertEqual(self.report(*options, ranks=2)["digest"], self.report_of(L01, *options)["digest"])


class Output(Lesson):
    replicas = "replicated parameters"

    def test_validation_and_sample_are_those_of_lesson_01(self):
        options = [*self.small, "--arithmetic=exact", "--evaluate-every=2"]
        expected = self.report_of(L01, *options)["validation"]
        for ranks, B in [(4, 4), (4, 2), (2, 1)]:  # of the four windows one rank has all, two have two, two take turns
            self.assertEqual(self.report(*options, f"--micro-batch={B}", ranks=ranks)["validation"], expected, (ranks, B))
        options = [*self.small[:2], "--steps=1", "--arithmetic=exact", "--sample=20"]
        texts = []
        for ranks, program in [(2, None), (None, L01)]:
            done = self.run_program(*options, ranks=ranks, program=program)
            found = re.search(r"# sample:\n(# .*\n)+", done.stdout)
            self.assertIsNotNone(found, done)
            texts.append(found.group())
        self.assertEqual(*texts)

    def test_what_is_checked(self):
        report = self.report(*self.small, *self.watched, "--global-batch=12", ranks=3)
        names = {check["name"] for check in report["checks"]}
        self.assertTrue({self.replicas, "traffic of a step", "bytes of optimizer"} <= names, names)

    def test_a_gradient_that_is_not_finite_is_named_whoever_owns_it(self):
        done = self.run_program(self.data, "--steps=5", "--layers=1", "--learning-rate=1e38", "--warmup=0", "--clip=0",
                                ranks=4)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertRegex(done.stderr, r"step [1-4]: .*wte\.weight is not finite")


class WrongInput(Lesson):
    refused = [(["--bucket=0"], ["--bucket=0"]), (["--check-every=-1"], ["--check-every=-1"])]

    def test_what_cannot_be_is_refused_before_anything_is_sent(self):
        self.assert_all_refused([
            (["--global-batch=15"], ["--global-batch=15 cannot be shared out among 2 ranks"]),
            (["--arithmetic=exact", "--collectives=ring"], ["--collectives=ring", "halving"]),
            (["--arithmetic=exact", "--global-batch=1"], ["--global-batch=1", "ranks, 2", "--global-batch=2 or more"]),
            (["--gradients=bf16"], ["--precision=bf16"]),
            (["--strategy=flat"], ["--strategy"]),
            *self.refused,
        ], ranks=2)

    def assert_fits_to_the_byte(self, before):
        """With what a dry run plans for one sequence a pass and a unit at a time this lesson runs, with a byte less not;
        the one before it is refused."""
        small = ["--micro-batch=1", self.cut("1B")]
        plan = self.run_program("--dry-run", *small, ranks=4).stdout
        total = int(plan.split("  total")[1].split()[0].replace(",", ""))
        options = [f"--memory-limit={total}B", "--steps=2", self.data]
        self.assert_refused(f"--memory-limit={total - 1}B", *small, ranks=4, says=["--memory-limit"])
        own = self.program
        self.program = before
        self.assert_refused(*options, "--micro-batch=1", "--bucket=1B", ranks=4, says=["--memory-limit", "optimizer"])
        self.program = own
        self.assert_refused(*options, small[1], ranks=4, says=["optimizer", "would fit"])
        self.report(*options, *small, ranks=4)
