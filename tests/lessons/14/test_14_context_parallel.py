"""Lesson 14: the bits of lesson 01 however a sequence is divided, bytes and memory equal to their formulas, equal work in
zig-zag order, sequences that one device cannot hold, checkpoints of other lessons, and what is refused.

With RANKWISE_ALL every combination is tried; else a set that covers them.
"""

import itertools
import re
import unittest

import zero_case
from zero_case import ALL, L01, L03

PROGRAM = "lessons/14_context_parallel"
C, L, T, H, V = 64, 4, 64, 4, 256  # of nano
ZIGZAG, CONTIGUOUS = "--order=zigzag", "--order=contiguous"
RING, EXCHANGE = "--attention=ring", "--attention=all-to-all"


class Context:
    program = PROGRAM


def layouts():
    """Ranks, how many of them divide a sequence, order and attention."""
    every = [(ranks, cp, order, attention) for ranks, cp, order, attention in
             itertools.product((1, 2, 4, 8), (1, 2, 4, 8), (ZIGZAG, CONTIGUOUS), (RING, EXCHANGE))
             if cp <= ranks and (attention == RING or cp <= H)]
    some = [(1, 1, ZIGZAG, RING), (2, 2, ZIGZAG, RING), (4, 4, ZIGZAG, RING), (8, 8, ZIGZAG, RING), (8, 8, CONTIGUOUS, RING),
            (4, 2, CONTIGUOUS, RING), (2, 2, ZIGZAG, EXCHANGE), (4, 4, CONTIGUOUS, EXCHANGE), (4, 2, ZIGZAG, EXCHANGE)]
    return every if ALL else some


class Exactness(Context, zero_case.Lesson):
    def test_every_division_of_a_sequence_gives_the_bits_of_lesson_01(self):
        fixed = [*self.small, "--arithmetic=exact", "--dropout=0.1", "--clip=0.5"]
        self.same_as(L01, fixed, [(ranks, f"--cp={cp}", *how) for ranks, cp, *how in layouts()])

    def test_with_other_masks_types_and_recomputation(self):
        for options in (["--mask=prefix:20"], ["--mask=full"], ["--precision=bf16"]):
            fixed = [self.data, "--layers=2", "--steps=2", "--arithmetic=exact", *options]
            self.same_as(L01, fixed, [(4, ZIGZAG), (2, EXCHANGE), (2, CONTIGUOUS, "--recompute=block"),
                                      (4, "--cp=2", EXCHANGE, "--recompute=block")])

    def test_chaos_and_the_algorithm_change_nothing(self):
        fixed = [self.data, "--layers=2", "--steps=2", "--arithmetic=exact"]
        self.same_as(L01, fixed, [(4, "--chaos=1", "--check-messages"), (4, EXCHANGE, "--chaos=2", "--check-messages"),
                                  (4, "--cp=2", "--collectives=shared")])


class FastSums(Context, zero_case.Lesson):
    def test_the_program_finds_its_deviation_small(self):
        for ranks, *options in [(1,), (2, "--micro-batch=4"), (3, "--sequence=48"), (4, "--cp=2", CONTIGUOUS),
                                (2, EXCHANGE), (4, EXCHANGE, "--dropout=0.1"), (4, "--dropout=0.1", "--recompute=block")]:
            with self.subTest(ranks=ranks, options=options):
                report = self.report(*self.small, "--compare=3", *options, ranks=ranks)  # a failed check is a failure
                self.assertLess(report["deviation"]["parameters"], 1e-6)


class Bytes(Context, zero_case.Lesson):
    def test_memory_traffic_and_arithmetic_are_those_of_the_formulas(self):
        for ranks, *options in [(1,), (2, "--micro-batch=2"), (3, "--sequence=48"), (4, "--cp=2", EXCHANGE),
                                (4, "--arithmetic=exact"), (4, CONTIGUOUS, "--arithmetic=exact"),
                                (2, "--arithmetic=exact", "--precision=bf16"), (2, "--precision=bf16", "--recompute=block"),
                                (4, EXCHANGE, "--arithmetic=exact", "--recompute=block")]:
            with self.subTest(ranks=ranks, options=options):
                report = self.report(self.data, "--steps=2", "--layers=2", "--link=5us,10GB/s", *options, ranks=ranks)
                for name, bytes_ in report["memory"].items():
                    self.assertEqual(bytes_["current"], bytes_["formula"], name)
                for axis, sent in report["traffic"].items():
                    self.assertEqual(sent["bytes"], sent["formula"], axis)

    def test_bytes_along_a_sequence(self):
        """By hand: blocks of keys and values, twice, and the f32 gradients of each; or four exchanges of eight rows."""
        for c in (2, 4):
            block = 4 * 2 * 16 * T * C // c  # bytes of keys and values of a rank's tokens of 16 sequences
            ring = self.report(self.data, "--steps=1", ranks=c)["traffic"]["cp"]["bytes"]
            self.assertEqual(ring, L * (2 * (c - 1) * block + c * block))
            exchanged = self.report(self.data, "--steps=1", EXCHANGE, ranks=c)["traffic"]["cp"]["bytes"]
            self.assertEqual(exchanged, L * 4 * block * (c - 1) // c)

    def test_activations_are_those_of_a_share_of_the_tokens(self):
        whole = self.report(self.data, "--steps=1", ranks=1)["memory"]["activations"]["current"]
        for c in (2, 4):
            own = self.report(self.data, "--steps=1", ranks=c)["memory"]["activations"]["current"]
            self.assertEqual(own, whole // c)
            heads = self.report(self.data, "--steps=1", EXCHANGE, ranks=c)["memory"]["activations"]["current"]
            self.assertEqual(heads - own, L * 16 * T * (4 * 4 * C + 4 * H) // c)

    def test_a_dry_run_plans_what_a_run_takes(self):
        for options in (["--cp=2"], ["--arithmetic=exact"], [EXCHANGE]):
            report = self.report(self.data, "--steps=1", *options, ranks=4)
            done = self.run_program("--dry-run", self.data, *options, "--ranks=4")
            total = int(re.search(r"^  total +([\d,]+)", done.stdout, re.MULTILINE)[1].replace(",", ""))
            self.assertEqual(total, sum(bytes_["peak"] for bytes_ in report["memory_ranks"][0]["device"].values()))


class Work(Context, zero_case.Lesson):
    def step(self, *options):
        report = self.report(self.data, "--steps=1", "--layers=2", "--flops=100GFLOP/s", "--global-batch=1", *options, ranks=4)
        return report["virtual"][-1] | {"pairs": report["pairs"]}

    def test_zigzag_divides_causal_work_equally(self):
        zigzag, contiguous = (self.step("--link=1us,100GB/s", order) for order in (ZIGZAG, CONTIGUOUS))
        self.assertEqual(zigzag["pairs"], [T * (T + 1) / 2 / 4] * 4)
        length = T // 4
        self.assertEqual(contiguous["pairs"], [length * length * r + length * (length + 1) / 2 for r in range(4)])
        # Rank 0 waits for the last one, which has 7 times its pairs, at every layer.
        self.assertGreater(contiguous["step_ps"], zigzag["step_ps"])

    def test_the_ring_hides_more_of_its_messages_the_longer_the_sequence_is(self):
        def hidden(tokens):
            step = self.step(f"--sequence={tokens}", f"--context={tokens}", "--link=1us,10GB/s")
            return 1 - step["exposed_ps"] / step["communication_ps"]
        self.assertLess(hidden(64), hidden(256))


class LongSequences(Context, zero_case.Lesson):
    def test_a_sequence_trains_that_lesson_01_cannot_hold(self):
        long = 32768 if ALL else 2048
        limit = "--memory-limit=200MB" if ALL else "--memory-limit=20MB"
        data = self.prepared(self.folder, 20 * long)  # 90 % of it to train on
        options = [data, "--steps=1", f"--context={long}", "--global-batch=1", limit]
        self.program = L01
        self.assert_refused(*options, says=["--memory-limit"])
        self.program = PROGRAM
        report = self.report(*options, ranks=8)
        self.assertLess(report["loss"][0], 6)


class Checkpoints(Context, zero_case.Lesson):
    def test_the_model_is_that_of_lessons_01_and_03(self):
        fixed = [self.data, "--layers=2", "--arithmetic=exact", "--dropout=0.1"]
        whole = self.report_of(L01, *fixed, "--steps=4")["digest"]
        for number, (writer, write, readers, *so) in enumerate([(L03, 2, 4, "--cp=4"), (PROGRAM, 4, 2, EXCHANGE)]):
            file = f"--checkpoint={self.path(f'{number}.h5')}"
            self.report_of(writer, *fixed, "--steps=2", file, ranks=write)
            report = self.report(*fixed, "--steps=4", file, "--resume", *so, ranks=readers)
            self.assertEqual((report["first_step"], report["digest"]), (2, whole))
        file = f"--checkpoint={self.path('back.h5')}"
        self.report(*fixed, "--steps=2", file, ranks=2)
        self.assertEqual(self.report_of(L01, *fixed, "--steps=4", file, "--resume")["digest"], whole)


class Output(Context, zero_case.Lesson):
    def test_sample_is_that_of_lesson_01(self):
        options = [self.data, "--layers=2", "--steps=1", "--arithmetic=exact", "--sample=10"]
        texts = set()
        for program, *more in [(L01,), (PROGRAM,), (PROGRAM, EXCHANGE)]:
            self.program = program
            done = self.run_program(*options, *more, ranks=None if program == L01 else 2)
            texts.add(re.search(r"# sample:\n(# .*\n)+", done.stdout).group())
        self.assertEqual(len(texts), 1)

    def test_a_dry_run_shows_who_has_which_tokens(self):
        shown = self.run_program("--dry-run", "--ranks=2", CONTIGUOUS).stdout
        self.assertIn("tokens 0-15 and 16-31", shown)
        self.assertIn("largest / mean  1.492", shown)


class WrongInput(Context, zero_case.Lesson):
    def test_what_cannot_be_is_refused_before_anything_is_sent(self):
        self.assert_all_refused([
            (["--cp=3"], ["--cp=3 does not divide 4 ranks", "--cp=1, 2, 4"]),
            (["--cp=-1"], ["--cp=-1"]),
            (["--sequence=20"], ["--sequence=20 cannot be divided among 4 ranks", "multiple of 8"]),
            (["--sequence=4"], ["--sequence=4 cannot be divided"]),
            (["--sequence=0", "--context=4"], ["--sequence=4 cannot be divided"]),
            (["--sequence=-8"], ["--sequence=-8"]),
            ([EXCHANGE, "--heads=2"], ["--attention=all-to-all cannot divide 2 heads among 4 ranks", "--attention=ring"]),
            (["--arithmetic=exact", "--micro-batch=2"], ["--micro-batch=2 is more than one sequence", "--micro-batch=1"]),
            (["--arithmetic=exact", "--collectives=ring"], ["--collectives=ring", "halving"]),
            (["--global-batch=15", "--cp=2"], ["--global-batch=15 cannot be shared out among"]),
            (["--micro-batch=3"], ["--micro-batch=3"]),
            (["--order=sideways"], ["--order"]),
            (["--memory-limit=1MB"], ["Divide sequences among more ranks"]),
        ], ranks=4)
        self.assert_refused("--arithmetic=exact", "--sequence=48", ranks=3, says=["--cp=3 does not divide the 16 leaves"])
        self.assert_refused("--arithmetic=exact", "--cp=16", "--dry-run", "--ranks=16", "--sequence=64",
                            says=["--cp=16 does not divide the 16 leaves", "1, 2, 4 or 8"])


if __name__ == "__main__":
    unittest.main()
