"""Lesson 12: one digest for a BERT on the layouts of lessons 03, 04 and 06, their memory and bytes, what it learns."""

import itertools
import math
import os
import random
import subprocess
import tempfile
import unittest

from program_case import ALL, BUILD, ProgramCase

P = 229766  # parameters of nano


def write_text(path, lines=240, seed=3, encoding="utf-8", end="\n"):
    """Conversations of three lines."""
    draw = random.Random(seed)
    with open(path, "w", encoding=encoding, newline="") as file:
        for _ in range(lines // 3):
            for _ in range(3):
                file.write("".join(draw.choices("abcdefgh", k=draw.randrange(3, 30))) + end)
            file.write(end)


class Bert(ProgramCase):
    program = "lessons/12_bert"

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.data = cls.conversations(folder.name)
        cls.small = [cls.data, "--layers=2", "--steps=3"]

    @staticmethod
    def conversations(folder, **form):
        """The option that names a token file of the conversations."""
        text, data = (os.path.join(folder, name) for name in ("text.txt", "text.h5"))
        write_text(text, **form)
        subprocess.run([os.path.join(BUILD, "data/prepare"), "--tokenizer=byte", text, data], check=True,
                       capture_output=True)
        return f"--data={data}"

    def path(self, name):
        return os.path.join(self.folder, name)


class Exactness(Bert):
    def same_digest(self, fixed, variants):
        expected = self.report(*fixed, "--zero=0", "--arithmetic=exact")["digest"]
        for ranks, *options in variants:
            with self.subTest(ranks=ranks, options=options):
                report = self.report(*fixed, *options, "--arithmetic=exact", ranks=ranks)
                self.assertEqual(report["digest"], expected)

    def test_one_digest_on_every_layout(self):
        variants = [(1, "--zero=3", "--micro-batch=4"), (1, "--zero=1", "--micro-batch=2", "--recompute=block"),
                    (2, "--zero=0", "--micro-batch=2", "--bucket=1B"), (2, "--zero=3", "--unit=branch", "--persist=300"),
                    (2, "--zero=1", "--bucket=1GB"), (4, "--zero=0", "--recompute=block"),
                    (4, "--zero=1", "--micro-batch=1"), (4, "--zero=3", "--micro-batch=2", "--reshard=after-backward"),
                    (4, "--zero=3", "--recompute=block", "--unit=branch", "--prefetch=0"), (8, "--zero=3"),
                    (8, "--zero=0", "--threads=2")]
        if ALL:
            variants = [(ranks, f"--zero={zero}", f"--micro-batch={B}", f"--recompute={recompute}")
                        for ranks, zero, B, recompute in itertools.product((1, 2, 4, 8), (0, 1, 3), (1, 2, 4, 8, 16),
                                                                           ("none", "block")) if ranks * B <= 16]
        self.same_digest([*self.small, "--dropout=0.1", "--clip=0.5"], variants)

    def test_text_of_another_system_has_the_same_pairs(self):
        for form in ({}, {"end": "\r\n"}, {"encoding": "utf-8-sig", "end": " \n"}):
            with self.subTest(**form):
                data = self.conversations(self.folder, **form)
                self.assertIn("to train on in 142 pairs", self.run_program(data, "--steps=1").stdout)

    def test_in_bf16_too(self):
        self.same_digest([*self.small, "--precision=bf16"],
                         [(2, "--zero=3", "--micro-batch=4"), (4, "--zero=1", "--micro-batch=2")])

    def test_frozen_tensors(self):
        self.same_digest([*self.small, "--freeze=bert.encoder.layer.0.*,*word_embeddings*"],
                         [(2, "--zero=3"), (4, "--zero=1")])

    def test_chaos_changes_nothing(self):
        self.same_digest([self.data, "--layers=1", "--steps=2"],
                         [(2 + 2 * (seed % 2), f"--zero={(0, 1, 3)[seed % 3]}", f"--chaos={seed}", "--check-every=1")
                          for seed in range(1, 13 if ALL else 4)])

    def test_the_program_finds_no_deviation_itself(self):
        report = self.report(self.data, "--steps=4", "--layers=1", "--arithmetic=exact", "--compare=3", ranks=2)
        self.assertEqual(report["deviation"], {"steps": 3, "loss": 0, "parameters": 0})


class FastSums(Bert):
    def test_losses_stay_within_their_bound_on_any_number_of_ranks(self):
        single = self.report(self.data, "--steps=10", "--global-batch=12", "--zero=0")["loss"]
        for ranks, zero in [(2, 3), (3, 0), (3, 1), (3, 3), (4, 3)]:
            with self.subTest(ranks=ranks, zero=zero):
                losses = self.report(self.data, "--steps=10", "--global-batch=12", f"--zero={zero}", ranks=ranks)["loss"]
                for a, b in zip(losses, single):
                    self.assertLess(abs(a - b), 1e-6 * b)

    def test_the_program_prints_its_own_deviation(self):
        report = self.report("--steps=10", "--compare=10", ranks=2)
        self.assertTrue(0 < report["deviation"]["loss"] <= 1e-6, report["deviation"])
        self.assertTrue(0 < report["deviation"]["parameters"] <= 1e-5, report["deviation"])


class MemoryAndTraffic(Bert):
    def state_of(self, report):
        return [sum(rank["device"][c]["current"] for c in ("parameters", "gradients", "optimizer"))
                for rank in report["memory_ranks"]]

    def test_model_state_is_the_paper_s(self):
        """16 P, 8 P + 8 P / N and 16 P / N bytes; the padding of two tensors and a few elements a shard come on top."""
        for ranks, zero, state in [(4, 0, 16 * P), (4, 1, 8 * P + 8 * P // 4), (4, 3, 16 * P // 4)]:
            with self.subTest(zero=zero):
                report = self.report(self.data, "--steps=2", f"--zero={zero}", ranks=ranks)
                for held in self.state_of(report):
                    self.assertTrue(state <= held < 1.03 * state, (held, state))

    def test_bytes_of_every_layout_are_those_of_the_formula(self):
        for ranks, options in [(2, ["--zero=0"]), (3, ["--zero=1", "--global-batch=12"]), (4, ["--zero=3"]),
                               (3, ["--zero=3", "--global-batch=12", "--micro-batch=2", "--recompute=block"]),
                               (4, ["--zero=3", "--unit=branch", "--persist=300", "--collectives=tree"])]:
            with self.subTest(ranks=ranks, options=options):
                report = self.report(self.data, "--steps=2", *options, ranks=ranks)
                traffic = report["traffic"]["world"]
                self.assertEqual(traffic["bytes"], traffic["formula"])
                self.assertGreater(traffic["bytes"], 0)
                for name, bytes_ in report["memory"].items():
                    self.assertEqual(bytes_["current"], bytes_["formula"], name)

    def test_a_dry_run_plans_what_a_run_needs(self):
        plan = self.run_program("--dry-run", "--ranks=4", "--micro-batch=1", "--unit=branch").stdout
        total = int(plan.split("  total")[1].split()[0].replace(",", ""))
        options = ["--micro-batch=1", "--unit=branch", "--steps=2", self.data]
        self.assert_refused(*options, f"--memory-limit={total - 1}B", ranks=4, says=["--memory-limit"])
        self.report(*options, f"--memory-limit={total}B", ranks=4)

    def test_virtual_time_counts_the_operations_of_the_formula(self):
        names = {check["name"] for check in self.report(*self.small, "--link=5us,1GB/s", ranks=2)["checks"]}
        self.assertIn("FLOP of a step", names)


class Checkpoints(Bert):
    def test_what_one_layout_writes_any_other_resumes(self):
        fixed = [self.data, "--layers=1", "--arithmetic=exact", "--dropout=0.1"]
        whole = self.report(*fixed, "--steps=4")["digest"]
        layouts = [(1, 0), (2, 3), (4, 1), (2, 0), (4, 3), (1, 1)]
        pairs = itertools.permutations(layouts, 2) if ALL else zip(layouts, [*layouts[1:], layouts[0]])
        for number, ((writers, wrote), (readers, reads)) in enumerate(pairs):
            with self.subTest(writers=writers, wrote=wrote, readers=readers, reads=reads):
                checkpoint = f"--checkpoint={self.path(f'{number}.h5')}"
                self.report(*fixed, "--steps=2", checkpoint, f"--zero={wrote}", ranks=writers)
                report = self.report(*fixed, "--steps=4", checkpoint, "--resume", f"--zero={reads}", ranks=readers)
                self.assertEqual((report["first_step"], report["digest"]), (2, whole))

    def test_a_gpt_2_is_not_a_bert(self):
        gpt2, bert = self.path("gpt2.h5"), self.path("bert.h5")
        one = ["--layers=1", "--steps=1", self.data]
        self.run_program(*one, f"--checkpoint={gpt2}", program="lessons/01_single_device")
        self.report(*one, f"--checkpoint={bert}")
        self.assert_refused(*one, f"--initial={gpt2}", says=["holds a GPT-2, and this lesson trains a BERT"])
        refused = self.run_program(*one, f"--initial={bert}", program="lessons/01_single_device")
        self.assert_is_refusal(refused, ["holds a BERT, and this lesson trains a GPT-2"])
        self.report("--steps=1", self.data, f"--initial={bert}", ranks=2)  # the file gives the sizes


class Learning(Bert):
    def test_a_model_that_was_not_trained_guesses(self):
        tasks = self.report("--steps=1", "--learning-rate=0")["tasks"]
        self.assertAlmostEqual(tasks["next_sentence_loss"], math.log(2), delta=0.05)
        self.assertTrue(0.4 < tasks["next_sentence_accuracy"] < 0.6, tasks)
        self.assertLess(tasks["masked_accuracy"], 0.1)

    def test_both_tasks_are_learned(self):
        """On the embedded dialogues, 400 or 800 steps. A guess has 50 % and ln 2 nats of the pairs, ln 256 of the tokens."""
        steps, share, accuracy = (800, 0.3, 0.5) if ALL else (400, 0.36, 0.4)
        tasks = self.report(f"--steps={steps}", "--learning-rate=2e-3", f"--warmup={steps // 8}")["tasks"]
        self.assertLess(tasks["masked_loss"], share * math.log(256))
        self.assertGreater(tasks["masked_accuracy"], accuracy)
        self.assertLess(tasks["next_sentence_loss"], 0.8 * math.log(2))
        self.assertTrue(0.65 < tasks["next_sentence_accuracy"] < 0.98, tasks)  # nothing is right more often than 96 %


class WrongInput(Bert):
    def test_what_cannot_be_is_refused(self):
        text, data = self.path("one.txt"), self.path("one.h5")
        with open(text, "w", encoding="utf-8") as file:
            file.write("a single line\n\n" * 200)
        subprocess.run([os.path.join(BUILD, "data/prepare"), "--tokenizer=byte", text, data], check=True,
                       capture_output=True)
        self.assert_all_refused([
            (["--zero=2"], ["--zero=2 is not a layout of this lesson", "--zero=3"]),
            (["--mask=causal"], ["--mask=causal", "both sides"]),
            (["--sample=10"], ["--sample=10", "masked tokens"]),
            (["--zero=1", "--prefetch=2"], ["--prefetch", "--zero=1"]),
            (["--zero=0", "--unit=branch"], ["--unit", "--zero=0"]),
            (["--bucket=1MB"], ["--bucket has no effect with --zero=3"]),
            (["--vocabulary=256"], ["--vocabulary=256", "special tokens", "--vocabulary=260"]),
            (["--model=gpt2"], ["--model", "bert-base"]),
            (["--freeze=wte.weight"], ["--freeze=wte.weight", "bert.embeddings.word_embeddings.weight"]),
            ([f"--data={data}"], [data]),
            ([self.data, "--global-batch=1024"], ["1024"]),
            (["--arithmetic=exact", "--global-batch=12"], ["power of two"]),
        ], ranks=2)


if __name__ == "__main__":
    unittest.main()
