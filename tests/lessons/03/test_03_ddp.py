"""Lesson 03: lesson 01's bits on any number of ranks, traffic, the virtual clock, and refused options."""

import json
import os
import re
import shutil
import subprocess
import unittest

from program_case import BUILD, TIME_LIMIT_S, ShortTextCase, mixed_job

SMALL = ["--layers=2", "--steps=3"]
STRATEGIES = ["per-tensor", "flat", "bucketed", "overlapped"]


class Lesson(ShortTextCase):
    program = "lessons/03_ddp"

    def report(self, *options, ranks=None):
        return super().report(self.data, *options, ranks=ranks)

    def report_of_01(self, *options):
        """The report of lesson 01 with the same options."""
        self.program, ddp = "lessons/01_single_device", self.program
        try:
            return self.report(*options)
        finally:
            self.program = ddp

    def path(self, name):
        return os.path.join(self.folder, name)


class Exactness(Lesson):
    def same_digest(self, fixed, variants):
        expected = self.report_of_01(*fixed)["digest"]
        for ranks, *options in variants:
            with self.subTest(ranks=ranks, options=options):
                self.assertEqual(self.report(*fixed, *options, ranks=ranks)["digest"], expected)

    def test_every_strategy_and_number_of_ranks_gives_the_bits_of_lesson_01(self):
        fixed = [*SMALL, "--arithmetic=exact", "--dropout=0.1", "--clip=0.5"]
        self.same_digest(fixed, [
            (1, "--strategy=overlapped", "--micro-batch=4"),
            (2, "--strategy=per-tensor", "--micro-batch=2"),
            (2, "--strategy=overlapped", "--bucket=1B"),
            (4, "--strategy=flat"),
            (4, "--strategy=bucketed", "--bucket=100kB", "--micro-batch=1", "--recompute=block"),
            (4, "--strategy=overlapped", "--bucket=100kB", "--micro-batch=1"),
            (4, "--strategy=overlapped", "--collectives=shared", "--micro-batch=2"),
            (8, "--strategy=overlapped", "--micro-batch=1", "--threads=2"),
        ])

    def test_any_number_of_ranks_and_of_sequences_gives_the_bits_of_lesson_01(self):
        for G, variants in [
            (16, [(3, "--strategy=flat"), (5, "--micro-batch=2"), (6, "--strategy=per-tensor"), (7, "--strategy=bucketed")]),
            (12, [(1, "--micro-batch=8"), (2, "--micro-batch=4"), (3, "--bucket=1B"), (4,), (7, "--recompute=block")]),
            (7, [(2, "--strategy=flat"), (3, "--check-messages"), (5, "--chaos=1"), (7, "--micro-batch=1")]),
        ]:
            fixed = [*SMALL, "--sequence=32", "--arithmetic=exact", "--dropout=0.1", "--clip=0.5", f"--global-batch={G}"]
            self.same_digest(fixed, variants)

    def test_micro_batches_that_are_cut_are_reported(self):
        options = ["--layers=1", "--steps=1", "--arithmetic=exact", "--micro-batch=2"]
        text = {ranks: self.run_program(self.data, *options, ranks=ranks).stdout for ranks in (3, 4)}
        self.assertIn("micro-batches of 1, not 2: 3 ranks share 16 sequences", text[3])
        self.assertNotIn("micro-batches of", text[4])

    def test_chaos_changes_nothing(self):
        fixed = ["--layers=1", "--steps=2", "--arithmetic=exact", "--micro-batch=2"]
        seeds = int(os.environ.get("RANKWISE_CHAOS_SEEDS", "5"))
        strategies = (["--bucket=50kB"], ["--strategy=bucketed", "--bucket=50kB"], ["--strategy=flat"])
        self.same_digest(fixed, [(2 + 2 * (seed % 2), f"--chaos={seed}", *strategies[seed % 3]) for seed in range(1, seeds + 1)])

    def test_watching_and_comparing_messages_change_nothing(self):
        fixed = ["--layers=1", "--steps=2", "--arithmetic=exact"]
        self.same_digest(fixed, [(2, "--check-messages", "--timeout=60", "--check-every=1"),
                                 (2, "--timeout=0", "--link=5us,1GB/s")])


class Deviation(Lesson):
    def test_fast_sums_stay_within_their_bounds_on_any_number_of_ranks(self):
        for ranks, *options in [(2, "--strategy=overlapped"), (3, "--global-batch=24", "--strategy=bucketed"),
                                (5, "--global-batch=40", "--strategy=flat"), (4, "--collectives=tree")]:
            with self.subTest(ranks=ranks, options=options):
                batch = [o for o in options if o.startswith("--global-batch")]
                report = self.report("--steps=10", *options, ranks=ranks)
                single = self.report_of_01("--steps=10", *batch)
                for a, b in zip(report["loss"], single["loss"]):
                    self.assertLess(abs(a - b), 1e-6 * b)

    def test_the_program_prints_its_own_deviation(self):
        report = self.report("--steps=10", "--compare=10", "--micro-batch=4", ranks=4)
        self.assertTrue(0 < report["deviation"]["loss"] <= 1e-6, report["deviation"])
        self.assertTrue(0 < report["deviation"]["parameters"] <= 1e-5, report["deviation"])


class Precision(Lesson):
    BF16 = "--precision=bf16"

    def test_exact_sums_of_bf16_have_the_bits_of_lesson_01(self):
        fixed = [*SMALL, self.BF16, "--arithmetic=exact", "--dropout=0.1"]
        expected = self.report_of_01(*fixed)["digest"]
        for ranks, *options in [(2, "--micro-batch=4"), (4, "--strategy=flat"), (4, "--micro-batch=2", "--bucket=1B")]:
            self.assertEqual(self.report(*fixed, *options, ranks=ranks)["digest"], expected, (ranks, options))

    def test_gradients_in_bf16_are_half_the_bytes(self):
        for ranks, *strategy in [(2, "--strategy=flat"), (3, "--bucket=100kB"), (4, "--strategy=bucketed", "--bucket=100kB")]:
            options = ["--steps=10", "--global-batch=24", *strategy]
            wide, narrow = (self.report(*options, self.BF16, f"--gradients={g}", ranks=ranks) for g in ("f32", "bf16"))
            sent = [report["traffic"]["world"] for report in (wide, narrow)]
            self.assertEqual(sent[0]["bytes"], 2 * sent[1]["bytes"])
            for report in (wide, narrow):
                self.assertEqual(report["traffic"]["world"]["bytes"], report["traffic"]["world"]["formula"])
                for name, bytes_ in report["memory"].items():
                    self.assertEqual(bytes_["current"], bytes_["formula"], name)
            single = self.report_of_01(*options[:2])["loss"]
            for report in (wide, narrow):
                for a, b in zip(report["loss"], single):
                    self.assertLess(abs(a - b), 1e-2 * b)

    def test_a_checkpoint_of_master_weights_goes_on_anywhere(self):
        file = self.path("ddp.h5")
        fixed = ["--layers=1", self.BF16, "--arithmetic=exact", "--dropout=0.1"]
        whole = self.report(*fixed, "--steps=4", ranks=2)["digest"]
        self.report(*fixed, "--steps=2", f"--checkpoint={file}", ranks=4)
        self.assertEqual(self.report(*fixed, "--steps=4", f"--checkpoint={file}", "--resume", ranks=2)["digest"], whole)

    def test_gradients_in_bf16_take_one_pass_a_step(self):
        self.assert_refused(self.BF16, "--gradients=bf16", "--micro-batch=2", ranks=2, says=["4 micro-batches", "--micro-batch"])


class Traffic(Lesson):
    def test_a_step_sends_what_the_paper_says_to_the_byte(self):
        for ranks in (1, 2, 4):
            for strategy in STRATEGIES:
                traffic = self.report("--steps=2", "--layers=1", f"--strategy={strategy}", "--micro-batch=4",
                                      ranks=ranks)["traffic"]["world"]
                elements = 256 * 64 + 64 * 64 + 49984 + 128
                self.assertEqual(traffic["bytes"], 8 * elements * (ranks - 1) // ranks, (ranks, strategy))
                self.assertEqual(traffic["bytes"], traffic["formula"])

    def test_where_shares_are_several_subtrees_each_of_them_travels(self):
        n, tied = 256 * 64 + 64 * 64 + 49984 + 128, 256 * 64  # elements of the flat vector and of the separate sum
        # 16 sequences of three ranks: 0 1 2 3 | 4 5; 6 7 | 8 9 | 10; 11 | 12 13 14 15. Rank 0 sends what others own of its
        # two subtrees. In the all-gather it gives rank 1 two shards, and rank 2, for which it acts, everything.
        expected = 0
        for size in (n, tied):
            first, last = (size + 2) // 3, size // 3
            expected += 4 * (2 * (size - first) + first + last + size)
        report = self.report("--steps=2", "--layers=1", "--strategy=flat", "--arithmetic=exact", ranks=3)
        self.assertEqual(report["traffic"]["world"]["bytes"], expected)
        self.assertEqual(report["traffic"]["world"]["formula"], expected)
        # The most sums at a time: 0 1 2 3, 4 and 5; 6 7, 8 9 and 10; 11, 12 13, 14 and 15. The first is no extra one.
        exact = [rank["device"]["exact"]["current"] for rank in report["memory_ranks"]]
        self.assertEqual(exact, [4 * ((sums - 1) * n + sums * tied) for sums in (3, 3, 4)])

    def test_accumulation_sends_nothing_more(self):
        sent = {B: self.report("--steps=2", "--layers=1", f"--micro-batch={B}", ranks=2)["traffic"] for B in (8, 4, 1)}
        self.assertEqual(sent[8], sent[4])
        self.assertEqual(sent[8], sent[1])


class Checkpoints(Lesson):
    def test_four_ranks_write_what_any_number_goes_on_from(self):
        file = self.path("ddp.h5")
        fixed = [*SMALL[:1], "--arithmetic=exact", "--global-batch=16", "--dropout=0.1"]
        whole = self.report(*fixed, "--steps=4", ranks=2)["digest"]
        self.report(*fixed, "--steps=2", f"--checkpoint={file}", ranks=4)
        with open(file, "rb") as saved:
            first_half = saved.read()
        for ranks in (1, 2, 4):
            with open(file, "wb") as saved:
                saved.write(first_half)
            report = self.report(*fixed, "--steps=4", f"--checkpoint={file}", "--resume", ranks=ranks)
            self.assertEqual((report["first_step"], report["digest"]), (2, whole), ranks)

    def test_three_ranks_go_on_too_and_lesson_01_as_well(self):
        file = self.path("ddp.h5")
        fixed = [*SMALL[:1], "--global-batch=12"]
        self.report(*fixed, "--steps=2", f"--checkpoint={file}", ranks=4)
        three = self.report(*fixed, "--steps=3", f"--checkpoint={file}", "--resume", ranks=3)
        one = self.report_of_01(*fixed, "--steps=4", f"--checkpoint={file}", "--resume")
        self.assertEqual((three["first_step"], one["first_step"]), (2, 3))


class VirtualClock(Lesson):
    LINK = ["--link=20us,110MB/s", "--flops=10GFLOP/s", "--steps=2"]

    def virtual(self, *options, ranks=4):
        return self.report(*self.LINK, *options, ranks=ranks)["virtual"][-1]

    def test_the_same_times_on_every_run(self):
        first, second = (self.virtual("--strategy=overlapped") for _ in range(2))
        self.assertEqual(first, second)
        self.assertEqual(first["step_ps"], first["compute_ps"] + first["exposed_ps"])

    def test_overlap_hides_what_flat_exposes(self):
        # The link is such that communication takes about half as long as the backward pass.
        flat, overlapped = (self.virtual(option) for option in ("--strategy=flat", "--bucket=50kB"))
        backward = 2 / 3 * flat["compute_ps"]
        self.assertTrue(0.3 * backward < flat["exposed_ps"] < 0.6 * backward, flat)
        self.assertLess(overlapped["exposed_ps"], 0.2 * flat["exposed_ps"])


class Output(Lesson):
    def test_validation_and_sample_are_those_of_lesson_01(self):
        options = [*SMALL, "--arithmetic=exact", "--sample=20", "--evaluate-every=2"]
        self.assertEqual(self.report(*options, ranks=4)["validation"], self.report_of_01(*options)["validation"])
        text = [re.search(r"# sample:\n(# .*\n)+", self.run_program(*options, ranks=r, program=p).stdout).group()
                for r, p in [(2, None), (None, "lessons/01_single_device")]]
        self.assertEqual(text[0], text[1])

    def test_memory_and_replicas_are_checked_on_all_ranks(self):
        report = self.report(*SMALL, "--check-every=1", ranks=3, *["--global-batch=12"])
        self.assertEqual(len(report["memory_ranks"]), 3)
        names = {check["name"] for check in report["checks"]}
        self.assertTrue({"digest on every rank", "traffic of a step", "bytes of communication"} <= names, names)

    def test_the_trace_shows_hidden_communication(self):
        trace = self.path("trace.json")
        self.report(*SMALL, f"--trace={trace}", ranks=2)
        with open(trace, encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
        self.assertTrue(any(e.get("cat") == "hidden" and "bucket" in e["name"] for e in events))
        self.assertEqual({e["pid"] for e in events if e["ph"] == "C"}, {0, 1})  # the memory of both ranks


class WrongInput(Lesson):
    def test_what_cannot_be_is_refused_before_anything_is_sent(self):
        for options, says in [
            (["--global-batch=15"], ["--global-batch=15 cannot be shared out among 2 ranks"]),
            (["--bucket=0"], ["--bucket=0"]),
            (["--link=5,1GB/s"], ["--link", "5"]),
            (["--link=5us,1GB/s", "--collectives=shared"], ["--link"]),
            (["--link=5us,1GB/s", "--flops=1kFLOP/s", "--steps=20"], ["eight million seconds", "a higher --flops"]),
            (["--link=5us,1GB/s", "--flops=7"], ["--flops=7 is not"]),
            (["--strategy=flat", "--bucket=1MB"], ["--bucket=1MB without buckets", "--strategy=bucketed or overlapped"]),
            (["--check-every=-1"], ["--check-every=-1"]),
            (["--timeout=-1"], ["--timeout=-1"]),
            (["--arithmetic=exact", "--collectives=ring"], ["--collectives=ring", "halving"]),
            (["--arithmetic=exact", "--global-batch=1"], ["--global-batch=1", "ranks, 2", "--global-batch=2 or more"]),
            (["--arithmetic=exact", "--global-batch=12", "--collectives=shared"], ["--collectives=shared", "halving"]),
            (["--arithmetic=exact", "--global-batch=12", "--micro-batch=3"], ["--micro-batch=3", "power of two"]),
            (["--micro-batch=3"], ["--micro-batch=3"]),
            (["--collectives=rings"], ["--collectives"]),
        ]:
            with self.subTest(options=options):
                self.assert_refused(*options, ranks=2, says=says)

    def different(self, first, second, programs=(), folders=(".", ".")):
        """Errors of a job whose ranks have different options, programs or folders."""
        programs = programs or [os.path.join(BUILD, self.program)] * 2
        command = mixed_job(2, *(["sh", "-c", 'cd "$0" && exec "$@"', folder, program, "--steps=2", *options]
                                 for folder, program, options in zip(folders, programs, (first, second))))
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=TIME_LIMIT_S)
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        return done.stderr

    def test_ranks_that_were_told_different_things(self):
        text = self.different(["--seed=1"], ["--seed=2"])
        self.assertIn("the ranks differ in --seed.", text)
        self.assertIn("rank 1: 2", text)
        self.assertIn("the ranks differ in --dry-run.", self.different(["--dry-run"], []))
        text = self.different([], ["--help"])
        self.assertIn("the ranks differ in --help.\n       rank 0: without it\n       rank 1: with it\n", text)

    def test_ranks_that_run_different_programs(self):
        program = os.path.join(BUILD, self.program)
        for other in ("lessons/04_zero1", "lessons/00_mpi"):
            with self.subTest(other=other):
                text = self.different([], [], programs=(program, os.path.join(BUILD, other)))
                self.assertIn("the ranks differ in the program that they run.", text)
                self.assertIn(f"rank 1: {os.path.basename(other)}", text)
        revision = self.report("--steps=1", ranks=2)["provenance"]["revision"].encode()
        older = self.path("older")
        shutil.copy(program, older)
        with open(older, "r+b") as file:
            code = file.read()
            file.seek(0)
            file.write(code.replace(b"\0" + revision + b"\0", b"\0" + b"0" * len(revision) + b"\0"))
        text = self.different([], [], programs=(program, older))
        self.assertIn("the ranks differ in the revision of their program's sources.", text)

    def test_ranks_that_read_other_files_under_one_name(self):
        sizes = ["--layers=1", "--heads=1", "--channels=8"]
        folders = [self.path("first"), self.path("second")]
        for folder, seed, text in zip(folders, (1, 2), ("abcd", "abce")):
            os.mkdir(folder)
            initial, run = f"{folder}/initial.h5", f"{folder}/run.h5"
            self.report("--steps=1", *sizes, f"--seed={seed}", f"--checkpoint={initial}")
            self.report("--steps=2", "--stop-after=1", f"--initial={initial}", f"--checkpoint={run}")
            with open(f"{folder}/text.txt", "w", encoding="utf-8") as out:
                out.write(text * 500)
            subprocess.run([os.path.join(BUILD, "data/prepare"), "--tokenizer=byte", f"{folder}/text.txt", f"{folder}/text.h5"],
                           check=True, capture_output=True)
        for options in (["--initial=initial.h5"], ["--checkpoint=run.h5", "--resume", *sizes, self.data], ["--data=text.h5"],
                        ["--prompt-file=text.txt", "--sample=3"], ["--initial=initial.h5", "--dry-run"]):
            with self.subTest(options=options):
                text = self.different(options, options, folders=folders)
                self.assertIn("the ranks differ in the files that they read.\n       rank 0: ", text)
                self.assertEqual(len(set(re.findall(re.escape(options[0]) + r" \(content (\w+)\)", text))), 2, text)

    def test_a_folder_that_each_rank_has_for_itself(self):
        folders = [self.path("here"), self.path("there")]
        for folder in folders:
            os.mkdir(folder)
        text = self.different(["--checkpoint=new.h5"], ["--checkpoint=new.h5"], folders=folders)
        self.assertIn("the ranks differ in the folder of --checkpoint=new.h5, a file that all of them write.\n"
                      "       rank 0: the folder with this job's lock\n       rank 1: a folder without this job's lock\n", text)

    def test_a_file_that_only_one_rank_misses(self):
        os.mkdir(self.path("empty"))
        with open(self.path("p.txt"), "w", encoding="utf-8") as file:
            file.write("a")
        options = ["--prompt-file=p.txt", "--sample=3"]
        self.assertIn("(said by rank 1 of 2)", self.different(options, options, folders=[self.folder, self.path("empty")]))

    def test_the_first_stage_of_the_memory_ladder_that_fits_is_named(self):
        lessons = {"lesson 04": "lessons/04_zero1", "lesson 05": "lessons/05_zero2", "lesson 06": "lessons/06_zero3"}
        named = set()
        for options, limits in [
            (["--micro-batch=1"], ["3300kB", "4MB"]),
            (["--micro-batch=1", "--bucket=1B"], ["3300kB"]),
            (["--micro-batch=1", "--precision=bf16"], ["2700kB"]),
            (["--micro-batch=2", "--arithmetic=exact"], ["4900kB", "5500kB"]),
        ]:
            for limit in limits:
                with self.subTest(options=options, limit=limit):
                    done = self.assert_refused(*options, f"--memory-limit={limit}", ranks=4, says=["--memory-limit", "Or use"])
                    lesson, needed = re.search(r"Or use .*\((lesson 0\d)\), which needs ([\d,]+) bytes", done.stderr).groups()
                    named.add(lesson)
                    options_there = [o for o in options if "bucket" not in o or lesson != "lesson 06"]
                    there = self.run_program("--dry-run", *options_there, f"--memory-limit={limit}", ranks=4,
                                             program=lessons[lesson])
                    self.assertEqual(there.returncode, 0, there.stderr)
                    planned = int(re.search(r"  total +([\d,]+)", there.stdout).group(1).replace(",", ""))
                    self.assertLessEqual(planned, int(needed.replace(",", "")))
                    self.assertLess(int(needed.replace(",", "")) - planned, 5000)
        self.assertEqual(named, set(lessons))

    def test_where_no_stage_fits_none_is_named(self):
        done = self.assert_refused("--micro-batch=1", "--memory-limit=1MB", ranks=4, says=["--memory-limit"])
        self.assertNotIn("Or use", done.stderr)


if __name__ == "__main__":
    unittest.main()
