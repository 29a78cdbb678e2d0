"""Lesson 13: the bits of lesson 01 on every mesh, stage and tier, bytes of each axis and tier by the published figures,
checkpoints of other layouts, and what is refused.

With RANKWISE_ALL every combination is tried; else a set that covers them.
"""

import itertools
import re
import unittest

import zero_case
from zero_case import ALL, L01, P

PROGRAM = "lessons/13_mesh_zero3"
L06, L07, L08, L10 = ("lessons/06_zero3", "lessons/07_offload", "lessons/08_tensor_parallel", "lessons/10_3d_parallel")
HALVES, REGATHER, RECOMPUTE = "--sequence-parallel", "--regather", "--recompute=block"
ZERO2 = "--zero=2"
T, C, L, V = 64, 64, 4, 256  # of nano
UNDIVIDED = T * C + L * 6 * C + 2 * C  # parameters of nano that every tensor-parallel rank has


def mesh(replicas, shard, tp, *options):
    """The number of ranks, and the options that make them a mesh."""
    return (replicas * shard * tp, f"--tp={tp}", f"--shard-ranks={shard}", *options)


def shard_of(t, s):
    """Parameters of nano on one of s ranks that shard a tensor-parallel shard. 4 divides every FSDP unit."""
    return (UNDIVIDED + (P - UNDIVIDED) // t) // s


class OnMesh:
    """Beside a case of zero_case: the options of the disk."""

    program = PROGRAM

    def disk(self):
        return f"--tier=disk:{self.folder}"

    def cut(self, size):
        """The option that cuts a model into FSDP units."""
        return "--unit=branch" if size == "1B" else "--unit=block"


def all_variants():
    """All meshes of at most eight ranks, stages, states that are offloaded, and ways to keep less."""
    for replicas, shard, tp in itertools.product((1, 2, 4), repeat=3):
        if replicas * shard * tp > 8:
            continue
        halves = [[], [HALVES], [HALVES, REGATHER, RECOMPUTE]] if tp > 1 else [[], [RECOMPUTE]]
        for zero, half, B, what in itertools.product((2, 3), halves, (1, 2), ("none", "optimizer", "gradients", "all")):
            yield mesh(replicas, shard, tp, f"--zero={zero}", *half, f"--micro-batch={B}", f"--offload={what}")


class Exactness(OnMesh, zero_case.Lesson):
    def same_digest(self, fixed, variants):
        expected = self.report_of(L01, *fixed)
        for ranks, *options in variants:
            with self.subTest(ranks=ranks, options=options):
                report = self.report(*fixed, *options, ranks=ranks)
                for what in ("digest", "loss", "grad_norm", "validation"):
                    self.assertEqual(report[what], expected[what], what)

    def variants(self):
        if ALL:
            return list(all_variants())
        disk = self.disk()
        return [
            mesh(1, 1, 1, ZERO2),
            mesh(1, 2, 1, "--unit=branch", "--micro-batch=2"),
            mesh(1, 1, 2, HALVES, "--offload=optimizer"),
            mesh(2, 1, 1, "--offload=all", "--micro-batch=4"),
            mesh(1, 2, 2),
            mesh(1, 2, 2, ZERO2, HALVES, REGATHER, RECOMPUTE, "--micro-batch=2"),
            mesh(1, 2, 2, "--offload=all", disk, "--micro-batch=2", "--unit=branch", HALVES),
            mesh(2, 1, 2, ZERO2, "--offload=parameters", "--micro-batch=1"),
            mesh(2, 2, 1, "--offload=gradients", "--micro-batch=2", RECOMPUTE),
            mesh(1, 4, 1, "--persist=64", "--reshard=after-backward"),
            mesh(2, 2, 2, HALVES, "--micro-batch=2"),
            mesh(2, 2, 2, ZERO2, "--offload=all", disk, "--micro-batch=1"),
            mesh(1, 4, 2, "--collectives=shared", "--persist=64", HALVES),
            mesh(1, 2, 4, "--prefetch=0", "--unit=model"),
        ]

    def test_every_mesh_stage_and_tier_gives_the_bits_of_lesson_01(self):
        self.same_digest([*self.small, "--arithmetic=exact", "--dropout=0.1", "--clip=0.5"], self.variants())

    def test_in_bf16_too(self):
        """Without tensor parallelism, whose partial sums would be rounded."""
        fixed = [self.data, "--layers=1", "--steps=2", "--arithmetic=exact", "--dropout=0.1", "--precision=bf16"]
        self.same_digest(fixed, [mesh(2, 2, 1, "--micro-batch=2"), mesh(1, 2, 1, ZERO2, "--offload=all"),
                                 mesh(2, 1, 1, "--offload=optimizer")])

    def test_without_clipping_and_with_frozen_tensors(self):
        for options in (["--clip=0"], ["--freeze=wpe.*,h.0.mlp.*"], ["--mask=prefix:5", "--vocabulary=257"]):
            fixed = [self.data, "--layers=1", "--steps=2", "--arithmetic=exact", *options]
            self.same_digest(fixed, [mesh(1, 2, 2, "--offload=all", HALVES), mesh(2, 1, 2, ZERO2)])

    def test_chaos_changes_nothing(self):
        cases = [mesh(1, 2, 2, HALVES), mesh(2, 1, 2, ZERO2), mesh(2, 2, 1, "--offload=all")]
        self.same_digest([self.data, "--layers=1", "--steps=2", "--arithmetic=exact", "--micro-batch=2"],
                         [(*cases[seed % 3], f"--chaos={seed}", "--check-messages") for seed in range(1, 21 if ALL else 4)])

    def test_the_virtual_clock_does_not_depend_on_threads(self):
        ranks, *options = mesh(2, 1, 2, "--link=5us,1GB/s", "--layers=1", "--steps=2", "--micro-batch=2", HALVES)
        clocks = [self.report(self.data, *options, ranks=ranks)["virtual"] for _ in range(2)]
        self.assertEqual(clocks[0], clocks[1])


class FastSums(OnMesh, zero_case.Lesson):
    def test_parameters_and_losses_stay_near_those_of_one_device(self):
        for ranks, *options in [mesh(1, 2, 2, HALVES), mesh(1, 1, 3, "--heads=6", "--channels=96"),
                                mesh(2, 1, 2, ZERO2, "--collectives=tree", "--offload=all"),
                                mesh(2, 2, 1, "--collectives=hierarchical", "--ranks-per-node=2")]:
            with self.subTest(ranks=ranks, options=options):
                report = self.report(self.data, "--layers=2", "--steps=4", "--global-batch=8", "--compare=4", *options,
                                     ranks=ranks)
                self.assertTrue(0 < report["deviation"]["loss"] <= 1e-6, report["deviation"])
                self.assertTrue(0 < report["deviation"]["parameters"] <= 1e-5, report["deviation"])

    def test_degrees_that_are_no_powers_of_two(self):
        fixed = [*self.small, "--global-batch=12"]
        single = self.report_of(L01, *fixed)["loss"]
        for ranks, *options in [mesh(1, 3, 2), mesh(3, 1, 2, ZERO2, HALVES), mesh(2, 3, 1, "--offload=all", "--micro-batch=1")]:
            with self.subTest(ranks=ranks, options=options):
                for a, b in zip(self.report(*fixed, *options, ranks=ranks)["loss"], single):
                    self.assertLess(abs(a - b), 1e-6 * b)

    def test_with_one_axis_it_is_lesson_06_or_lesson_08(self):
        for tp, lesson, *options in (1, L06, "--micro-batch=2"), (4, L08):
            fixed = [*self.small, "--clip=0", *options]
            self.assertEqual(self.report(*fixed, f"--tp={tp}", ranks=4)["digest"],
                             self.report_of(lesson, *fixed, ranks=4)["digest"], lesson)

    def test_bf16_stays_near_one_device(self):
        fixed = [*self.small, "--precision=bf16", "--dropout=0.1"]
        single = self.report_of(L01, *fixed)["loss"]
        for ranks, *options in [mesh(1, 2, 2, HALVES), mesh(2, 1, 2, ZERO2, "--offload=optimizer", "--gradients=bf16")]:
            with self.subTest(ranks=ranks, options=options):
                for a, b in zip(self.report(*fixed, *options, ranks=ranks)["loss"], single):
                    self.assertLess(abs(a - b), 2e-3 * b)


class Bytes(OnMesh, zero_case.Lesson):
    def test_model_state_of_a_rank_is_the_published_figure(self):
        """16 P / (s t); with --zero=2 4 P / t + 12 P / (s t)."""
        for replicas, s, t, zero in [(1, 2, 2, 3), (1, 2, 2, 2), (2, 2, 2, 3), (2, 1, 2, 3), (1, 4, 1, 2)]:
            with self.subTest(replicas=replicas, s=s, t=t, zero=zero):
                ranks, *options = mesh(replicas, s, t, f"--zero={zero}")
                report = self.report(self.data, "--steps=1", *options, ranks=ranks)
                for rank in report["memory_ranks"]:
                    state = [rank["device"][c]["current"] for c in ("parameters", "gradients", "optimizer")]
                    n = shard_of(t, s)
                    self.assertEqual(state, [4 * (shard_of(t, 1) if zero == 2 else n), 4 * n, 8 * n])

    def test_offloaded_state_leaves_the_device(self):
        ranks, *options = mesh(1, 2, 2, "--offload=all")
        report = self.report(self.data, "--steps=1", *options, ranks=ranks)
        n = shard_of(2, 2)
        for rank in report["memory_ranks"]:
            self.assertEqual([rank["device"][c]["current"] for c in ("parameters", "gradients", "optimizer")], [0, 0, 0])
        host = report["tiers"]["host"]
        self.assertEqual(host["bytes"], host["formula"])
        self.assertTrue(16 * n < host["bytes"] < 1.1 * 16 * n)  # and slots for a few blocks

    def test_a_step_sends_the_published_figures_along_each_axis(self):
        """Along the data axis parameters nearly twice and gradients once, of 1/t of the model; between replicas 1/s of that."""
        _, *options = mesh(2, 2, 2, "--collectives=ring", "--micro-batch=2")
        M, R = 2, 2 * T  # micro-batches of a step, rows of one
        sent = {axis: of["bytes"] for axis, of in self.report(self.data, "--steps=2", *options, ranks=8)["traffic"].items()}
        of_t, embedding = shard_of(2, 1), T * C + V // 2 * C
        block = (of_t - embedding - 2 * C) // L
        gathered = 2 * of_t - 2 * C - block  # head and last block stay from the forward to the backward pass
        self.assertEqual(sent["shard"], M * 4 * (gathered + of_t) // 2)
        self.assertEqual(sent["replicas"], M * 4 * of_t // 2)
        self.assertEqual(sent["tp"], M * 4 * R * ((4 * L + 2) * C + 3))  # sums of rows, and three numbers a token

    def test_zero_2_gathers_once_a_step(self):
        """Gradients in every micro-batch, parameters once: (M + 1) (s-1)/s 4 P_t."""
        for M in (1, 4):
            _, *options = mesh(1, 2, 2, ZERO2, "--collectives=ring", f"--micro-batch={8 // M}")
            sent = self.report(self.data, "--steps=2", *options, ranks=4)["traffic"]
            self.assertEqual(sent["shard"]["bytes"], (M + 1) * 4 * shard_of(2, 1) // 2)

    def test_other_options_keep_to_the_formula(self):
        for ranks, *options in [mesh(1, 2, 2, "--precision=bf16", HALVES, REGATHER, RECOMPUTE, "--micro-batch=2"),
                                mesh(2, 2, 2, "--arithmetic=exact", HALVES, "--micro-batch=1", "--unit=branch"),
                                mesh(1, 3, 1, "--global-batch=12", "--persist=64", "--offload=parameters"),
                                mesh(1, 1, 3, "--heads=6", "--channels=96", "--vocabulary=257", ZERO2, HALVES, "--sequence=48"),
                                mesh(2, 1, 2, "--collectives=shared", "--persist=4096", HALVES, "--offload=gradients"),
                                mesh(1, 2, 2, ZERO2, "--offload=all", self.disk(), "--precision=bf16", "--gradients=bf16"),
                                mesh(2, 2, 1, "--collectives=hierarchical", "--ranks-per-node=2", "--unit=model")]:
            with self.subTest(ranks=ranks, options=options):
                report = self.report(self.data, "--steps=2", "--layers=2", *options, ranks=ranks)
                for name, bytes_ in report["memory"].items():
                    self.assertEqual(bytes_["current"], bytes_["formula"], name)
                for axis, sent in report["traffic"].items():
                    self.assertEqual(sent["bytes"], sent["formula"], axis)

    def test_a_dry_run_plans_what_a_run_takes(self):
        ranks, *options = mesh(2, 1, 2, HALVES, "--micro-batch=2", ZERO2)
        report = self.report(self.data, "--steps=1", *options, ranks=ranks)
        done = self.run_program("--dry-run", self.data, *options, f"--ranks={ranks}")
        told = dict(re.findall(r"^  (a step, [a-z -]+?) +([\d,]+) +bytes", done.stdout, re.MULTILINE))
        axes = {"tp": "to tensor-parallel ranks", "shard": "to ranks with other shards", "replicas": "to replicas"}
        for axis, what in axes.items():
            self.assertEqual(int(told[f"a step, {what}"].replace(",", "")), report["traffic"][axis]["bytes"], axis)
        total = int(re.search(r"^  total +([\d,]+)", done.stdout, re.MULTILINE)[1].replace(",", ""))
        device = report["memory_ranks"][0]["device"]
        self.assertEqual(total, sum(bytes_["peak"] for bytes_ in device.values()))


class Checkpoints(OnMesh, zero_case.Lesson):
    def test_what_one_layout_writes_any_other_goes_on_from(self):
        fixed = [self.data, "--layers=2", "--arithmetic=exact", "--dropout=0.1"]
        whole = self.report_of(L01, *fixed, "--steps=4")["digest"]
        own = [(PROGRAM, *mesh(1, 2, 2)), (PROGRAM, *mesh(2, 1, 2, ZERO2, HALVES)),
               (PROGRAM, *mesh(2, 2, 2, "--offload=all", "--micro-batch=2"))]
        others = [(L01, 1), (L06, 4), (L08, 2), (L10, 4, "--tp=2"), (L07, 2, "--offload=optimizer")]
        pairs = [*zip(own, [others[0], others[3], others[1]]), *zip([others[0], others[3], others[4]], own), (own[2], own[1])]
        if ALL:
            pairs = [pair for pair in itertools.product([*own, *others], repeat=2) if PROGRAM in (pair[0][0], pair[1][0])]
        for number, ((writer, writers, *how), (reader, readers, *so)) in enumerate(pairs):
            with self.subTest(writer=writer, writers=writers, how=how, reader=reader, readers=readers, so=so):
                file = f"--checkpoint={self.path(f'{number}.h5')}"
                self.report_of(writer, *fixed, "--steps=2", file, *how, ranks=writers)
                report = self.report_of(reader, *fixed, "--steps=4", file, "--resume", *so, ranks=readers)
                self.assertEqual((report["first_step"], report["digest"]), (2, whole))

    def test_weights_to_start_from(self):
        file = self.path("run.h5")
        ranks, *options = mesh(1, 2, 2)
        fixed = [self.data, "--layers=1", "--arithmetic=exact"]
        self.report(*fixed, "--steps=2", f"--checkpoint={file}", *options, ranks=ranks)
        again = [*fixed, "--steps=2", "--seed=2", f"--initial={file}"]
        self.assertEqual(self.report(*again, ZERO2, ranks=2)["digest"], self.report_of(L01, *again)["digest"])


class Output(OnMesh, zero_case.Lesson):
    def test_sample_is_that_of_lesson_01(self):
        options = [*self.small[:2], "--steps=1", "--arithmetic=exact", "--sample=20"]
        text = [re.search(r"# sample:\n(# .*\n)+", self.run_program(*options, *more, ranks=r, program=p).stdout).group()
                for r, p, *more in [(None, L01), (4, None), (4, None, ZERO2, "--tp=4"), (4, None, "--offload=all")]]
        self.assertEqual(set(text), {text[0]})

    def test_what_is_checked(self):
        ranks, *options = mesh(2, 1, 2, "--offload=all")
        names = {check["name"] for check in self.report(*self.small, *options, ranks=ranks)["checks"]}
        self.assertTrue({"tensors that tp does not divide", "shards of all replicas", "bytes of host, optimizer",
                         "bytes from device to host", "traffic of a step, to replicas"} <= names, names)

    def test_a_gradient_that_is_not_finite_is_named(self):
        for options in ([], ["--offload=all"]):
            done = self.run_program(self.data, "--steps=5", "--layers=1", "--learning-rate=1e38", "--warmup=0", "--clip=0",
                                    *options, ranks=4)
            self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
            self.assertRegex(done.stderr, r"step [1-4]: .*is not finite")


class WrongInput(OnMesh, zero_case.Lesson):
    def test_what_cannot_be_is_refused_before_anything_is_sent(self):
        self.assert_all_refused([
            (["--zero=1"], ["--zero=1 is not one of its values", "lesson 10"]),
            (["--zero=4"], ["--zero=4 is not one of its values"]),
            (["--shard-ranks=3"], ["--shard-ranks=3 does not divide the 2 data ranks", "--shard-ranks=1, 2"]),
            (["--shard-ranks=-1"], ["--shard-ranks=-1 is not a number of ranks"]),
            (["--tp=3"], ["--tp=3", "4 were started"]),
            (["--dp=-2"], ["--dp=-2 is not a number of ranks"]),
            (["--tp=2", "--dp=4"], ["make 8 ranks, but 4 were started"]),
            (["--tp=4", "--heads=2"], ["--tp=4 does not divide the 2 heads"]),
            ([REGATHER], ["--regather needs --sequence-parallel"]),
            ([ZERO2, "--reshard=after-backward"], ["--zero=2", "stay whole"]),
            ([ZERO2, "--persist=64"], ["--zero=2", "stay whole"]),
            ([ZERO2, "--prefetch=2"], ["--zero=2", "stay whole"]),
            ([self.disk()], ["stores nothing", "--offload=none"]),
            (["--offload=all", "--tier=tape"], ["--tier=tape is not a tier"]),
            (["--global-batch=15"], ["--global-batch=15 cannot be shared out among 2 ranks"]),
            (["--arithmetic=exact", "--collectives=ring"], ["--collectives=ring", "halving"]),
            (["--arithmetic=exact", "--precision=bf16"], ["--precision=bf16 with --tp=2"]),
            (["--prefetch=100"], ["--prefetch=100 is out of range"]),
        ], ranks=4)

    def test_the_least_that_works_is_said_and_works(self):
        text = self.assert_refused(ZERO2, "--memory-limit=1kB", ranks=4, says=["--memory-limit=1,000 is too small"]).stderr
        least, how = re.search(r"The least that works on this mesh is ([\d,]+) bytes, with (.*)\. Use more", text).groups()
        options = [f"--memory-limit={least.replace(',', '')}B", *how.split(), "--steps=2", self.data]
        self.assertIn("--zero=3", options)
        self.report(*options, ranks=4)
        self.assert_refused(*options[1:], f"--memory-limit={int(least.replace(',', '')) - 1}B", ranks=4, says=["too small"])


if __name__ == "__main__":
    unittest.main()
