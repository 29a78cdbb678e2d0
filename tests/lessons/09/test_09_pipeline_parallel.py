"""Lesson 09: the bits of lesson 01 whichever schedule runs on however many stages, bytes by the published figures, idle time
as planned, checkpoints of every lesson on the ladder, and what cannot be a pipeline.

With RANKWISE_ALL every combination is tried; else a set that covers them.
"""

import concurrent.futures
import itertools
import json
import math
import os
import re
import subprocess
import time
import unittest

import zero_case
from program_case import BUILD, SLOWNESS, TIME_LIMIT_S
from zero_case import ALL, L01

PROGRAM = "lessons/09_pipeline_parallel"
GPIPE, INTERLEAVED = "--schedule=gpipe", "--schedule=interleaved"
RECOMPUTE = "--recompute=block"
EIGHT = "--layers=8"  # blocks, for four ranks with two stages each
G, T, C, L, H, V = 16, 64, 64, 4, 4, 256  # of nano
OF_A_BLOCK = 12 * C * C + 13 * C  # parameters
FAST_LINK = "--link=1us,100GB/s"


class Staged(zero_case.Staged):
    program = PROGRAM


def variants_of(blocks):
    """All schedules of models with so many blocks and 16 sequences a step: ranks and options."""
    for p, v, B, recompute in itertools.product((1, 2, 4, 8), (1, 2, 3, 4), (1, 2, 4, 8, 16), ("none", "block")):
        m = G // B
        options = (f"--micro-batch={B}", f"--recompute={recompute}")
        if v == 1:
            yield from ((p, schedule, *options) for schedule in (GPIPE, "--schedule=1f1b"))
        if p * v <= blocks and m % p == 0 and (v == 1 or p > 1):
            yield (p, INTERLEAVED, f"--virtual-stages={v}", *options)


class Exactness(Staged, zero_case.Exactness):
    def test_every_number_of_ranks_gives_the_bits_of_lesson_01(self):
        more = [["--dropout=0.1", "--clip=0.5"], ["--clip=0"]] if ALL else [["--dropout=0.1", "--clip=0.5"]]
        for options in more:
            self.same_digest(self.options(EIGHT, "--arithmetic=exact", *options), self.variants())

    def variants(self):
        if ALL:
            return [*variants_of(8), *((p, schedule, f"--collectives={collectives}") for p in (2, 4, 8)
                                       for schedule in (GPIPE, "--schedule=1f1b") for collectives in ("halving", "shared"))]
        return [
            (1, GPIPE, "--micro-batch=2"),
            (1, RECOMPUTE),
            (2, GPIPE, "--micro-batch=1"),
            (2,),
            (2, INTERLEAVED, "--micro-batch=2"),
            (2, INTERLEAVED, "--virtual-stages=3", RECOMPUTE),
            (2, INTERLEAVED, "--virtual-stages=4", "--micro-batch=8", "--collectives=shared"),
            (4, GPIPE, RECOMPUTE),
            (4, "--micro-batch=1", "--collectives=shared"),
            (4, "--micro-batch=16", "--partition=1,1,5,1"),
            (4, INTERLEAVED, RECOMPUTE, "--threads=2"),
        ]

    def test_the_default_model(self):
        self.same_digest([self.data, "--steps=2", "--arithmetic=exact"], [(2, INTERLEAVED), (4, RECOMPUTE)])

    def test_other_masks_and_a_vocabulary_that_is_padded(self):
        """With a prefix some of the tokens are not counted."""
        for options in (["--mask=full", "--vocabulary=257"], ["--mask=prefix:5", "--vocabulary=300"]):
            fixed = self.options("--arithmetic=exact", "--dropout=0.1", *options)
            self.same_digest(fixed, [(2, INTERLEAVED), (4,)])

    def test_any_number_of_stages_and_of_sequences(self):
        for G, *variants in [(16, (3,), (5, "--micro-batch=2"), (7, RECOMPUTE)), (7, (2, GPIPE), (6,)),
                             (12, (3, INTERLEAVED), (1, "--micro-batch=8"), (5, "--collectives=shared"))]:
            self.same_digest(self.options(EIGHT, "--arithmetic=exact", "--dropout=0.1", f"--global-batch={G}"), variants)

    def test_in_bf16_too(self):
        fixed = self.options("--arithmetic=exact", "--dropout=0.1", "--precision=bf16")
        self.same_digest(fixed, [(2, INTERLEAVED, RECOMPUTE), (4, "--micro-batch=2")])

    def test_chaos_changes_nothing(self):
        fixed = self.options(EIGHT, "--arithmetic=exact")
        schedules = [[], ["--micro-batch=1"], [GPIPE], [INTERLEAVED, "--micro-batch=2"]]
        ranks = (8, 8, 2, 4)
        self.same_digest(fixed, [(ranks[seed % 4], f"--chaos={seed}", "--check-messages", *schedules[seed % 4])
                                 for seed in range(1, 21 if ALL else 5)])

    def test_watching_and_comparing_messages_change_nothing(self):
        fixed = self.options("--arithmetic=exact")
        self.same_digest(fixed, [(4, "--check-messages", "--timeout=60"), (2, INTERLEAVED, "--timeout=0", "--link=5us,1GB/s")])

    def test_the_program_finds_no_deviation_itself(self):
        for ranks, *options in [(2, INTERLEAVED), (4, "--dropout=0.1", "--clip=0.5")]:
            report = self.report(*self.options("--arithmetic=exact", "--compare=3", *options), ranks=ranks)
            self.assertEqual(report["deviation"], {"steps": 3, "loss": 0, "parameters": 0})


class FastSums(Staged, zero_case.Lesson):
    def test_parameters_and_losses_stay_near_those_of_one_device(self):
        cases = [(2, INTERLEAVED, "--collectives=tree"), (2, "--collectives=auto", RECOMPUTE, "--clip=0.5"),
                 (3, GPIPE, "--collectives=library"), (3, "--partition=2,5,1", "--micro-batch=4", "--collectives=shared"),
                 (3, "--micro-batch=1"), (4, RECOMPUTE),
                 (4, INTERLEAVED, "--collectives=hierarchical", "--ranks-per-node=2")]
        if ALL:
            cases = [(ranks, f"--collectives={collectives}", f"--recompute={recompute}", "--micro-batch=1", *schedule)
                     for ranks, collectives, recompute, schedule in itertools.product(
                         (1, 2, 3, 4, 5), ("ring", "tree", "shared", "library", "auto"), ("none", "block"),
                         ([GPIPE], [], [INTERLEAVED]))
                     if INTERLEAVED not in schedule or ranks in (2, 4)]
        for ranks, *options in cases:
            with self.subTest(ranks=ranks, options=options):
                report = self.report(*self.options(EIGHT, "--steps=4", "--global-batch=8", "--compare=4", *options),
                                     ranks=ranks)
                self.assertTrue(0 < report["deviation"]["loss"] <= 1e-6, report["deviation"])
                self.assertTrue(0 < report["deviation"]["parameters"] <= 1e-5, report["deviation"])

    def test_three_ranks_with_two_stages_each(self):
        fixed = self.options(EIGHT, "--global-batch=12")
        single = self.report_of(L01, *fixed)["loss"]
        for a, b in zip(self.report(*fixed, INTERLEAVED, ranks=3)["loss"], single):
            self.assertLess(abs(a - b), 1e-6 * b)

    def test_schedules_that_add_in_the_same_order_give_the_same_bits(self):
        digests = {self.report(*self.options(*options), ranks=ranks)["digest"]
                   for ranks, *options in [(4,), (4, GPIPE), (2, INTERLEAVED), (2, "--collectives=halving")]}
        self.assertEqual(len(digests), 1)

    def test_bf16_stays_near_one_device(self):
        fixed = self.options("--precision=bf16", "--dropout=0.1")
        single = self.report_of(L01, *fixed)["loss"]
        for ranks, *options in [(2, INTERLEAVED), (4, RECOMPUTE), (3, GPIPE),
                                (2, "--gradients=bf16", "--micro-batch=16")]:
            with self.subTest(ranks=ranks, options=options):
                for a, b in zip(self.report(*fixed, *options, ranks=ranks)["loss"], single):
                    self.assertLess(abs(a - b), 2e-3 * b)  # bf16 has 8 bits, and the mean of a thousand tokens more


def in_flight(schedule, p, rank, m, v=1):
    """Micro-batches of which a rank keeps the activations of a stage, by the papers."""
    return {GPIPE: m, INTERLEAVED: min(2 * (p - rank - 1) + (v - 1) * p + 1, v * m)}.get(schedule, min(p - rank, m))


class Bytes(Staged, zero_case.Lesson):
    def of_activations(self, schedule, p, rank, b, recompute, size=4):
        """Bytes of nano's micro-batches in flight, with one block a rank. Stage 0 keeps tokens too, the last one the head's
        activations."""
        rows = b * T
        stream, statistics = size * rows * C, 4 * rows
        block = 16 * stream + (4 + H) * statistics
        kept = stream if recompute else block
        if rank == 0:
            kept += 4 * rows
        if rank == p - 1:
            kept += 2 * stream + size * rows * V + 5 * statistics + 4 * rows
        return in_flight(schedule, p, rank, G // b) * kept + recompute * (block - stream)

    def of_parameters(self, p, rank):
        """A rank's part of nano: its blocks, the embedding and the final norm; the last rank has a copy of the embedding."""
        return L // p * OF_A_BLOCK + (rank == 0) * (V + T) * C + (rank == p - 1) * (2 * C + (p > 1) * V * C)

    def test_of_a_rank_are_those_of_its_stages(self):
        for schedule, b, *options in [(None, 4), (GPIPE, 2), (None, 2, RECOMPUTE)]:
            with self.subTest(schedule=schedule, b=b, options=options):
                report = self.report(self.data, "--steps=1", f"--micro-batch={b}", *options, *([schedule] if schedule else []),
                                     ranks=4)
                for rank, tiers in enumerate(report["memory_ranks"]):
                    P = self.of_parameters(4, rank)
                    self.assertEqual([tiers["device"][c]["current"] for c in ("parameters", "gradients", "optimizer")],
                                     [4 * P, 4 * P, 8 * P])
                    self.assertEqual(tiers["device"]["activations"]["current"],
                                     self.of_activations(schedule, 4, rank, b, RECOMPUTE in options))
                    self.assertEqual(tiers["device"]["activations"]["peak"], tiers["device"]["activations"]["current"])

    def test_micro_batches_in_flight_are_those_of_the_papers(self):
        for schedule, v in [(GPIPE, 1), (None, 1), (INTERLEAVED, 2)]:
            options = [EIGHT, "--micro-batch=2", *([schedule] if schedule else [])]
            reported = [in_flight(schedule, 4, rank, 8, v) for rank in range(4)]
            numbers = " ".join(map(str, reported))
            done = self.run_program("--dry-run", *options, ranks=4)
            self.assertRegex(done.stdout, rf"in flight +{numbers} += {numbers} +activations by rank")

    def test_bf16_and_other_sums_keep_to_the_formula(self):
        for ranks, *options in [(2, "--precision=bf16", INTERLEAVED), (4, "--arithmetic=exact", "--micro-batch=2"),
                                (3, "--vocabulary=257", "--collectives=tree", RECOMPUTE),
                                (4, "--collectives=shared", GPIPE), (1, RECOMPUTE),
                                (2, "--precision=bf16", "--arithmetic=exact", INTERLEAVED, RECOMPUTE)]:
            self.keeps_to_the_formula(ranks, *options)

    def test_a_dry_run_plans_what_a_run_takes(self):
        for ranks, *options in [(2, INTERLEAVED), (4, RECOMPUTE), (3, GPIPE, "--precision=bf16"),
                                (4, "--arithmetic=exact", "--micro-batch=2"), (4, "--vocabulary=1024")]:
            with self.subTest(ranks=ranks, options=options):
                report = self.report(*self.options("--steps=1", *options), ranks=ranks)
                done = self.run_program("--dry-run", *self.options(*options), ranks=ranks)
                self.assertEqual(done.returncode, 0, done.stderr)
                reported = {name: int(bytes_.replace(",", ""))
                        for name, bytes_ in re.findall(r"^  (a step|\w+) +([\d,]+) +bytes", done.stdout, re.MULTILINE)}
                expected = {name: bytes_["formula"] for name, bytes_ in report["memory"].items() if bytes_["formula"] > 0}
                self.assertEqual(reported, expected | {"total": sum(expected.values()),
                                                   "a step": report["traffic"]["pp"]["bytes"]})

    def test_a_dry_run_tells_the_stages(self):
        done = self.run_program("--dry-run", "--model=gpt2", ranks=4)
        self.assertRegex(done.stdout, r"# stages of 4, 4, 3, 1 blocks \(the largest has 1\.33 times the mean work\)")


class Traffic(Staged, zero_case.Lesson):
    def assert_sent(self, p, b, *options, rows, v=1, size=4, tied=None):
        """By rank 0: forwards behind each of its v stages and backwards in front of all of them but the first, m B T C
        numbers each; and by ring one of the two halves of a sum of V C numbers between two."""
        report = self.report(self.data, "--steps=2", "--evaluate-every=1", f"--micro-batch={b}", *options, ranks=p)
        boundaries = (2 * v - 1) * (p > 1)
        self.assertEqual(report["traffic"]["pp"], {"bytes": boundaries * size * rows * C, "messages": boundaries * G // b,
                                                   "formula": boundaries * size * rows * C})
        if p > 1:
            tied = report["traffic"]["tied"]
            self.assertEqual((tied["bytes"], tied["formula"]), (4 * V * C, 4 * V * C))

    def test_a_step_sends_the_published_figures(self):
        for p, b, *options in [(1, 4), (2, 4), (4, 1), (2, 2, GPIPE), (4, 2), (4, 4, RECOMPUTE)]:
            with self.subTest(p=p, b=b, options=options):
                self.assert_sent(p, b, *options, rows=G * T)
        self.assert_sent(2, 4, INTERLEAVED, rows=G * T, v=2)
        self.assert_sent(4, 2, INTERLEAVED, EIGHT, "--sequence=16", rows=G * 16, v=2)
        self.assert_sent(2, 4, "--precision=bf16", rows=G * T, size=2)

    def test_other_collectives_keep_to_their_formula(self):
        for ranks, collectives, *options in [(3, "tree"), (4, "halving"), (4, "shared"), (2, "auto", INTERLEAVED),
                                             (2, "library"), (4, "hierarchical", "--ranks-per-node=2")]:
            with self.subTest(ranks=ranks, collectives=collectives):
                traffic = self.report(*self.options("--steps=1", f"--collectives={collectives}", *options),
                                      ranks=ranks)["traffic"]
                for group in ("pp", "tied"):
                    self.assertEqual(traffic[group]["bytes"], traffic[group]["formula"], group)


class Schedules(Staged, zero_case.Lesson):
    """On paper, on the virtual clock and on the wall clock, for four ranks and eight micro-batches."""

    cases = [(GPIPE, 1, 3 / 11), ("--schedule=1f1b", 1, 3 / 11), (INTERLEAVED, 2, 3 / 19)]

    def of(self, schedule, *options):
        return self.report(*self.options(EIGHT, "--steps=2", "--micro-batch=2", "--flops=1GFLOP/s", schedule, *options),
                           ranks=4)["schedule"]

    def test_idle_shares_and_timelines(self):
        for schedule, v, formula in self.cases:
            with self.subTest(schedule=schedule):
                reported = self.of(schedule, FAST_LINK)
                self.assertEqual((reported["ranks"], reported["virtual_stages"], reported["micro_batches"]), (4, v, 8))
                self.assertEqual(reported["max_in_flight"], [in_flight(schedule, 4, rank, 8, v) for rank in range(4)])
                self.assertAlmostEqual(reported["idle"]["formula"], formula)
                self.assertLess(abs(reported["idle"]["virtual"] - reported["idle"]["planned"]), 0.01)
                self.assertEqual(sorted(reported["timelines"]), ["planned", "virtual", "wall"])
                length = {name: max(rank[-1]["end"] for rank in ranks) for name, ranks in reported["timelines"].items()}
                self.assertLess(abs(length["virtual"] / length["planned"] - 1), 0.02)
                for name, ranks in reported["timelines"].items():
                    self.assert_is_complete(ranks, 4 * v, 8)
                    self.assert_is_in_order(ranks, 4 * v)
                    self.assertAlmostEqual(reported["idle"][name], self.idle_share(ranks), 6)

    def test_a_slow_link_is_seen_on_the_virtual_clock(self):
        reported = self.of("--schedule=1f1b", "--link=1ms,1GB/s")
        self.assertGreater(reported["idle"]["virtual"], reported["idle"]["planned"] + 0.05)

    def test_stages_that_differ_are_idle_for_longer(self):
        even, uneven = (self.of("--schedule=1f1b", f"--partition={blocks}")["idle"] for blocks in ("2,2,2,2", "1,1,5,1"))
        self.assertEqual(even["formula"], uneven["formula"])
        self.assertGreater(uneven["planned"], even["planned"] + 0.1)

    @staticmethod
    def idle_share(ranks):
        begin, end = min(rank[0]["begin"] for rank in ranks), max(rank[-1]["end"] for rank in ranks)
        busy = sum(action["end"] - action["begin"] for rank in ranks for action in rank)
        return 1 - busy / (end - begin) / len(ranks)

    def assert_is_complete(self, ranks, stages, m):
        """Each micro-batch goes through each stage, on its rank, forwards and backwards."""
        for number, rank in enumerate(ranks):
            done = sorted((action["kind"], action["stage"], action["micro_batch"]) for action in rank)
            self.assertEqual(done, sorted(itertools.product(("forward", "backward"), range(number, stages, 4), range(m))))

    def assert_is_in_order(self, ranks, stages):
        times, moment = {}, 1e-9
        for rank in ranks:
            for before, after in zip(rank, rank[1:]):
                self.assertLessEqual(before["end"], after["begin"] + moment)
            for action in rank:
                self.assertLess(action["begin"], action["end"])
                times[action["kind"], action["stage"], action["micro_batch"]] = action
        for (kind, stage, m), action in times.items():
            waits_for = (kind, stage + (1 if kind == "backward" else -1), m)
            if kind == "backward" and stage == stages - 1:
                waits_for = ("forward", stage, m)
            if waits_for in times:
                self.assertLessEqual(times[waits_for]["end"], action["begin"] + moment, (action, waits_for))

    def test_a_trace_has_its_actions(self):
        trace = self.path("run.trace.json")
        reported = self.of(INTERLEAVED, f"--trace={trace}")["timelines"]["wall"]
        with open(trace, encoding="utf-8") as file:
            events = [event for event in json.load(file)["traceEvents"] if event["ph"] == "X"]
        for rank, actions in enumerate(reported):
            names = [event["name"] for event in events if event["pid"] == rank]
            for action in actions:  # in two steps; validation goes forwards too
                name = f"{action['kind']} of micro-batch {action['micro_batch']} in stage {action['stage']}"
                self.assertGreaterEqual(names.count(name), 2, name)
            self.assertIn("rows being sent", " ".join(names))


class Checkpoints(Staged, zero_case.Checkpoints):
    def setUp(self):
        super().setUp()
        self.fixed = self.model("--arithmetic=exact", "--dropout=0.1")

    def test_stages_and_schedules_may_change(self):
        whole = self.report_of(L01, *self.fixed, "--steps=5")["digest"]
        for step, (lesson, ranks, *options) in enumerate([(PROGRAM, 4), (PROGRAM, 2, INTERLEAVED, "--micro-batch=2"),
                                                          (PROGRAM, 2, GPIPE, "--partition=3,1"), (self.partners()[-1], 2),
                                                          (PROGRAM, 4, RECOMPUTE)]):
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
        for ranks, *layout in [(2, INTERLEAVED, RECOMPUTE), (4,), (4, INTERLEAVED, "--micro-batch=1"),
                               (2, GPIPE, "--micro-batch=16")]:
            with self.subTest(ranks=ranks, layout=layout):
                self.assertEqual(self.report(*options, *layout, ranks=ranks)["validation"], expected)

    def test_a_sample_is_that_of_lesson_01(self):
        for more in [["--temperature=0.5", "--top-k=20"], *([[]] if ALL else [])]:
            options = self.options("--steps=1", "--arithmetic=exact", "--sample=40", *more)  # the window slides
            text = [re.search(r"# sample:\n(# .*\n)+",
                              self.run_program(*options, *layout, ranks=ranks, program=program).stdout).group()
                    for ranks, program, *layout in [(None, L01), (2, None, INTERLEAVED), (4, None)]]
            self.assertEqual(text[1:], 2 * text[:1])

    def test_what_is_checked(self):
        report = self.report(*self.options("--global-batch=12"), ranks=3)
        names = {check["name"] for check in report["checks"]}
        self.assertTrue({"digest on every rank", "tied embedding on first and last stage", "traffic of a step",
                         "traffic of a step, of the tied embedding", "bytes of optimizer", "bytes of activations"} <= names,
                        names)
        self.assertEqual(report["layout"], {"dp": 1, "tp": 1, "pp": 3})

    def test_the_schedule_is_drawn_as_planned_and_as_it_ran(self):
        done = self.run_program(*self.options(FAST_LINK, GPIPE, "--micro-batch=8"), ranks=2)
        for name in ("planned", "virtual", "wall"):
            drawn = re.search(rf"# {name}, [\d.]+ ms:\n# rank  0 \|(.+)\|\n# rank  1 \|(.+)\|\n", done.stdout)
            self.assertIsNotNone(drawn, done.stdout)
            for line in drawn.groups():
                self.assertEqual(re.sub(r"(.)\1*", r"\1", line.replace(".", "")), "01ab", name)

    def test_a_gradient_that_is_not_finite_is_named(self):
        done = self.run_program(*self.options("--steps=5", "--learning-rate=1e38", "--warmup=0", "--clip=0"), ranks=4)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertRegex(done.stderr, r"step [1-4]: .*wte\.weight is not finite")


class Hanging(Staged, zero_case.Lesson):
    # Rank 2 stops when a file is there.
    stops = 'if [ "$OMPI_COMM_WORLD_RANK" = 2 ]; then (until [ -e "$0" ]; do sleep 0.05; done; kill -STOP $$) & fi; exec "$@"'

    def test_the_watchdog_names_the_stages_that_wait(self):
        """The only step is so long that a rank is stopped in the middle of it."""
        stop = self.path("stop")
        command = ["mpirun", "-np", "4", "bash", "-c", self.stops, stop, os.path.join(BUILD, PROGRAM), "--steps=1",
                   "--global-batch=4096", "--micro-batch=1", "--arithmetic=exact", f"--timeout={math.ceil(SLOWNESS)}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
            for line in job.stdout:
                if "nats/token" in line:
                    break
            time.sleep(0.5 * SLOWNESS)
            with open(stop, "w", encoding="ascii"):
                pass
            _, said = job.communicate(timeout=TIME_LIMIT_S)
        self.assertEqual(job.returncode, 86, said)
        self.assertRegex(said, r"watchdog: rank [13] waits for a message that rank 2 does not send, 16,384 bytes from rank 2 for "
                               r'"(backward of micro-batch \d+ in stage 1|forward of micro-batch \d+ in stage 3)"')
        self.assertIn("rank 2 does not answer", said)
        waiting = re.findall(r'^  rank (\d) waits for [\d,]+ bytes (?:from|to) rank \d for "\w+ of micro-batch \d+ in stage (\d)"',
                             said, re.MULTILINE)
        self.assertEqual(waiting, [(rank, rank) for rank in "013"], said)


class WrongInput(Staged, zero_case.Lesson):
    def test_what_cannot_be_a_pipeline_is_refused_before_anything_is_sent(self):
        for ranks, cases in [
                (1, [([INTERLEAVED], ["2 stages on a single rank", "two ranks", "--virtual-stages=1"])]),
                (2, [(["--layers=1"], ["make 2 stages, but the model has 1 blocks", "at most 1", "--layers"]),
                     ([INTERLEAVED, "--virtual-stages=3"],
                      ["2 ranks with 3 stages each make 6 stages", "4 blocks", "at most 4"]),
                     (["--schedule=interleaved", "--virtual-stages=1073741824"], ["is not a number of stages", "8190"]),
                     (["--virtual-stages=2"], ["--virtual-stages=2 needs --schedule=interleaved", "leave --virtual-stages out"]),
                     (["--virtual-stages=-1"], ["--virtual-stages=-1", "or 0"]),
                     ([INTERLEAVED, "--micro-batch=16"], ["groups of 2", "there are 1", "--micro-batch=1, 2, 4, 8,"]),
                     (["--schedule=2f2b"], ["gpipe, 1f1b or interleaved"]),
                     (["--schedule=zero-bubble"], ["gpipe, 1f1b or interleaved"]),
                     (["--partition=1,2"], ["--partition=1,2: 2 stages with 3 blocks", "4 blocks", "--partition=2,2"]),
                     (["--partition=4"], ["1 stages with 4 blocks", "2 stages are asked for", "--partition=2,2"]),
                     ([INTERLEAVED, "--partition=2,2"], ["4 stages are asked for", "--partition=1,1,1,1"]),
                     (["--partition=0,4"], ["'0' is not a number of blocks from 1 to 4", "--partition=2,2"]),
                     (["--partition=2,x"], ["'x' is not a number of blocks"]),
                     (["--partition=2,2,"], ["'' is not a number of blocks"]),
                     (["--micro-batch=3"], ["--micro-batch=3"]),
                     (["--arithmetic=exact", "--collectives=ring"], ["--collectives=ring", "halving"])]),
                (3, [(["--arithmetic=exact", "--global-batch=12", "--micro-batch=3"], ["--micro-batch=3 is not a power of two"]),
                     (["--global-batch=8", EIGHT, INTERLEAVED], ["groups of 3", "there are 8", "another --global-batch"])]),
                (5, [([], ["5 ranks with a stage each make 5 stages", "4 blocks", "at most 4"])])]:
            self.assert_all_refused(cases, ranks=ranks)

    def test_what_would_fit_is_said_and_fits(self):
        """Each remedy is named when those before it are not enough; rank 1, which has the head, needs more than rank 0."""
        plans = [[GPIPE], ["--schedule=1f1b"], ["--schedule=1f1b", RECOMPUTE], ["--schedule=1f1b", RECOMPUTE, "--micro-batch=1"]]
        with concurrent.futures.ThreadPoolExecutor(max_workers=4) as pool:
            totals = list(pool.map(lambda options: self.total(*options), plans))
            limits = [*totals[1:], totals[-1] - 1]
            refused = list(pool.map(lambda limit: self.run_program(GPIPE, f"--memory-limit={limit}B", ranks=2), limits))
        self.assertEqual(totals, sorted(totals, reverse=True))
        for options, total, done in zip(plans[1:], totals[1:], refused):
            self.assert_is_refusal(done, [f"{total:,} bytes are enough with {' '.join(options)}."])
        self.assert_is_refusal(refused[-1],
                               [f"The least that works with 2 stages is {totals[-1]:,} bytes, with {' '.join(plans[-1])}"])
        for options, total in [(plans[1], totals[1]), (plans[-1], totals[-1])]:
            self.report(self.data, "--steps=1", *options, f"--memory-limit={total}B", ranks=2)

    def total(self, *options):
        done = self.run_program("--dry-run", *options, ranks=2)
        self.assertEqual(done.returncode, 0, done.stderr)
        return int(re.search(r"  total +([\d,]+)", done.stdout).group(1).replace(",", ""))


if __name__ == "__main__":
    unittest.main(verbosity=2)
