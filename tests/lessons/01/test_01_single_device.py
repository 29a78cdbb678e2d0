"""Lesson 01: the same bits whatever the passes and threads, the report, and what is refused."""

import itertools
import json
import math
import os
import pathlib
import unittest

from program_case import ALL, ProgramCase, ShortTextCase

ROOT = pathlib.Path(__file__).resolve().parents[3]
DATA = os.environ.get("RANKWISE_DATA", os.path.join(ROOT, "..", "shared", "data"))
SMALL = "--layers=1"  # where the size of the model does not matter
PROGRAM = "lessons/01_single_device"


class Lesson(ShortTextCase):
    program = PROGRAM

    def report(self, *options, ranks=None):
        return super().report(self.data, *options, ranks=ranks)


class Exactness(Lesson):
    def digests(self, fixed, variants):
        return {v: self.report("--steps=3", *fixed, *v)["digest"] for v in variants}

    def test_threads_passes_and_recomputation_do_not_change_a_bit(self):
        variants = [
            (f"--threads={threads}", f"--micro-batch={B}", f"--recompute={recompute}")
            for threads, B, recompute in [(1, 16, "none"), (2, 16, "none"), (1, 8, "block"), (2, 4, "none"),
                                          (1, 2, "none"), (2, 2, "block"), (1, 1, "block")]
        ]
        found = self.digests(["--arithmetic=exact", "--dropout=0.1", "--layers=2"], variants)
        self.assertEqual(len(set(found.values())), 1, found)

    def test_fast_sums_in_another_order(self):
        exact, fast = (self.report(SMALL, "--steps=10", "--micro-batch=2", f"--arithmetic={a}") for a in ("exact", "fast"))
        self.assertNotEqual(exact["digest"], fast["digest"])
        for a, b in zip(exact["loss"], fast["loss"]):
            self.assertLess(abs(a - b), 1e-6 * a)

    def test_seed_dropout_and_data_change_the_digest(self):
        variants = [(), ("--seed=2",), ("--dropout=0.1",), ("--weight-decay=0",), ("--clip=0.5",), ("--mask=prefix:9",)]
        found = self.digests([SMALL], variants)
        self.assertEqual(len(set(found.values())), len(variants), found)


class Oracle(ProgramCase):
    program = PROGRAM

    def test_the_loop_does_what_a_plain_loop_does(self):
        plain = json.loads(self.run_program("4", program="tests/training_loop").stdout)
        lesson = self.report("--steps=4", "--arithmetic=exact", "--seed=5", "--mask=prefix:9", "--dropout=0.1",
                             "--learning-rate=2e-3", "--warmup=2", "--clip=0.5", "--weight-decay=0.2",
                             "--micro-batch=4", "--recompute=block", "--threads=2")
        self.assertEqual({name: lesson[name] for name in plain}, plain)


class Deviation(Lesson):
    def test_fast_arithmetic_stays_within_its_bounds(self):
        for options in (["--micro-batch=4"], ["--threads=2", "--seed=2", "--dropout=0.1", "--micro-batch=8"]):
            deviation = self.report("--steps=10", "--compare=10", *options)["deviation"]
            self.assertEqual(deviation["steps"], 10)
            self.assertTrue(0 < deviation["loss"] <= 1e-6, deviation)
            self.assertTrue(0 < deviation["parameters"] <= 1e-5, deviation)

    def test_exact_arithmetic_is_the_reference_run(self):
        for options in [
            ["--steps=6"],
            ["--steps=9", "--learning-rate-schedule=cosine", "--warmup=2", "--clip=0.5", "--weight-decay=0.2"],
            ["--steps=6", "--dropout=0.1", "--mask=prefix:9", "--seed=3", "--sequence=32", "--global-batch=8"],
            ["--steps=6", "--micro-batch=2", "--recompute=block", "--threads=2", "--evaluate-every=3"],
        ]:
            with self.subTest(options=options):
                report = self.report(SMALL, "--arithmetic=exact", "--compare=6", *options)
                self.assertEqual(report["deviation"], {"steps": 6, "loss": 0, "parameters": 0})

    def test_what_has_drifted_away_fails(self):
        drifting = ["--layers=1", "--micro-batch=1", "--learning-rate=0.1", "--warmup=0", "--clip=0"]
        done = self.run_program(*drifting, "--steps=20", "--compare=20")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertRegex(done.stdout, "FAIL  deviation of parameters")

    def test_the_run_itself_does_not_notice(self):
        alone, compared = (self.report(SMALL, "--steps=2", "--memory-limit=16MB", "--recompute=block", f"--compare={n}")
                           for n in (0, 2))
        for name in ("digest", "loss", "memory"):
            self.assertEqual(alone[name], compared[name])
        self.assertNotIn("deviation", alone)


class Precision(Lesson):
    BF16 = "--precision=bf16"
    P = 220544

    def test_exact_sums_of_bf16_have_one_digest_too(self):
        variants = [("--micro-batch=16", "--threads=2"), ("--micro-batch=4", "--recompute=block"), ("--micro-batch=1",)]
        found = {v: self.report(self.BF16, "--arithmetic=exact", "--layers=2", "--steps=3", "--dropout=0.1", *v)["digest"]
                 for v in variants}
        self.assertEqual(len(set(found.values())), 1, found)

    def test_ten_steps_stay_near_the_reference_run(self):
        for options in ([], ["--gradients=bf16", "--threads=2"], ["--micro-batch=4", "--dropout=0.1"],
                        ["--arithmetic=exact"]):
            with self.subTest(options=options):
                deviation = self.report(self.BF16, "--steps=10", "--compare=10", *options)["deviation"]
                self.assertTrue(1e-6 < deviation["loss"] <= 1e-2, deviation)
                self.assertTrue(1e-6 < deviation["parameters"] <= 1e-2, deviation)

    def test_steps_of_mini_have_the_losses_of_f32(self):
        data = self.prepared(self.folder, 20000)
        options = [data, "--model=mini", "--global-batch=4", f"--steps={50 if ALL else 8}", "--threads=2"]
        wide, narrow = (ProgramCase.report(self, *options, f"--precision={p}")["loss"] for p in ("f32", "bf16"))
        self.assertNotEqual(wide, narrow)
        for step, (a, b) in enumerate(zip(wide, narrow)):
            self.assertLess(abs(a - b), 0.01 * a, step)

    def test_bytes_a_parameter_by_category(self):
        for gradients, bytes_of_gradients in (("f32", 4), ("bf16", 2)):
            memory = self.report(self.BF16, f"--gradients={gradients}", "--steps=1")["memory"]
            state = {name: memory[name]["current"] for name in ("parameters", "gradients", "optimizer")}
            self.assertEqual(state, {"parameters": 2 * self.P, "gradients": bytes_of_gradients * self.P,
                                     "optimizer": 12 * self.P})
        wide = self.report("--steps=1")["memory"]
        for name in ("activations", "workspace"):  # statistics and tokens keep their size
            ratio = memory[name]["current"] / wide[name]["current"]
            self.assertTrue(0.5 <= ratio < 0.51, (name, ratio))
        for name, bytes_ in memory.items():
            self.assertEqual(bytes_["current"], bytes_["formula"], name)

    def test_a_run_that_stops_and_goes_on_never_stopped(self):
        file = os.path.join(self.folder, "run.h5")
        fixed = [SMALL, self.BF16, "--micro-batch=8", "--dropout=0.1"]
        whole = self.report(*fixed, "--steps=6")
        self.report(*fixed, "--steps=6", "--stop-after=3", f"--checkpoint={file}")
        rest = self.report(*fixed, "--steps=6", f"--checkpoint={file}", "--resume")
        self.assertEqual((rest["first_step"], rest["digest"], rest["loss"]), (3, whole["digest"], whole["loss"][3:]))

    def test_f32_weights_are_where_bf16_begins(self):
        file = os.path.join(self.folder, "run.h5")
        trained = self.report(SMALL, "--steps=20", f"--checkpoint={file}")
        first = self.report(SMALL, self.BF16, "--steps=1", f"--initial={file}")["loss"][0]
        self.assertLess(first, trained["loss"][0] - 0.5)

    def test_a_sample_is_drawn_from_bf16_too(self):
        done = self.run_program(SMALL, self.BF16, "--steps=1", "--sample=20", "--top-k=3")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertGreaterEqual(len(done.stdout.partition("# sample:")[2].partition("checks")[0]), 20)


class Reports(Lesson):
    def test_report_has_the_documented_fields(self):
        report = self.report("--steps=4", "--evaluate-every=2")
        self.assertEqual(report["lesson"], "01_single_device")
        self.assertEqual(report["ranks"], 1)
        self.assertEqual(report["layout"], {"dp": 1, "tp": 1, "pp": 1})
        self.assertEqual(report["model"], {"name": "nano", "architecture": "gpt2", "parameters": 220544, "frozen": 0})
        self.assertEqual(report["options"]["steps"], 4)
        self.assertEqual([len(report[name]) for name in ("loss", "grad_norm", "validation")], [4, 4, 2])
        self.assertEqual([v["step"] for v in report["validation"]], [2, 4])
        self.assertLessEqual({"step_s", "compute_s", "exposed_s", "waiting_s", "io_s"}, report["steps"].keys())
        self.assertEqual({len(seconds) for seconds in report["steps"].values()}, {4})
        self.assertRegex(report["digest"], "^[0-9a-f]{64}$")
        self.assertEqual(report["memory"]["parameters"], {"current": 882176, "peak": 882176, "formula": 882176})
        self.assertEqual(report["memory_ranks"][0]["device"]["optimizer"]["current"], 2 * 882176)
        self.assertEqual(report["traffic"], {})
        for name in ("compute_s", "exposed_s", "waiting_s", "io_s", "step_s", "tokens_per_s", "tflops"):
            self.assertIsInstance(report["time"][name], (int, float))
        self.assertTrue(all(c["pass"] for c in report["checks"]))

    def test_operations_are_told_by_both_conventions_of_the_field(self):
        N, L, C, T = 220544 - 64 * 64, 4, 64, 64  # N without the position embeddings
        time = self.report("--steps=2", "--recompute=block")["time"]
        per_token = time["tflops"] * 1e12 / time["tokens_per_s"]
        self.assertAlmostEqual(per_token, 6 * N + 12 * L * C * T, delta=1)
        self.assertAlmostEqual(time["tflops_recomputed"] * 1e12 / time["tokens_per_s"], 8 * N, delta=1)

    def test_first_loss_is_that_of_a_uniform_guess_and_falls(self):
        # On the embedded corpus: the mean over the nine characters of the short text is further from ln 256.
        loss = ProgramCase.report(self, "--steps=30", "--threads=2")["loss"]
        self.assertAlmostEqual(loss[0], math.log(256), delta=0.02)
        self.assertLess(loss[-1], 3.8)

    def test_memory_is_its_formula_for_any_shape(self):
        shapes = itertools.product(["none", "block"], ["fast", "exact"], ["--micro-batch=1", "--micro-batch=4"])
        for recompute, arithmetic, B in shapes:
            report = self.report("--steps=1", f"--recompute={recompute}", f"--arithmetic={arithmetic}", B,
                                 "--layers=1", "--channels=40", "--heads=5", "--vocabulary=261", "--sequence=16",
                                 "--global-batch=8")
            for category, bytes_ in report["memory"].items():
                self.assertEqual(bytes_["current"], bytes_["formula"], category)

    def test_recomputation_keeps_less(self):
        kept, again = (self.report("--steps=1", "--sequence=16", f"--recompute={r}")["memory"]["activations"]["peak"]
                       for r in ("none", "block"))
        self.assertLess(again, 0.4 * kept)

    def test_dry_run_counts_the_published_models(self):
        published = {"gpt2": 124439808, "gpt2-medium": 354823168, "gpt2-large": 774030080, "gpt2-xl": 1557611200}
        for model, parameters in published.items():
            done = self.run_program(f"--model={model}", "--dry-run")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(f"{parameters:,}", done.stdout)
            self.assertIn("optimizer", done.stdout)

    def test_trace_is_one_that_viewers_read(self):
        path = os.path.join(self.folder, "run.trace.json")
        report = self.report(SMALL, "--steps=2", f"--trace={path}")
        with open(path, encoding="utf-8") as file:
            trace = json.load(file)
        events = trace["traceEvents"] if isinstance(trace, dict) else trace
        spans = [e for e in events if e["ph"] == "X"]
        self.assertIn("training step", {e["name"] for e in spans})
        self.assertTrue(all(e["dur"] >= 0 and e["pid"] == 0 for e in spans))
        held = [e["args"] for e in events if e["ph"] == "C"]
        memory = {category: of["current"] for category, of in report["memory"].items() if of["current"] > 0}
        self.assertEqual(held[-1], memory)

    def test_a_sample_repeats_itself(self):
        options = (SMALL, "--steps=1", "--sample=20", "--top-k=3")
        text = [self.run_program(*options).stdout.partition("# sample:")[2].partition("checks")[0] for _ in range(2)]
        self.assertEqual(text[0], text[1])
        self.assertGreaterEqual(len(text[0]), 20)

    def test_options_come_from_a_file_too(self):
        path = os.path.join(self.folder, "run.conf")
        with open(path, "w", encoding="utf-8") as file:
            file.write("# a comment\nsteps = 2\nglobal-batch = 4\n")
        report = self.report(SMALL, f"--config={path}", "--steps=1")
        self.assertEqual((report["options"]["steps"], report["options"]["global-batch"]), (1, 4))

    def test_one_rank_under_a_launcher_is_the_same(self):
        self.assertEqual(self.report(SMALL, "--steps=1")["digest"], self.report(SMALL, "--steps=1", ranks=1)["digest"])


class Refusals(Lesson):
    def test_options(self):
        kept = f"{self.folder}/kept.h5"
        self.report("--steps=1", f"--checkpoint={kept}", SMALL)
        for options, says in [
            (["--stpes=3"], ["--stpes", "--steps"]),
            (["--model=gtp2"], ["gtp2", "gpt2-medium"]),
            (["--steps=5x"], ["--steps", "5x"]),
            (["--steps=2", "--epochs=1"], ["--epochs=1"]),
            (["--heads=3"], ["--heads=3", "64 channels"]),
            (["--sequence=65"], ["--sequence=65", "64 tokens", "--context"]),
            (["--micro-batch=3"], ["--micro-batch=3", "16", "--global-batch"]),
            (["--mask=caudal"], ["--mask=caudal", "prefix:K"]),
            (["--mask=prefix:65"], ["prefix:65"]),
            (["--dropout=1"], ["--dropout=1"]),
            (["--learning-rate=-1"], ["--learning-rate=-1"]),
            (["--threads=0"], ["--threads=0"]),
            (["--device=cuda"], ["cuda", "cpu"]),
            (["--sample=5", "--mask=full"], ["--mask=full"]),
            (["--vocabulary=100"], ["100"]),
            (["--config=/nowhere/run.conf"], ["/nowhere/run.conf"]),
            (["--compare=-1"], ["--compare=-1"]),
            (["--precision=f16"], ["f16", "bf16"]),
            (["--gradients=bf16"], ["--gradients=bf16", "--precision=bf16"]),
            (["--gradients=bf16", "--precision=bf16", "--micro-batch=8"], ["2 micro-batches", "--gradients=f32"]),
            (["--tf32"], ["--tf32", "--device=cpu"]),
            (["--steps=5", "--compare=6"], ["--compare=6 in a run of 5 steps"]),
            (["--dry-run", "--channels=1073741824"], ["5.534e+19 parameters, too many", "--channels=4564348"]),
            (["--dry-run", "--global-batch=1048576", "--model=gpt2-xl"], ["1.473e+19 operations, too many", "--global-batch=640640"]),
            (["--dry-run", "--global-batch=9223372036854775807"], ["--global-batch=9223372036854775807 is out of range", "1048576"]),
            (["--steps=4294967296"], ["is out of range", "2^32 - 1"]),
            (["--steps=5", "--warmup=6"], ["--warmup=6 in a run of 5 steps", "would not end"]),
            (["--steps=5", "--warmup=5", "--learning-rate-schedule=cosine"], ["--warmup=5 in a run of 5 steps", "would not fall"]),
            (["--epochs=1", "--warmup=265"], ["--warmup=265 in a run of 264 steps"]),
            (["--steps=5", "--evaluate-every=6"], ["--evaluate-every=6 in a run of 5 steps", "It has no effect"]),
            (["--steps=5", f"--checkpoint={self.folder}/c.h5", "--checkpoint-every=6"],
             ["--checkpoint-every=6 in a run of 5 steps", "It has no effect"]),
            (["--stop-after=3"], ["--stop-after=3 without a checkpoint", "--checkpoint=FILE.h5"]),
            (["--min-learning-rate=1e-4"], ["--min-learning-rate=0.0001 without a rate that falls", "--learning-rate-schedule=cosine"]),
            (["--min-learning-rate=2e-3", "--learning-rate-schedule=cosine"], ["is above --learning-rate=0.001"]),
            (["--dry-run", "--initial=typo.h5"], ["--initial=typo.h5 does not exist"]),
            (["--dry-run", "--data=typo.h5"], ["typo.h5 does not exist"]),
            (["--epochs=1", "--compare=300"], ["--compare=300 in a run of 264 steps"]),
            (["--dry-run", "--compare=101"], ["--compare=101 in a run of 100 steps", "Use 100 or less"]),
            (["--dry-run", "--resume", "--checkpoint=typo.h5"], ["--checkpoint=typo.h5 does not exist"]),
            (["--dry-run", f"--checkpoint={kept}"], [f"--checkpoint={kept} exists already"]),
            (["--dry-run", "--resume", f"--checkpoint={kept}", "--layers=3"], ["another model", "--layers=3 here"]),
            (["--dry-run", self.data, "--vocabulary=300", "--sample=5"], ["may draw tokens up to 299"]),
            (["--sequence=20", "--compare=3"], ["--compare=3", "--sequence=20", "divisible by 16"]),
        ]:
            with self.subTest(options=options):
                self.assert_refused(*options, says=says)

    def test_memory_limit_lists_categories_and_bytes(self):
        self.assert_refused("--memory-limit=4MB", says=["4,000,000", "parameters", "882,176", "activations", "--recompute"])

    def test_what_fits_with_recomputation_runs(self):
        self.assert_refused("--memory-limit=16MB", says=["--recompute=block"])
        self.report("--steps=1", "--memory-limit=16MB", "--recompute=block")

    def test_exact_arithmetic_names_what_stands_in_its_way(self):
        for options, says in [
            (["--micro-batch=6", "--global-batch=12"], ["--micro-batch=6", "4 or 8"]),
            (["--sequence=20"], ["--sequence=20", "32"]),
            (["--global-batch=6", "--micro-batch=3"], ["power of two"]),
            (["--channels=60"], ["--channels=60", "64"]),
        ]:
            with self.subTest(options=options):
                self.assert_refused("--arithmetic=exact", *options, says=says)

    def test_files(self):
        text = os.path.join(self.folder, "text.h5")
        with open(text, "w", encoding="utf-8") as file:
            file.write("not a token file")
        for options, says in [
            ([f"--data={self.folder}/none.h5"], ["none.h5"]),
            ([f"--data={text}"], ["text.h5", "prepare"]),
            (["--report=/nowhere/report.json"], ["/nowhere", "--report"]),
            ([f"--report={self.folder}"], [self.folder]),
            (["--trace=/nowhere/trace.json"], ["/nowhere", "--trace"]),
        ]:
            with self.subTest(options=options):
                self.assert_refused(*options, says=says)

    def test_data_that_are_too_short_name_the_options_that_help(self):
        source, tokens = os.path.join(self.folder, "short.txt"), os.path.join(self.folder, "short.h5")
        with open(source, "w", encoding="utf-8") as file:
            file.write("A short text. " * 40)
        done = self.run_program("--tokenizer=byte", source, tokens, program="data/prepare")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assert_refused(f"--data={tokens}", says=["1,025", "504", "--global-batch", "--sequence"])

    def test_more_ranks_than_one_device(self):
        for ranks in (2, 3, 4):
            self.assert_refused("--steps=1", ranks=ranks, says=[f"{ranks} ranks"])

    def test_what_is_not_finite_ends_the_run_with_step_and_tensor(self):
        done = self.run_program("--steps=5", "--learning-rate=1e38", "--warmup=0", "--clip=0")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertRegex(done.stderr, r"step [1-4]: .*wte\.weight is not finite")


@unittest.skipUnless(os.path.exists(os.path.join(DATA, "tinyshakespeare.txt")), "Tiny Shakespeare is not here")
class RealText(ProgramCase):
    program = PROGRAM

    def test_tiny_shakespeare_trains(self):
        tokens = os.path.join(self.folder, "shakespeare.h5")
        done = self.run_program("--tokenizer=byte", os.path.join(DATA, "tinyshakespeare.txt"), tokens,
                                program="data/prepare")
        self.assertEqual(done.returncode, 0, done.stderr)
        report = self.report(f"--data={tokens}", "--steps=40", "--threads=2")
        self.assertLess(report["loss"][-1], 3.7)


if __name__ == "__main__":
    unittest.main(verbosity=2)
