"""Lesson 07: the bits of lesson 01 whatever lies where, bytes by tier and by link, limits that only this lesson keeps, and
how it ends when the disk fails."""

import collections
import concurrent.futures
import glob
import itertools
import json
import os
import re
import resource
import signal
import shutil
import subprocess
import time
import unittest

import zero_case
from gathering import RESHARDS, UNITS, Pass, options_of
from program_case import TIME_LIMIT_S
from program_case import BUILD
from zero_case import ALL, L01, LADDER, P

PROGRAM = "lessons/07_offload"
L06 = "lessons/06_zero3"
PARTS = ("optimizer", "gradients", "parameters", "all")
PAGE = 4096  # bytes; blocks on disk are whole pages, and room for a block has one more
LINKS = ("host to device", "device to host", "disk to host", "host to disk")


class Offload:
    """Beside a case of zero_case: a directory in which every run leaves nothing."""

    program = PROGRAM
    watched = ["--persist=64"]
    replicas = "replicated parameters"

    def setUp(self):
        super().setUp()
        self.directory = self.path("disk")
        os.mkdir(self.directory)
        self.addCleanup(self.assert_left, [])

    def assert_left(self, files):
        self.assertEqual(sorted(os.listdir(self.directory)) if os.path.exists(self.directory) else [], files)

    def cut(self, size):
        return "--unit=" + {"1B": "branch", "1GB": "model"}.get(size, "block")

    def off(self, what, tier):
        """The options that offload `what` to the tier host or disk."""
        return [f"--offload={what}", "--tier=" + (tier if tier == "host" else f"disk:{self.directory}")]


class Offloaded:
    """Tensors that rank 0 keeps off the device and transfers in a step of M passes, from the sizes of nano's tensors alone:
    `memory` in bytes by tier and category, `links` in bytes by link. Exact sums are a tree."""

    def __init__(self, ranks, what="all", tier="host", passes=1, tree=False, parameter=4, gradient=4, clip=1, **of_pass):
        self.early = what == "all" and clip == 0  # a block is updated when its sum comes, which is then kept nowhere
        pieces = Pass(**of_pass)
        tied = 256 * 64 if tree else 0  # elements that are summed apart; they are the first of the embedding's piece
        embedding = Pass.piece("embedding", of_pass.get("unit", "block"))
        self.segments = [(self.cut(-(-pieces.sizes[piece] // ranks), tied if piece == embedding else 0), passes * times)
                         for piece, times in pieces.times.items()]
        if pieces.stays > 0:
            self.segments.append((self.cut(-(-pieces.stays // ranks), 0), 1))
        self.all = [block for blocks, _ in self.segments for block in blocks]
        self.tied = [block for block in self.all if block["tied"]]
        self.largest = max(block["elements"] for block in self.all)
        self.page = -(-4 * self.largest // PAGE) * PAGE  # bytes of a block on disk
        self.own = sum(block["elements"] for block in self.all)
        self.lies = {part: tier if what in (part, "all") else "device" for part in PARTS[:3]}
        self.memory, self.links = collections.Counter(), collections.Counter()
        self.update(parameter, gradient)
        if self.lies["gradients"] != "device":
            self.sum(passes, tree, gradient)
        if self.lies["parameters"] != "device":
            for blocks, times in self.segments:
                self.move(blocks, self.lies["parameters"], "device", parameter, times)
        if tier == "disk":  # what comes from the device and goes there passes through the host
            self.memory["host", "staging"] += 2 * (self.page + PAGE)

    @staticmethod
    def cut(elements, tied):
        """A shard's blocks: at most 2^18 elements each, either inside or outside of the tied tensor."""
        borders = sorted({*range(0, elements, 2**18), elements, *([tied] if 0 < tied < elements else [])})
        if 0 < tied < elements:  # from the border on they are counted anew
            borders = sorted({*range(0, tied, 2**18), *range(tied, elements, 2**18), elements})
        return [{"elements": b - a, "tied": a < tied} for a, b in zip(borders, borders[1:])]

    def keep(self, blocks, tier, category, type_, copies=1):
        if tier != "device":
            bytes_ = len(blocks) * self.page if tier == "disk" else type_ * sum(b["elements"] for b in blocks)
            self.memory[tier, category] += copies * bytes_

    def room(self, lies, used, type_, blocks):
        bytes_ = self.page if (lies, used) == ("disk", "host") else type_ * self.largest
        self.memory[used, "staging"] += blocks * (bytes_ + PAGE)

    def move(self, blocks, lies, to, type_, times):
        """Bytes of a type over the device's link; whole blocks over the disk's."""
        elements = sum(block["elements"] for block in blocks)
        if "device" in (lies, to):
            self.links["host to device" if to == "device" else "device to host"] += times * type_ * elements
        if "disk" in (lies, to):
            self.links["disk to host" if lies == "disk" else "host to disk"] += times * len(blocks) * self.page

    def window(self, lies, used):
        """Number of slots: one block is fetched, one used, one stored; between disk and host as many as a shard has."""
        of_a_shard = -(-len(self.all) // len(self.segments))
        return max(3, min(2 * of_a_shard + 1, len(self.all), 2**25 // self.page)) if (lies, used) == ("disk", "host") else 3

    def update(self, parameter, gradient):
        """AdamW: blocks are fetched to the tier where it runs, and stored again."""
        lies, runs = self.lies, "device" if self.lies["optimizer"] == "device" else "host"
        has_master = parameter == 2 or (runs == "host" and lies["parameters"] == "device")
        states = [("optimizer", 4, True, True)] * (3 if has_master else 2)
        for part, type_, comes, goes in [*states, ("parameters", parameter, not has_master, True),
                                         ("gradients", gradient, True, False)]:
            if part != "gradients":
                self.keep(self.all, lies[part], part, type_)
            if lies[part] != runs and not (part == "gradients" and self.early):
                self.room(lies[part], runs, type_, self.window(lies[part], runs))
                self.move(self.all, lies[part], runs, type_, int(comes))
                self.move(self.all, runs, lies[part], type_, int(goes))

    def sum(self, passes, tree, gradient):
        """Gradients of a pass come to the host; sums that wait for their neighbours in the tree, or one sum, lie there or
        are read and written."""
        tier, levels = self.lies["gradients"], passes.bit_length() if tree else 1
        self.links["device to host"] += passes * gradient * sum(b["elements"] for b in [*self.all, *self.tied])
        kept = levels if not self.early else 0 if passes == 1 else max(levels - 1, 1)  # vectors of sums
        self.keep(self.all, tier, "gradients", gradient, copies=min(kept, 1))
        self.keep(self.all, tier, "exact", gradient, copies=max(kept - 1, 0))
        self.keep(self.tied, tier, "exact", gradient, copies=levels - 1)
        for kind in (lambda block: True, lambda block: block["tied"]):
            most = max(sum(map(kind, blocks)) for blocks, _ in self.segments)
            self.room(tier, "host", gradient, most * (2 if tier == "disk" and kept > 0 else 1))
        if tier == "disk":
            self.move([*self.all, *self.tied], "disk", "host", gradient, passes - 1)
            self.move(self.all, "host", "disk", gradient, passes - (1 if self.early else 0))
            self.move(self.tied, "host", "disk", gradient, passes - 1)
            self.room("disk", "host", gradient, 2 if passes > 1 else 0)


class Exactness(Offload, zero_case.Exactness):
    def variants(self):
        if ALL:
            gatherings = [("block", 0, "after-forward"), ("block", 1, "after-backward", 1000000),
                          ("branch", 1, "after-forward", 4096), ("branch", 2, "after-backward", 64),
                          ("model", 0, "after-forward", 64)]
            return [(ranks, *self.off(what, tier), f"--micro-batch={B}", f"--recompute={recompute}", *options_of(*gathering))
                    for ranks, what, tier, B, recompute, gathering in itertools.product(
                        (1, 2, 4, 8), PARTS, ("host", "disk"), (1, 4), ("none", "block"), gatherings)
                    if B * ranks <= 16]
        return [
            (1, *self.off("all", "disk"), "--micro-batch=4", *options_of("block", 1, "after-backward", 64)),
            (1, *self.off("gradients", "disk"), "--micro-batch=2", "--recompute=block"),
            (2, *self.off("all", "host"), "--micro-batch=1", *options_of("branch", 0, "after-forward")),
            (2, *self.off("optimizer", "disk"), "--collectives=shared", *options_of("model", 0, "after-forward", 4096)),
            (2, *self.off("parameters", "disk"), "--micro-batch=4", *options_of("branch", 2, "after-backward", 1000000)),
            (2, *self.off("gradients", "host"), "--micro-batch=2", "--recompute=block"),
            (4, *self.off("all", "disk"), "--micro-batch=1", "--recompute=block",
             *options_of("branch", 1, "after-backward", 256)),
            (4, *self.off("parameters", "host"), "--micro-batch=2", "--recompute=block",
             *options_of("block", 2, "after-forward")),
            (4, *self.off("optimizer", "host"), "--micro-batch=2", "--collectives=shared"),
            (8, *self.off("all", "disk"), "--micro-batch=1", "--threads=2", *options_of("branch", 2, "after-forward", 64)),
        ]

    def test_in_bf16_too(self):
        fixed = [*self.small, "--arithmetic=exact", "--dropout=0.1", "--precision=bf16"]
        cases = [(2, "all", "disk"), (4, "parameters", "host"), (2, "gradients", "host")]
        if ALL:
            cases = itertools.product((1, 2, 4), PARTS, ("host", "disk"))
        self.same_digest(fixed, [(ranks, *self.off(what, tier), f"--micro-batch={8 // ranks}")
                                 for ranks, what, tier in cases])

    def test_updates_beside_the_backward_pass(self):
        """Without clipping each block is updated when its sum of gradients is complete; no pass may still need it."""
        fixed = [*self.small, "--arithmetic=exact", "--dropout=0.1", "--clip=0"]
        cases = [(1, "disk", "--micro-batch=4", *options_of("block", 1, "after-backward", 64)),
                 (2, "host", "--micro-batch=1", "--recompute=block", *options_of("branch", 2, "after-forward")),
                 (2, "disk", "--micro-batch=4", *options_of("model", 0, "after-forward", 4096)),
                 (4, "disk", "--micro-batch=2", "--recompute=block", *options_of("branch", 1, "after-backward", 256)),
                 (4, "host", "--micro-batch=1", *options_of("block", 2, "after-forward", 64))]
        if ALL:
            cases = [(ranks, tier, f"--micro-batch={B}", f"--recompute={recompute}", *options_of(*gathering))
                     for ranks, tier, B, recompute, gathering in itertools.product(
                         (1, 2, 4, 8), ("host", "disk"), (1, 2), ("none", "block"),
                         itertools.product(UNITS, (0, 1), RESHARDS, (0, 64)))]
        self.same_digest(fixed, [(ranks, *self.off("all", tier), *options) for ranks, tier, *options in cases])
        self.same_digest([*fixed, "--precision=bf16"],
                         [(ranks, *self.off("all", tier), "--micro-batch=2") for ranks, tier in ((2, "disk"), (4, "host"))])

    def test_several_blocks_a_segment(self):
        """More than 2^18 elements are cut into blocks, with slots for some of a vector. Here a shard has four."""
        fixed = [self.data, "--layers=12", "--sequence=16", "--steps=2", "--arithmetic=exact", "--recompute=block"]
        cases = [(1, "all", "disk"), (1, "gradients", "host")]
        if ALL:
            cases = itertools.product((1, 2), PARTS, ("host", "disk"))
        self.same_digest(fixed, [(ranks, *self.off(what, tier), "--unit=model", "--prefetch=0",
                                  f"--micro-batch={8 // ranks}") for ranks, what, tier in cases])


class AnyNumber(Offload, zero_case.AnyNumber):
    def test_wherever_the_sums_are(self):
        for G, ranks, clip, *options in [(7, 3, 1, *self.off("all", "disk")), (12, 5, 1, *self.off("gradients", "host")),
                                         (7, 2, 0, *self.off("all", "host")), (6, 3, 0, *self.off("all", "disk"))]:
            fixed = [*self.small, "--sequence=32", "--arithmetic=exact", f"--global-batch={G}", f"--clip={clip}"]
            with self.subTest(G=G, ranks=ranks, clip=clip, options=options):
                report = self.report(*fixed, *options, ranks=ranks)
                self.assertEqual(report["digest"], self.report_of(L01, *fixed)["digest"])


class FastSums(Offload, zero_case.Lesson):
    def test_what_lies_where_changes_no_bit_of_lesson_06(self):
        """With the norm's order of terms left out: clipping adds the squares of a block up first."""
        cases = [(3, "all", "disk"), (5, "parameters", "host")]
        if ALL:
            cases = itertools.product((1, 2, 3, 4, 5), PARTS, ("host", "disk"))
        for ranks, what, tier in cases:
            with self.subTest(ranks=ranks, what=what, tier=tier):
                fixed = [*self.small, f"--global-batch={4 * ranks}", "--micro-batch=2", "--clip=0", "--unit=branch"]
                self.assertEqual(self.report(*fixed, *self.off(what, tier), ranks=ranks)["digest"],
                                 self.report_of(L06, *fixed, ranks=ranks)["digest"])

    def test_the_program_prints_its_own_deviation(self):
        report = self.report(self.data, "--steps=4", "--compare=4", "--micro-batch=2", "--collectives=library",
                             *self.off("all", "disk"), ranks=4)
        self.assertTrue(0 < report["deviation"]["loss"] <= 1e-6, report["deviation"])
        self.assertTrue(0 < report["deviation"]["parameters"] <= 1e-5, report["deviation"])

    def test_losses_stay_near_those_of_one_device_on_any_number_of_ranks(self):
        for ranks, batch, what, tier in [(3, 12, "all", "disk"), (5, 10, "optimizer", "host")]:
            with self.subTest(ranks=ranks, what=what, tier=tier):
                fixed = [self.data, "--steps=10", f"--global-batch={batch}"]
                report = self.report(*fixed, "--micro-batch=2", *self.off(what, tier), ranks=ranks)
                for a, b in zip(report["loss"], self.report_of(L01, *fixed)["loss"]):
                    self.assertLess(abs(a - b), 1e-6 * b)


class Bytes(Offload, zero_case.Lesson):
    def assert_bytes(self, ranks, what, tier, passes=1, tree=False, types=("f32", "f32"), clip=1, **of_pass):
        """Bytes of rank 0 in each tier and over each link, and the rest on the device."""
        size = {"f32": 4, "bf16": 2}
        expected = Offloaded(ranks, what, tier, passes, tree, size[types[0]], size[types[1]], clip, **of_pass)
        gathering = [f"--{name}={value}" for name, value in of_pass.items() if name != "recompute"]
        report = self.report(self.data, "--sequence=16", "--steps=2", "--sample=2", *self.off(what, tier), *gathering,
                             f"--micro-batch={16 // ranks // passes}", f"--arithmetic={('fast', 'exact')[tree]}",
                             f"--precision={types[0]}", f"--gradients={types[1]}", f"--clip={clip}",
                             f"--recompute={('none', 'block')[of_pass.get('recompute', False)]}", ranks=ranks)
        measured = {tuple(check["name"].removeprefix("bytes of ").split(", ")): check["measured"]
                    for check in report["checks"] if re.match("bytes of (host|disk), ", check["name"])}
        device = report["memory_ranks"][0]["device"]
        measured["device", "staging"] = device["staging"]["peak"]
        self.assertEqual(+collections.Counter(measured), +expected.memory)
        self.assertEqual({link: report["links"].get(link, {"bytes": 0})["bytes"] for link in LINKS},
                         {link: expected.links[link] for link in LINKS})
        for tier_ in ("host", "disk"):
            of_tier = sum(n for place, n in expected.memory.items() if place[0] == tier_)
            self.assertEqual(report["tiers"][tier_], {"bytes": of_tier, "peak": of_tier, "formula": of_tier})
        for part, bytes_ in (("optimizer", 8 if types[0] == "f32" else 12), ("gradients", size[types[1]])):
            left = bytes_ * expected.own if expected.lies[part] == "device" else 0
            self.assertEqual(device[part]["current"], left, part)
        pieces = Pass(**of_pass)
        own = expected.own - -(-pieces.stays // ranks) if expected.lies["parameters"] == "device" else 0
        self.assertEqual(device["parameters"]["current"], size[types[0]] * (own + pieces.stays))
        self.assertEqual(device["parameters"]["peak"] - device["parameters"]["current"], size[types[0]] * pieces.most)

    def test_in_each_tier_and_over_each_link(self):
        cases = [
            (1, "all", "host", {}),
            (2, "all", "disk", {}),
            (4, "all", "disk", {"passes": 4, "tree": True}),
            (2, "all", "host", {"passes": 4, "tree": True, "persist": 64}),
            (2, "gradients", "disk", {"passes": 2, "persist": 64}),
            (1, "gradients", "host", {"passes": 2, "tree": True, "unit": "branch", "recompute": True}),
            (4, "gradients", "disk", {"passes": 2, "tree": True, "types": ("bf16", "f32")}),
            (2, "optimizer", "host", {"types": ("bf16", "bf16")}),
            (4, "optimizer", "disk", {"passes": 2, "unit": "branch", "prefetch": 2}),
            (2, "parameters", "host", {"passes": 4, "reshard": "after-backward", "persist": 4096}),
            (2, "parameters", "disk", {"passes": 2, "types": ("bf16", "f32"), "recompute": True, "prefetch": 0}),
            (1, "parameters", "disk", {"layers": 8, "unit": "model", "prefetch": 0}),
            (2, "all", "disk", {"layers": 17, "unit": "model", "prefetch": 0, "passes": 2, "tree": True}),
            (2, "all", "disk", {"clip": 0}),
            (1, "all", "host", {"clip": 0, "passes": 4, "tree": True, "types": ("bf16", "f32")}),
            (4, "all", "disk", {"clip": 0, "passes": 4, "tree": True, "persist": 64}),
            (2, "all", "disk", {"clip": 0, "layers": 17, "unit": "model", "prefetch": 0, "passes": 2}),
        ]
        if ALL:
            cases = [(ranks, what, tier, {"passes": passes, "tree": tree, "types": types, "unit": unit, "persist": persist})
                     for ranks, what, tier, passes, tree, types, (unit, persist) in itertools.product(
                         (1, 2, 4), PARTS, ("host", "disk"), (1, 2, 4), (False, True),
                         (("f32", "f32"), ("bf16", "f32")), zip(UNITS, (0, 64, 4096)))]
        for ranks, what, tier, options in cases:
            with self.subTest(ranks=ranks, what=what, tier=tier, **options):
                self.assert_bytes(ranks, what, tier, **options)

    def test_figures_of_that(self):
        """The header's figures: 16 P / N below the device; over its links 8 and 4 P / N, over the disk's 24 and 16 P / N."""
        host, disk = Offloaded(2), Offloaded(2, tier="disk")
        for part, bytes_ in (("parameters", 4), ("gradients", 4), ("optimizer", 8)):
            self.assertEqual(host.memory["host", part], bytes_ * P // 2)
            self.assertTrue(bytes_ * P // 2 < disk.memory["disk", part] < 1.5 * bytes_ * P // 2)  # nano's blocks are small
        self.assertEqual(host.links["device to host"], 4 * P // 2)
        self.assertTrue(0.85 * 8 * P // 2 < host.links["host to device"] < 8 * P // 2)  # the last block stays
        block = disk.page
        self.assertEqual(disk.links["host to disk"], 4 * len(disk.all) * block)
        self.assertEqual(disk.links["disk to host"], (4 + 2) * len(disk.all) * block - 2 * block)  # and that of the head

    def test_a_tree_of_sums_over_passes_has_a_level_for_each_digit(self):
        levels = {M: Offloaded(1, passes=M, tree=True).memory["host", "exact"] for M in (1, 2, 3, 4)}
        tied = 4 * (P + 256 * 64)
        self.assertEqual(levels, {1: 0, 2: tied, 3: tied, 4: 2 * tied})

    def test_with_nothing_offloaded_memory_and_bits_are_those_of_lesson_06(self):
        for options in ([], ["--precision=bf16", "--persist=64", "--micro-batch=2"]):
            reports = [self.report_of(program, *self.small, *options, *off, ranks=2)
                       for program, *off in ((L06,), (PROGRAM, "--offload=none"))]
            for what in ("digest", "memory", "traffic"):
                self.assertEqual(reports[0][what], reports[1][what], what)

    def test_messages_are_those_of_lesson_06(self):
        for options in (["--micro-batch=2"], ["--precision=bf16", "--unit=branch", "--persist=64"]):
            traffic = self.report(*self.small, *options, *self.off("all", "disk"), ranks=4)["traffic"]
            self.assertEqual(traffic, self.report_of(L06, *self.small, *options, ranks=4)["traffic"])

    def test_validation_sampling_saving_and_loading_need_no_more(self):
        file, fixed = f"--checkpoint={self.path('run.h5')}", [self.data, "--micro-batch=4", *self.off("all", "disk")]
        plain = self.report(*fixed, "--steps=1", ranks=2)
        for options in (["--steps=2", "--evaluate-every=1", "--checkpoint-every=1"], ["--steps=3", "--resume"]):
            report = self.report(*fixed, *options, file, ranks=2)
            for told in ("memory_ranks", "tiers"):
                self.assertEqual(report[told], plain[told], options)


class EarlyUpdates(Offload, zero_case.Lesson):
    """Without clipping, with everything offloaded."""

    def test_norm_loss_and_digest_are_those_of_lesson_06(self):
        fixed = [self.data, "--steps=3", "--arithmetic=exact", "--clip=0", "--micro-batch=2"]
        for options in ([], ["--mask=prefix:8", "--precision=bf16"]):
            expected = self.report_of(L06, *fixed, *options, ranks=2)
            for tier in ("host", "disk"):
                report = self.report(*fixed, *options, *self.off("all", tier), ranks=2)
                for told in ("loss", "grad_norm", "digest", "traffic"):
                    self.assertEqual(report[told], expected[told], told)

    def test_adamw_reads_and_writes_while_the_backward_pass_goes_on(self):
        trace = self.path("trace.json")
        self.report(self.data, "--steps=3", "--clip=0", f"--trace={trace}", *self.off("all", "disk"), ranks=2)
        with open(trace, encoding="utf-8") as file:
            events = [event for event in json.load(file)["traceEvents"] if event["ph"] == "X" and event["pid"] == 0]
        stored = [event["ts"] for event in events if event["name"].startswith("storing block")]
        steps = [(event["ts"], event["ts"] + event["dur"]) for event in events if event["name"] == "training step"]
        sums = [event["ts"] for event in events if event["name"] == "summing gradients"]
        for first, end in steps:
            last = max(ts for ts in sums if first < ts < end)  # the embedding's gradients
            self.assertGreater(sum(first < ts < last for ts in stored), 0)


class Limits(Offload, zero_case.Lesson):
    SMALL = ["--recompute=block", "--micro-batch=1"]

    def plan(self, *options, ranks):
        """Bytes of the device that a dry run counts on."""
        done = self.run_program("--dry-run", *options, ranks=ranks)
        self.assertEqual(done.returncode, 0, done.stderr)
        return int(re.search(r"  total +([\d,]+)", done.stdout).group(1).replace(",", ""))

    def assert_below(self, limit, report):
        for rank in report["memory_ranks"]:
            self.assertLessEqual(sum(category["peak"] for category in rank["device"].values()), limit)

    def test_the_peak_of_the_device_is_never_above_the_limit(self):
        cases = [("all", "host", []), ("optimizer", "disk", ["--arithmetic=exact"]),
                 ("gradients", "host", ["--precision=bf16"]), ("parameters", "disk", ["--arithmetic=exact", "--persist=64"])]
        if ALL:
            cases = itertools.product(PARTS, ("host", "disk"), [options for *_, options in cases])
        for what, tier, options in cases:
            with self.subTest(what=what, tier=tier, options=options):
                options = [*self.off(what, tier), *options, "--micro-batch=2", self.data]
                most = self.plan(*options, ranks=2)
                report = self.report(*options, "--steps=2", "--sample=2", f"--memory-limit={most}B", ranks=2)
                self.assert_below(most, report)

    def test_a_model_that_no_lesson_below_can_train(self):
        """Nano under 2 MB; its 16 bytes a parameter are 3.5 MB."""
        def run(lesson):
            return self.run_program(*self.SMALL, "--memory-limit=2MB", ranks=None if lesson == L01 else 2, program=lesson)

        with concurrent.futures.ThreadPoolExecutor() as pool:
            ends = list(pool.map(run, LADDER[:LADDER.index(PROGRAM)]))
        for lesson, done in zip(LADDER, ends):
            with self.subTest(lesson=lesson):
                self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
                self.assertRegex(done.stderr,
                                 r"(?s)^error: --memory-limit=2,000,000 is too small: this run needs ([\d,]+) bytes a rank"
                                 r"\.\n +parameters +[\d,]+\n +gradients +[\d,]+\n +optimizer +[\d,]+\n.* +total +\1\n")
        for tier in ("host", "disk"):
            report = self.report(self.data, "--steps=3", *self.SMALL, "--memory-limit=2MB", *self.off("all", tier), ranks=2)
            self.assertLess(report["loss"][-1], report["loss"][0])
            self.assert_below(2_000_000, report)

    def test_gpt2_under_1_gb(self):
        """Its 16 bytes a parameter are 1,991,036,928."""
        gpt2 = ["--model=gpt2", *self.SMALL, "--memory-limit=1GB"]
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                self.assertLessEqual(self.plan(*gpt2, ranks=ranks), 1_000_000_000)
                done = self.run_program("--dry-run", *gpt2, ranks=ranks, program=L06)
                self.assertEqual(done.returncode, 2, done.stdout)
                self.assertIn("--memory-limit=1,000,000,000 is too small", done.stderr)

    @unittest.skipUnless(ALL, "takes a minute")
    def test_gpt2_trains_under_1_gb(self):
        report = self.report("--model=gpt2", *self.SMALL, "--memory-limit=1GB", "--sequence=256", "--global-batch=2",
                             "--steps=2", self.data, *self.off("all", "disk"), ranks=2)
        self.assert_below(1_000_000_000, report)

    def test_the_least_that_works_is_said_and_works(self):
        """The refusal names the smallest run that works; of the given options it keeps those that cost no memory."""
        for ranks, *options in [(2,), (None, "--offload=optimizer", "--arithmetic=exact"),
                                (None, "--reshard=after-backward", "--persist=4096", "--prefetch=3")]:
            with self.subTest(ranks=ranks, options=options):
                text = self.assert_refused(*options, "--memory-limit=1kB", ranks=ranks,
                                           says=["--memory-limit=1,000 is too small", "Or use more ranks"]).stderr
                least, how = re.search(r"The least that works is ([\d,]+) bytes, with (.*)\. Or use", text).groups()
                least, small = int(least.replace(",", "")), how.split()
                said = {option.split("=")[0] for option in small}
                options = [o for o in options if o.split("=")[0] not in said]
                self.assertEqual(least, self.plan(*self.SMALL, "--prefetch=0", "--unit=branch",
                                                  *[o for o in options if o.startswith("--arithmetic")], ranks=ranks))
                self.report(self.data, "--steps=1", *options, *small, f"--memory-limit={least}B", ranks=ranks)
                self.assert_refused(*options, *small, f"--memory-limit={least - 1}B", ranks=ranks,
                                    says=[f"this run needs {least:,} bytes a rank"])

    def test_what_would_fit_is_said_and_fits(self):
        for options, limit, says in [(["--offload=optimizer"], "22MB", "--offload=all"),
                                     (["--offload=gradients"], "10MB", "--offload=all --recompute=block"),
                                     ([], "2MB", "--recompute=block --micro-batch=1")]:
            with self.subTest(options=options):
                text = self.assert_refused(*options, f"--memory-limit={limit}",
                                           says=[f"bytes are enough with {says}."]).stderr
                enough = int(re.search(r"([\d,]+) bytes are enough", text).group(1).replace(",", ""))
                self.assertEqual(self.plan(*says.split(), f"--memory-limit={limit}", ranks=None), enough)

    def layers_of(self, bytes_):
        """Layers of the width of GPT-2's largest model, so many that the state of each of two ranks is larger than this."""
        width = ["--model=gpt2-xl", "--vocabulary=256", "--context=64", *self.SMALL]
        return [*width, f"--layers={bytes_ // (16 * 12 * 1600 ** 2) + 100}"]

    def test_a_host_that_is_too_small(self):
        with open("/proc/meminfo", encoding="ascii") as file:
            has = 1024 * int(re.search(r"MemTotal: +(\d+) kB", file.read()).group(1))
        self.assert_refused(*self.layers_of(has), ranks=2,
                            says=["bytes of host memory per rank", "to each of 2 ranks", "optimizer",
                                  "--tier=disk:DIR"])

    def test_a_disk_that_is_too_small(self):
        files = os.statvfs(self.directory)
        options = self.layers_of(files.f_bavail * files.f_frsize)
        self.assert_refused(*options, *self.off("all", "disk"), "--keep", ranks=2,
                            says=[f"--tier=disk:{self.directory} cannot be used: it needs",
                                  "for the ranks of this machine, and has", "larger disk"])


class Checkpoints(Offload, zero_case.Checkpoints):
    def test_what_lies_where_may_change(self):
        whole = self.report_of(L01, *self.fixed, "--steps=5")["digest"]
        for step, (lesson, ranks, *options) in enumerate([(PROGRAM, 4, *self.off("parameters", "disk")),
                                                          (PROGRAM, 2, *self.off("optimizer", "host"), "--micro-batch=2"),
                                                          (L06, 2),
                                                          (PROGRAM, 1, *self.off("gradients", "disk"), "--unit=branch"),
                                                          (PROGRAM, 4, *self.off("all", "disk"), "--persist=64")]):
            report = self.report_of(lesson, *self.fixed, f"--steps={step + 1}", self.checkpoint, *options,
                                    *(["--resume"] if step > 0 else []), ranks=ranks)
            self.assertEqual(report["first_step"], step)
        self.assertEqual(report["digest"], whole)

    def test_parameters_to_start_from(self):
        self.report(*self.fixed, "--steps=2", self.checkpoint, *self.off("all", "disk"), ranks=4)
        options = [*self.fixed, "--steps=2", "--seed=2", f"--initial={self.file}"]
        expected = self.report_of(L01, *options)["digest"]
        for ranks, what, tier in [(2, "all", "disk"), (4, "optimizer", "host"), (1, "parameters", "disk")]:
            self.assertEqual(self.report(*options, *self.off(what, tier), ranks=ranks)["digest"], expected)


class Output(Offload, zero_case.Output):
    def transfers(self, *options):
        """By rank and kind, the time of transfers in steps, and how much of it no wait overlapped; in us."""
        trace = self.path("trace.json")
        self.report(self.data, "--steps=3", "--micro-batch=4", f"--trace={trace}", *options, ranks=2)
        with open(trace, encoding="utf-8") as file:
            events = [event for event in json.load(file)["traceEvents"] if event["ph"] == "X"]
        times = {}
        for rank, kind in itertools.product((0, 1), ("fetching block", "storing block")):
            spans = {name: [(e["ts"], e["ts"] + e["dur"]) for e in events
                            if e["pid"] == rank and e["name"].startswith(name)]
                     for name in ("training step", "waiting for a block", kind)}
            moved = [(a, b) for a, b in spans[kind] if any(s < a and b < e for s, e in spans["training step"])]
            waited = sum(max(0, min(b, e) - max(a, s)) for a, b in moved for s, e in spans["waiting for a block"])
            whole = sum(b - a for a, b in moved)
            times[rank, kind] = (whole, whole - waited)
        return times

    def test_the_trace_shows_transfers_beside_the_computing(self):
        for what, tier, kinds in [("all", "disk", 2), ("all", "host", 1), ("optimizer", "disk", 2)]:
            with self.subTest(what=what, tier=tier):
                times = self.transfers(*self.off(what, tier))
                for (rank, kind), (whole, hidden) in times.items():
                    if kinds == 1 and kind == "storing block":
                        self.assertEqual(whole, 0)  # on the host AdamW runs where the states are
                        continue
                    self.assertGreater(whole, 0)
                    if what == "all":  # nano's AdamW alone is too short to hide much
                        self.assertGreater(hidden, 0, (rank, kind))

    def test_tiers_and_links_are_told(self):
        done = self.run_program(*self.small, *self.off("all", "disk"), ranks=2)
        self.assertEqual(done.returncode, 0, done.stderr)
        for text in (r"\ntiers\n", r"\n  disk, optimizer +[\d,]+ += [\d,]+ +bytes of rank 0\n", r"\nlinks\n",
                     r"\n  disk to host +[\d,]+ += [\d,]+ +bytes a step, at \S+ GB/s; \S+ GB/s would hide them\n",
                     r"\n  disk by itself +\S+ +GB/s", r"\n  exposed +\S+ +s a step"):
            self.assertRegex(done.stdout, text)

    def test_the_time_of_a_step_has_that_of_the_links(self):
        report = self.report(self.data, "--steps=4", *self.off("all", "disk"))
        self.assertGreater(report["links"]["disk"]["GBps"], 0)
        for link in ("disk to host", "host to disk"):
            self.assertTrue(0 < report["links"][link]["busy_s"] < 2 * report["links"]["step_s"], report["links"])
        self.assertTrue(0 <= report["links"]["exposed_s"] < report["links"]["step_s"], report["links"])

    def test_what_is_checked(self):
        report = self.report(*self.small, *self.off("all", "disk"), "--persist=64", ranks=2)
        names = {check["name"] for check in report["checks"]}
        self.assertTrue({self.replicas, "traffic of a step", "bytes of host, staging", "bytes of disk, optimizer",
                         *(f"bytes from {link}" for link in LINKS)} <= names, names)

    def test_a_dry_run_plans_every_tier_and_link_and_touches_none(self):
        done = self.run_program("--dry-run", *self.off("all", "disk"), "--micro-batch=4", ranks=2)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assert_left([])
        nowhere = f"--tier=disk:{self.path('nowhere')}"
        self.assert_refused("--dry-run", nowhere, ranks=2, says=[f"{nowhere} cannot be used: No such file"])
        self.run_program("--dry-run", nowhere, "--ranks=2")  # a job elsewhere
        expected = Offloaded(2, tier="disk", passes=2)
        told = {name: int(bytes_.replace(",", "")) for name, bytes_ in
                re.findall(r"^  ((?:host|disk), \w+|\w+ to \w+) +([\d,]+) +bytes", done.stdout, re.MULTILINE)}
        self.assertEqual(told, {", ".join(place): n for place, n in expected.memory.items() if n} | +expected.links)


class Files(Offload, zero_case.Lesson):
    def test_one_a_rank_is_left_when_asked(self):
        run = [*self.small, *self.off("all", "disk"), "--global-batch=12"]
        self.report(*run, ranks=3)
        self.assert_left([])
        digests = {self.report(*run, "--keep", ranks=3)["digest"] for _ in range(2)}
        self.assertEqual(len(digests), 1)  # the second run's files take the place of the first's
        self.assert_left([f"offload.rank{r}" for r in range(3)])
        own = Offloaded(3, tier="disk", layers=2)
        size = os.path.getsize(os.path.join(self.directory, "offload.rank0"))
        self.assertEqual(size // own.page, 4 * len(own.all))  # four vectors; behind them the checksums
        shutil.rmtree(self.directory)


class Failures(Offload, zero_case.Lesson):
    """Failures of a disk, during a run that has saved a checkpoint."""

    def setUp(self):
        super().setUp()
        self.file = self.path("run.h5")
        self.fixed = [self.data, "--layers=1", "--arithmetic=exact", "--steps=100000"]

    def start(self, *options, ranks=2):
        """Starts a run that continues until it is ended; returns when it has saved a checkpoint."""
        # A write above a limit is then no signal, but fails.
        launcher = ["mpirun", "-np", str(ranks), "sh", "-c", 'trap "" XFSZ; exec "$@"', "sh"]
        command = [*launcher, os.path.join(BUILD, PROGRAM), *self.fixed, *self.off("all", "disk"),
                   f"--checkpoint={self.file}", "--checkpoint-every=2", *options]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.communicate)
        self.addCleanup(process.terminate)
        until = time.monotonic() + TIME_LIMIT_S
        while not os.path.exists(self.file):
            self.assertIsNone(process.poll(), "the run ended early")
            self.assertLess(time.monotonic(), until, "no checkpoint was saved")
            time.sleep(0.01)
        return process

    def open_files(self):
        """The files without a name in the directory, as paths below /proc."""
        found = []
        for path in glob.glob("/proc/[0-9]*/fd/*"):
            try:
                target = os.readlink(path)
            except OSError:  # closed, or somebody else's
                continue
            if target.startswith(os.path.realpath(self.directory) + "/") and target.endswith(" (deleted)"):
                found.append(path)
        return found

    def assert_ends(self, process, says):
        """The run ends with status 1 and one message, and lesson 01 resumes from its checkpoint with the same bits."""
        _, text = process.communicate(timeout=TIME_LIMIT_S)
        self.assertEqual(process.returncode, 1, text)
        self.assertRegex(text, says)
        self.assertEqual(len(re.findall(r"rank \d of 2: ", text)), 1, text)
        until = time.monotonic() + TIME_LIMIT_S
        while self.open_files():  # mpirun may end before the system has taken the last rank apart
            self.assertLess(time.monotonic(), until, self.open_files())
            time.sleep(0.01)
        resume = [*self.fixed, f"--checkpoint={self.file}", "--resume"]
        refused = self.run_program(*resume, "--stop-after=1", program=L01).stderr
        saved = int(re.search(r"made after step (\d+)", refused).group(1))
        resumed = self.report_of(L01, *resume, f"--stop-after={saved + 1}")
        self.assertEqual(resumed["first_step"], saved)
        self.assertEqual(resumed["digest"], self.report_of(L01, *self.fixed[:-1], f"--steps={saved + 1}")["digest"])

    def test_a_byte_that_changed(self):
        process = self.start()
        files = self.open_files()
        self.assertEqual(len(files), 2)
        file = os.open(files[0], os.O_RDWR)
        for offset in range(0, os.fstat(file).st_size, PAGE):  # of every block: who knows which one is read next
            byte = os.pread(file, 1, offset)[0]
            os.pwrite(file, bytes([byte ^ 1]), offset)
        os.close(file)
        self.assert_ends(process, r"rank (\d) of 2: .*the offload file of rank \1 in \S+: block \d+ of \d+ "
                                  r"\(bytes [\d,]+ to [\d,]+\) is damaged: its checksum is [0-9a-f]+, and")

    def test_a_directory_that_vanishes(self):
        process = self.start()
        os.rmdir(self.directory)
        self.assert_ends(process, r"rank \d of 2: .*the directory \S+ is gone")

    def test_another_directory_in_its_place(self):
        process = self.start()
        ranks = [int(file.split("/")[2]) for file in self.open_files()]
        for rank in ranks:  # none of them looks between the two changes
            os.kill(rank, signal.SIGSTOP)
        os.rename(self.directory, self.path("moved"))
        os.mkdir(self.directory)
        for rank in ranks:
            os.kill(rank, signal.SIGCONT)
        self.assert_ends(process, r"rank \d of 2: .*the directory \S+ is gone \(another one has its name now\)")

    def test_a_disk_that_takes_no_more(self):
        process = self.start()
        ranks = [int(file.split("/")[2]) for file in self.open_files()]
        self.assertEqual(len(ranks), 2)
        for rank in ranks:
            hard = resource.prlimit(rank, resource.RLIMIT_FSIZE)[1]
            resource.prlimit(rank, resource.RLIMIT_FSIZE, (PAGE, hard))
        self.assert_ends(process, r"rank (\d) of 2: .*(the offload file of rank \1 in \S+: block \d+ .*cannot be written: "
                                  r"File too large|run\.h5)")  # whichever comes first

    def test_a_kept_file_that_somebody_removes(self):
        process = self.start("--keep")
        os.remove(os.path.join(self.directory, "offload.rank1"))
        self.assert_ends(process, r"rank 1 of 2: .*offload\.rank1 is gone: it was removed")
        self.assert_left(["offload.rank0"])
        os.remove(os.path.join(self.directory, "offload.rank0"))

    def test_a_directory_serves_one_job(self):
        process = self.start()
        self.assert_refused(self.data, "--steps=1", *self.off("all", "disk"), ranks=2,
                            says=[f"--tier=disk:{self.directory} cannot be used: another job uses it",
                                  "Choose another directory"])
        process.terminate()
        process.communicate(timeout=TIME_LIMIT_S)
        self.report(self.data, "--steps=1", *self.off("all", "disk"), ranks=2)  # it is free again


class WrongInput(Offload, zero_case.WrongInput):
    refused = [
        (["--tier=floppy"], ["--tier=floppy is not a tier", "disk:DIR"]),
        (["--tier=disk:/nowhere/at/all"],
         ["--tier=disk:/nowhere/at/all cannot be used: No such file or directory", "mkdir"]),
    ]

    def test_by_one_rank_too(self):
        self.assert_all_refused([
            (["--tier=disk:"], ["--tier=disk: is not a tier"]),
            (["--tier=disk"], ["--tier=disk is not a tier"]),
            (["--keep"], ["--keep needs files, and --tier=host has none"]),
            (["--offload=everything"], ["--offload=everything", "optimizer"]),
            (["--tier=disk:/proc/version"], ["--tier=disk:/proc/version cannot be used: it is not a directory"]),
            (["--dry-run", "--tier=floppy"], ["--tier=floppy is not a tier"]),
            (["--prefetch=18"], ["--prefetch=18", "18 places"]),
            (["--bucket=1B"], ["--bucket"]),
        ])

    def test_a_directory_that_may_only_be_read(self):
        os.chmod(self.directory, 0o555)
        self.addCleanup(os.chmod, self.directory, 0o755)
        as_others = []
        if os.geteuid() == 0:  # who may write everywhere, unless that is taken away
            if shutil.which("setpriv") is None:
                self.skipTest("the superuser may write everywhere")
            as_others = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-dac_override"]
        done = subprocess.run([*as_others, "mpirun", "-np", "2", os.path.join(BUILD, PROGRAM), *self.off("all", "disk")],
                              capture_output=True, text=True, timeout=TIME_LIMIT_S)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(done.stderr.count("error:"), 1, done.stderr)
        for text in (f"--tier=disk:{self.directory} cannot be used", "Permission denied",
                     "Choose a directory that you may write to"):
            self.assertIn(text, done.stderr)

    def test_a_run_that_is_refused_for_something_else_leaves_nothing(self):
        disk = self.off("all", "disk")
        self.assert_all_refused([([*disk, f"--checkpoint={self.path('none.h5')}", "--resume"], ["none.h5"]),
                                 ([*disk, "--keep", "--memory-limit=1kB"], ["--memory-limit"]),
                                 ([*disk, "--keep", f"--data={self.path('none.h5')}"], ["none.h5"])])


if __name__ == "__main__":
    unittest.main()
