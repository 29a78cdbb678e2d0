"""Lesson 16: the same bits on every mesh of five axes, those of lesson 15, and with one expert those of lesson 01; bytes and memory
equal to their formulas, the messages of each axis those of its own lesson, checkpoints of other lessons, and what is refused.

With RANKWISE_ALL every combination is tried; else a set that covers them.
"""

import itertools
import pathlib
import re
import subprocess
import unittest

import zero_case
from program_case import BUILD
from zero_case import ALL, L01

ROOT = pathlib.Path(__file__).resolve().parents[3]
PROGRAM = "lessons/16_five_axes"
L10, L14, L15 = "lessons/10_3d_parallel", "lessons/14_context_parallel", "lessons/15_experts"
HALVES, CONTIGUOUS = "--sequence-parallel", "--order=contiguous"


def mesh(dp=1, tp=1, pp=1, cp=1, ep=1, *more):
    """Ranks and options."""
    return (dp * tp * pp * cp, f"--dp={dp}", f"--tp={tp}", f"--pp={pp}", f"--cp={cp}", f"--ep={ep}", *more)


def meshes():
    """Every mesh of up to 8 ranks with powers of two, or some in which each axis meets each other one."""
    degrees = (1, 2, 4, 8)
    every = [mesh(dp, tp, pp, cp, ep) for dp, tp, pp, cp, ep in itertools.product(degrees, (1, 2, 4), (1, 2, 4), degrees, (1, 2, 4))
             if dp * tp * pp * cp <= 8 and ep <= dp]
    some = [mesh(), mesh(dp=2, ep=2), mesh(2, 2, 2, 1, 2), mesh(2, 2, 1, 2, 2, HALVES), mesh(2, 1, 2, 2, 2, CONTIGUOUS),
            mesh(1, 2, 2, 2, 1, HALVES, "--schedule=gpipe"), mesh(4, 1, 1, 2, 2, "--zero=0"), mesh(4, 2, 1, 1, 4),
            mesh(1, 1, 4, 2), mesh(1, 1, 1, 8), mesh(1, 2, 1, 4, 1, HALVES, "--regather"),
            mesh(1, 1, 2, 2, 1, "--schedule=interleaved")]
    return every if ALL else some


class OnMesh:
    program = PROGRAM


class Exactness(OnMesh, zero_case.Lesson):
    def test_every_mesh_gives_the_bits_of_lesson_15(self):
        fixed = [self.data, "--layers=4", "--steps=2", "--channels=32", "--arithmetic=exact", "--dropout=0.1", "--clip=0.5"]
        self.same_as(L15, fixed, meshes())

    def test_with_two_choices_a_capacity_or_experts_in_every_block(self):
        for options in (["--experts-per-token=2", "--capacity-factor=1", "--dropout=0.1"], ["--capacity-factor=0.5"],
                        ["--expert-every=1", "--auxiliary-loss=0"]):
            fixed = [self.data, "--layers=2", "--steps=2", "--channels=32", "--arithmetic=exact", *options]
            self.same_as(L15, fixed, [mesh(1, 2, 1, 4, 1, HALVES), mesh(2, 1, 2, 2, 2, CONTIGUOUS)])

    def test_in_bf16_on_meshes_without_parts_that_round_their_sums(self):
        fixed = [self.data, "--layers=2", "--steps=2", "--channels=32", "--arithmetic=exact", "--precision=bf16"]
        self.same_as(L15, fixed, [mesh(2, 1, 1, 2, 2), mesh(1, 1, 2, 2)])

    def test_one_expert_is_the_dense_model(self):
        fixed = [*self.small, "--arithmetic=exact", "--dropout=0.1"]
        self.same_as(L01, fixed, [(*one, "--experts=1") for one in (
            mesh(1, 1, 1, 2), mesh(2, 2, 1, 2, 1, HALVES, "--recompute=block"), mesh(1, 2, 2, 2))])

    def test_chaos_and_the_algorithm_change_nothing(self):
        fixed = [self.data, "--layers=2", "--steps=2", "--channels=32", "--arithmetic=exact"]
        self.same_as(L15, fixed, [mesh(2, 1, 1, 2, 2, "--chaos=1", "--check-messages"), mesh(1, 2, 2, 2, 1, "--chaos=2"),
                                  mesh(1, 2, 1, 2, 1, "--collectives=shared")])


class FastSums(OnMesh, zero_case.Lesson):
    def test_losses_stay_near_those_of_one_device(self):
        fixed = [self.data, "--layers=2", "--steps=3", "--channels=48", "--heads=3", "--sequence=48", "--global-batch=12",
                 "--experts=6", "--clip=0.5"]
        single = self.report_of(L15, *fixed, ranks=1)["loss"]
        for ranks, *options in [mesh(3, 1, 1, 2, 3), mesh(1, 3, 1, 2), mesh(2, 1, 1, 3, 2, "--zero=0"), mesh(1, 1, 2, 3),
                                mesh(1, 3, 1, 2, 1, HALVES, "--micro-batch=3")]:
            with self.subTest(ranks=ranks, options=options):
                for a, b in zip(self.report(*fixed, *options, ranks=ranks)["loss"], single):
                    self.assertLess(abs(a - b), 1e-5 * b)


class Bytes(OnMesh, zero_case.Lesson):
    def test_memory_traffic_and_arithmetic_are_those_of_the_formulas(self):
        for ranks, *options in [mesh(1, 1, 1, 2), mesh(2, 2, 1, 2, 2, "--experts-per-token=2"), mesh(2, 1, 2, 2, 1, "--zero=0"),
                                mesh(2, 1, 2, 2, 2, "--arithmetic=exact"), mesh(1, 2, 1, 4, 1, HALVES, "--arithmetic=exact", CONTIGUOUS),
                                mesh(3, 1, 1, 2, 3, "--experts=3", "--global-batch=12", "--capacity-factor=1.25"),
                                mesh(1, 2, 2, 1, 1, HALVES, "--regather", "--experts=1", "--recompute=block"),
                                mesh(4, 1, 1, 1, 2, "--precision=bf16", "--gradients=f32", "--expert-every=1")]:
            with self.subTest(ranks=ranks, options=options):
                report = self.report(self.data, "--steps=2", "--layers=2", "--link=5us,10GB/s", *options, ranks=ranks)
                for name, bytes_ in report["memory"].items():
                    self.assertEqual(bytes_["current"], bytes_["formula"], name)
                for axis, sent in report["traffic"].items():
                    self.assertEqual(sent["bytes"], sent["formula"], axis)

    def sent(self, program, ranks, *options):
        fixed = [self.data, "--steps=1", "--layers=2", "--micro-batch=1", *options]
        report = self.report_of(program, *fixed, ranks=ranks)
        return {axis: sent["bytes"] for axis, sent in report["traffic"].items()}, report

    def test_each_axis_alone_sends_what_its_own_lesson_sends(self):
        dense = ["--experts=1", "--zero=0"]
        here, _ = self.sent(PROGRAM, *mesh(1, 1, 1, 4), *dense)
        theirs, _ = self.sent(L14, 4)
        self.assertEqual(here["cp"], theirs["cp"] + theirs["world"])
        for one in (mesh(dp=2), mesh(tp=2), mesh(pp=2)):
            here, _ = self.sent(PROGRAM, *one, *dense)
            theirs, _ = self.sent(L10, one[0], *one[1:4], "--zero=0")
            # Two runs of tokens, each as long as half a micro-batch, in as many messages as two of them.
            self.assertEqual({axis: here[axis] for axis in theirs}, theirs)

    def test_a_sequence_in_two_halves_the_rows_and_the_activations(self):
        whole, before = self.sent(PROGRAM, *mesh(1, 2, 2, 1), "--experts=1")
        half, after = self.sent(PROGRAM, *mesh(1, 2, 2, 2), "--experts=1")
        self.assertEqual((half["pp"] * 2, half["tp"] * 2), (whole["pp"], whole["tp"]))
        self.assertEqual(after["memory"]["activations"]["current"] * 2, before["memory"]["activations"]["current"])
        self.assertEqual(after["memory"]["parameters"]["current"], before["memory"]["parameters"]["current"])
        self.assertEqual(after["memory"]["optimizer"]["current"] * 2, before["memory"]["optimizer"]["current"])

    def test_loads_do_not_depend_on_the_mesh(self):
        fixed = [self.data, "--steps=2", "--layers=2", "--arithmetic=exact"]
        expected = self.report_of(L15, *fixed, ranks=1)["experts"]
        for ranks, *options in [mesh(2, 2, 1, 2, 2), mesh(1, 1, 2, 4)]:
            self.assertEqual(self.report(*fixed, *options, ranks=ranks)["experts"], expected)

    def test_a_dry_run_plans_what_a_run_takes(self):
        for ranks, *options in [mesh(2, 2, 1, 2, 2), mesh(1, 1, 2, 2, 1, "--arithmetic=exact")]:
            report = self.report(self.data, "--steps=1", "--layers=2", *options, ranks=ranks)
            done = self.run_program("--dry-run", self.data, "--layers=2", *options, f"--ranks={ranks}")
            total = int(re.search(r"^  total +([\d,]+)", done.stdout, re.MULTILINE)[1].replace(",", ""))
            self.assertEqual(total, max(sum(bytes_["peak"] for bytes_ in rank["device"].values()) for rank in report["memory_ranks"]))


class Forecast(OnMesh, zero_case.Lesson):
    def test_a_dry_run_forecasts_every_mesh(self):
        done = self.run_program("--dry-run", "--ranks=8", "--link=5us,10GB/s", "--layers=4")
        lines = re.findall(r"^  dp=(\d) tp=(\d) pp=(\d) cp=(\d) ep=(\d) ", done.stdout, re.MULTILINE)
        possible = {(dp, tp, pp, cp, ep) for dp, tp, pp, cp, ep in itertools.product((1, 2, 4, 8), (1, 2, 4), (1, 2, 4), (1, 2, 4, 8), (1, 2, 4))
                    if dp * tp * pp * cp == 8 and ep <= dp}  # of four heads, layers and experts
        self.assertEqual({tuple(map(int, line)) for line in lines}, possible)

    def test_a_script_tries_them_all(self):
        script = [ROOT / "scripts/bench/try_meshes.py", f"--build={BUILD}", "--lesson=16", "--ranks=2", self.data, "--layers=2"]
        done = subprocess.run([*script, "--link=5us,1GB/s"], capture_output=True, text=True, check=True)
        rows = [line.split() for line in done.stdout.splitlines()[2:]]
        self.assertEqual([row[:5] for row in rows[:-1]],
                         [[f"dp={dp}", f"tp={tp}", f"pp={pp}", f"cp={cp}", f"ep={ep}"] for dp, tp, pp, cp, ep in (
                             (2, 1, 1, 1, 1), (2, 1, 1, 1, 2), (1, 1, 2, 1, 1), (1, 2, 1, 1, 1), (1, 1, 1, 2, 1))])
        for row in rows[:-1]:
            self.assertLess(abs(float(row[5]) / float(row[6]) - 1), 0.2, row)  # the clock beside the forecast
        refused = subprocess.run([*script, "--link=5us,1GB/s", "--cp=2"], capture_output=True, text=True, check=False)
        self.assertEqual(refused.returncode, 2)
        self.assertIn("--cp=2 cannot be given", refused.stderr)


class Checkpoints(OnMesh, zero_case.Lesson):
    def test_the_model_is_that_of_lesson_15(self):
        fixed = [self.data, "--layers=2", "--channels=32", "--arithmetic=exact", "--dropout=0.1"]
        whole = self.report(*fixed, "--steps=4", ranks=1)["digest"]
        for number, (writer, write, program, read) in enumerate([
                (PROGRAM, mesh(2, 2, 1, 2, 2), L15, (4, "--ep=4")), (L15, (2, "--ep=2"), PROGRAM, mesh(1, 1, 2, 4)),
                (PROGRAM, mesh(2, 1, 2, 1, 2, "--zero=0"), PROGRAM, mesh(1, 2, 1, 2, 1, HALVES))]):
            file = f"--checkpoint={self.path(f'{number}.h5')}"
            self.report_of(writer, *fixed, "--steps=2", file, *write[1:], ranks=write[0])
            report = self.report_of(program, *fixed, "--steps=4", file, "--resume", *read[1:], ranks=read[0])
            self.assertEqual((report["first_step"], report["digest"]), (2, whole))

    def test_the_dense_model_is_that_of_lessons_10_and_14(self):
        fixed = [self.data, "--layers=2", "--channels=32", "--arithmetic=exact"]
        whole = self.report_of(L01, *fixed, "--steps=4")["digest"]
        for writer, ranks, *options in [(L10, 4, "--dp=2", "--tp=2"), (L14, 4, "--cp=4")]:
            file = f"--checkpoint={self.path('of' + writer[8:10] + '.h5')}"
            self.report_of(writer, *fixed, "--steps=2", file, *options, ranks=ranks)
            ranks, *options = mesh(1, 2, 1, 2)
            report = self.report(*fixed, "--steps=4", file, "--resume", "--experts=1", *options, ranks=ranks)
            self.assertEqual((report["first_step"], report["digest"]), (2, whole))


class Output(OnMesh, zero_case.Lesson):
    def test_sample_is_that_of_lesson_15_on_every_mesh(self):
        options = [self.data, "--layers=2", "--steps=1", "--arithmetic=exact", "--sample=8", "--channels=32"]
        texts = set()
        for program, ranks, *more in [(L15, 2), (PROGRAM, *mesh(2, 2, 1, 2, 2)), (PROGRAM, *mesh(1, 1, 2, 4)),
                                      (PROGRAM, *mesh(1, 2, 1, 2, 1, CONTIGUOUS))]:
            self.program = program
            texts.add(re.search(r"# sample:\n(# .*\n)+", self.run_program(*options, *more, ranks=ranks).stdout).group())
        self.assertEqual(len(texts), 1)

    def test_the_program_finds_its_own_deviation(self):
        ranks, *options = mesh(2, 1, 1, 2, 2)
        report = self.report(self.data, "--steps=2", "--layers=2", "--arithmetic=exact", "--compare=2", *options, ranks=ranks)
        self.assertEqual(report["deviation"], {"steps": 2, "loss": 0, "parameters": 0})

    def test_groups_are_shown(self):
        shown = self.run_program("--steps=1", "--layers=2", "--show-groups", self.data, ranks=4).stdout
        for line in ("dp=1 tp=2 pp=1 cp=2 ep=1", "cp"):
            self.assertIn(line, shown)


class WrongInput(OnMesh, zero_case.Lesson):
    def test_what_cannot_be_is_refused_before_anything_is_sent(self):
        self.assert_all_refused([
            (["--cp=3"], ["--cp=3 does not divide the 4 ranks", "dp tp pp cp: "]),
            (["--cp=-1"], ["--cp=-1 is not a number of ranks"]),
            (["--dp=2", "--tp=2", "--pp=1", "--cp=2"], ["make 8, which are not the 4 ranks"]),
            (["--dp=2", "--tp=2", "--cp=2"], ["make 8, which does not divide the 4 ranks"]),
            (["--tp=3"], ["--tp=3"]),
            (["--ep=3", "--dp=4"], ["--ep=3 does not divide --dp=4 and 4 experts", "--ep=1, 2, 4"]),
            (["--ep=2", "--dp=1"], ["--ep=2 does not divide --dp=1"]),
            (["--ep=-1"], ["--ep=-1"]),
            (["--sequence=20", "--cp=4"], ["--sequence=20 cannot be divided among --cp=4 ranks", "multiple of 8"]),
            (["--sequence=36", "--cp=2", "--tp=2", HALVES], ["a run of 9 tokens", "--tp=2"]),
            (["--zero=2"], ["--zero=2"]),
            (["--heads=1", "--tp=2"], ["--tp=2 does not divide the 1 heads"]),
            (["--recompute=block"], ["--recompute=block cannot be combined with --experts=4"]),
            (["--experts=0"], ["--experts=0"]),
            (["--global-batch=15", "--dp=2"], ["--global-batch=15 cannot be shared out among"]),
            (["--arithmetic=exact", "--micro-batch=2"], ["--micro-batch=2 is more than one sequence"]),
            (["--arithmetic=exact", "--collectives=ring"], ["--collectives=ring", "halving"]),
            (["--pp=4", "--layers=2"], ["stages"]),
            (["--memory-limit=1MB"], ["--memory-limit"]),
        ], ranks=4)
        self.assert_refused("--arithmetic=exact", "--dry-run", "--ranks=16", "--cp=8", "--tp=2", HALVES,
                            says=["2 cp tp = 32 parts", "16 leaves"])

    def test_a_mesh_that_fits_is_named(self):
        self.assert_refused("--dp=4", "--tp=1", "--pp=1", "--cp=1", "--memory-limit=4MB", ranks=4, says=["another mesh fits: dp=1 tp=4"])


if __name__ == "__main__":
    unittest.main()
