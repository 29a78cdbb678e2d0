"""Lesson 10: the bits of lesson 01 on every mesh, bytes of each axis by the published figures, checkpoints of every lesson on
the ladder, the layouts of configuration files, and what cannot be a mesh.

With RANKWISE_ALL every combination is tried; else a set that covers them.
"""

import itertools
import os
import pathlib
import re
import subprocess
import unittest

import zero_case
from program_case import BUILD
from zero_case import ALL, L01

PROGRAM = "lessons/10_3d_parallel"
ROOT = pathlib.Path(__file__).resolve().parents[3]
GPIPE, INTERLEAVED = "--schedule=gpipe", "--schedule=interleaved"
RECOMPUTE, HALVES, REGATHER = "--recompute=block", "--sequence-parallel", "--regather"
G, T, C, L, V = 16, 64, 64, 4, 256  # of nano
OF_A_BLOCK = 12 * C * C + 13 * C  # parameters
WHOLE_IN_A_BLOCK = 6 * C  # of them norms and the biases behind a sum, which all parts have


def mesh(dp, tp, pp, *options):
    """So many ranks, and the options that make them a mesh."""
    return (dp * tp * pp, f"--dp={dp}", f"--tp={tp}", f"--pp={pp}", *options)


class OnMesh:
    """Beside a case of zero_case: a model with blocks and heads enough for eight ranks."""

    program = PROGRAM

    def options(self, *more):
        said = {option.split("=")[0] for option in more}
        default = (self.data, "--layers=4", "--channels=32", "--sequence=16", "--steps=3")
        return [option for option in default if option.split("=")[0] not in said] + list(more)


def all_meshes():
    """All meshes of at most eight ranks, schedules and ways to keep less."""
    for dp, tp, pp in itertools.product((1, 2, 4), repeat=3):
        if dp * tp * pp > 8:
            continue
        schedules = [[GPIPE], [], ["--micro-batch=1"]] + ([[INTERLEAVED]] if pp == 2 else [])
        halves = [[], [HALVES], [HALVES, REGATHER]] if tp > 1 else [[]]
        for schedule, half, zero, recompute in itertools.product(schedules, halves, (0, 1), ("none", "block")):
            yield mesh(dp, tp, pp, *schedule, *half, f"--zero={zero}", f"--recompute={recompute}")


class Exactness(OnMesh, zero_case.Exactness):
    def test_every_number_of_ranks_gives_the_bits_of_lesson_01(self):
        self.same_digest(self.options("--arithmetic=exact", "--dropout=0.1", "--clip=1.0"), self.variants())

    def variants(self):
        if ALL:
            return list(all_meshes())
        return [
            mesh(1, 1, 1, RECOMPUTE),
            mesh(2, 1, 1, "--zero=0"),
            mesh(1, 2, 1, HALVES, REGATHER, RECOMPUTE),
            mesh(1, 1, 2, INTERLEAVED),
            mesh(1, 2, 2, HALVES, "--micro-batch=2"),
            mesh(2, 1, 2, GPIPE, "--zero=0"),
            mesh(2, 2, 2, INTERLEAVED, HALVES, REGATHER, RECOMPUTE, "--micro-batch=2"),
            mesh(2, 2, 2, RECOMPUTE, "--zero=0", "--micro-batch=1"),
            mesh(2, 1, 4, "--micro-batch=1"),
            mesh(1, 4, 2, HALVES),
            mesh(4, 2, 1, GPIPE, REGATHER, HALVES),
        ]

    def test_any_number_of_replicas_stages_and_sequences(self):
        for G, *variants in [(16, mesh(3, 1, 2, "--zero=1"), mesh(1, 2, 3, HALVES), mesh(7, 1, 1)),
                             (12, mesh(3, 2, 1, "--zero=1"), mesh(2, 1, 3), mesh(5, 1, 1, "--micro-batch=2")),
                             (7, mesh(3, 1, 2, GPIPE), mesh(3, 2, 1, HALVES, REGATHER, RECOMPUTE))]:
            self.same_digest(self.options("--arithmetic=exact", "--dropout=0.1", f"--global-batch={G}"), variants)

    def test_in_bf16_too(self):
        """Without tensor parallelism, whose partial sums would be rounded."""
        self.same_digest(self.options("--arithmetic=exact", "--dropout=0.1", "--precision=bf16"),
                         [mesh(2, 1, 2, INTERLEAVED), mesh(2, 1, 2, "--zero=0")])

    def test_other_masks_and_a_vocabulary_that_is_padded(self):
        fixed = self.options("--arithmetic=exact", "--dropout=0.1", "--mask=prefix:5", "--vocabulary=300")
        self.same_digest(fixed, [mesh(1, 2, 2, HALVES), mesh(2, 1, 2)])

    def test_chaos_changes_nothing(self):
        schedules = [[], ["--micro-batch=1"], [GPIPE, HALVES], [INTERLEAVED, "--micro-batch=2"]]
        self.same_digest(self.options("--arithmetic=exact"),
                         [mesh(2, 2, 2, f"--chaos={seed}", "--check-messages", *schedules[seed % 4])
                          for seed in range(1, 21 if ALL else 4)])

    def test_watching_and_comparing_messages_change_nothing(self):
        self.same_digest(self.options("--arithmetic=exact"), [mesh(1, 2, 2, "--timeout=0", "--link=5us,1GB/s")])

    def test_the_program_finds_no_deviation_itself(self):
        ranks, *options = mesh(2, 2, 2, HALVES, "--micro-batch=1")
        report = self.report(*self.options("--arithmetic=exact", "--compare=3", *options), ranks=ranks)
        self.assertEqual(report["deviation"], {"steps": 3, "loss": 0, "parameters": 0})


class FastSums(OnMesh, zero_case.Lesson):
    def test_parameters_and_losses_stay_near_those_of_one_device(self):
        cases = [mesh(2, 2, 2, HALVES), mesh(1, 3, 2, "--heads=6", "--channels=48"), mesh(2, 1, 3, "--layers=6"),
                 mesh(1, 2, 2, RECOMPUTE, "--collectives=tree"),
                 mesh(2, 2, 1, "--zero=0", "--collectives=hierarchical", "--ranks-per-node=2")]
        for ranks, *options in cases:
            with self.subTest(ranks=ranks, options=options):
                report = self.report(*self.options("--steps=4", "--global-batch=8", "--compare=4", *options), ranks=ranks)
                self.assertTrue(0 < report["deviation"]["loss"] <= 1e-6, report["deviation"])
                self.assertTrue(0 < report["deviation"]["parameters"] <= 1e-5, report["deviation"])

    def test_three_replicas_of_two_stages(self):
        fixed = self.options("--global-batch=12")
        single = self.report_of(L01, *fixed)["loss"]
        ranks, *options = mesh(3, 1, 2)
        for a, b in zip(self.report(*fixed, *options, ranks=ranks)["loss"], single):
            self.assertLess(abs(a - b), 1e-6 * b)

    def test_bf16_stays_near_one_device(self):
        fixed = self.options("--precision=bf16", "--dropout=0.1")
        single = self.report_of(L01, *fixed)["loss"]
        ranks, *options = mesh(2, 2, 2, HALVES)
        for a, b in zip(self.report(*fixed, *options, ranks=ranks)["loss"], single):
            self.assertLess(abs(a - b), 2e-3 * b)


def of_parameters(tp, pp, rank_in_pipeline):
    """Parameters of a rank on a mesh of nano with equal stages: 1 / tp of the divided tensors, and all others."""
    divided = (OF_A_BLOCK - WHOLE_IN_A_BLOCK) // tp
    first, last = rank_in_pipeline == 0, rank_in_pipeline == pp - 1
    return (L // pp * (divided + WHOLE_IN_A_BLOCK) + first * (V // tp + T) * C +
            last * (2 * C + (pp > 1) * V // tp * C))


class Bytes(OnMesh, zero_case.Lesson):
    def test_model_state_of_a_rank_is_that_of_its_part_of_its_stages(self):
        for ranks, dp, tp, pp, zero in [(8, 2, 2, 2, 1), (8, 2, 2, 2, 0), (4, 4, 1, 1, 1), (8, 2, 1, 4, 1)]:
            with self.subTest(dp=dp, tp=tp, pp=pp, zero=zero):
                _, *options = mesh(dp, tp, pp, f"--zero={zero}")
                report = self.report(self.data, "--steps=1", *options, ranks=ranks)
                for rank, tiers in enumerate(report["memory_ranks"]):
                    parameters = of_parameters(tp, pp, rank // (dp * tp))
                    told = [tiers["device"][c]["current"] for c in ("parameters", "gradients", "optimizer")]
                    self.assertEqual(told, [4 * parameters, 4 * parameters, 8 * parameters // (dp if zero else 1)])

    def test_a_step_sends_the_published_figures_along_each_axis(self):
        _, *options = mesh(2, 2, 2)
        report = self.report(self.data, "--steps=2", *options, ranks=8)
        traffic = report["traffic"]
        rows = G // 2 * T * C  # of one replica's share of a step
        self.assertEqual(traffic["pp"]["bytes"], 4 * rows)  # rank 0 sends forwards only
        self.assertEqual(traffic["tp"]["bytes"], 4 * rows * (4 * L // 2 + 1))  # by ring two halves of each sum: (t-1)/t each
        self.assertEqual(traffic["tied"]["bytes"], 4 * V // 2 * C // 2)  # half of the token embedding's part
        self.assertEqual(traffic["dp"]["bytes"], 4 * of_parameters(2, 2, 0))  # half of its gradients, and of its parameters
        for axis, sent in traffic.items():
            self.assertEqual(sent["bytes"], sent["formula"], axis)
        peers = {"tp": [1], "pp": [4], "tied": [4], "dp": [2]}
        for axis, rows in report["receivers"].items():
            self.assertEqual(sum(rows[0]), traffic[axis]["bytes"], axis)
            self.assertEqual([rank for rank, bytes_ in enumerate(rows[0]) if bytes_], peers[axis], axis)

    def test_bf16_and_other_sums_keep_to_the_formula(self):
        for ranks, *options in [mesh(2, 2, 2, "--precision=bf16", HALVES, REGATHER), mesh(2, 1, 2, RECOMPUTE),
                                mesh(1, 2, 2, RECOMPUTE, HALVES, REGATHER), mesh(2, 2, 1, "--arithmetic=exact"),
                                mesh(1, 3, 1, "--heads=6", "--channels=48", "--vocabulary=257"),
                                mesh(2, 2, 2, "--collectives=shared", "--zero=0")]:
            self.keeps_to_the_formula(ranks, *options)

    def test_a_dry_run_plans_what_a_run_takes(self):
        ranks, *options = mesh(2, 2, 2, HALVES)
        report = self.report(*self.options("--steps=1", *options), ranks=ranks)
        done = self.run_program("--dry-run", *self.options(*options), ranks=ranks)
        told = {name: int(bytes_.replace(",", ""))
                for name, bytes_ in re.findall(r"^  (a step, [a-z ]+?|\w+) +([\d,]+) +bytes", done.stdout, re.MULTILINE)}
        expected = {name: bytes_["formula"] for name, bytes_ in report["memory"].items() if bytes_["formula"] > 0}
        axes = {"tp": "to parts", "pp": "to stages", "tied": "of the tied embedding", "dp": "to replicas"}
        sent = {f"a step, {what}": report["traffic"][axis]["bytes"] for axis, what in axes.items()}
        self.assertEqual(told, expected | {"total": sum(expected.values())} | sent)


class Forecast(OnMesh, zero_case.Lesson):
    """Forecast of --dry-run for each mesh, beside the virtual clock of a run on it."""

    def test_the_forecast_is_the_virtual_clock_of_the_slowest_rank(self):
        for link in ("5us,1GB/s", "1us,10GB/s,50us,500MB/s,2"):
            fixed = [self.data, f"--link={link}"]
            meshes = self.report(*fixed, "--dry-run", ranks=4)["meshes"]
            self.assertEqual(len(meshes), 6)
            for planned in meshes:
                degrees = [f"--{axis}={planned[axis]}" for axis in ("dp", "tp", "pp")]
                report = self.report(*fixed, "--steps=2", *degrees, ranks=4)
                clock_s = report["virtual"][-1]["step_ps"] * 1e-12  # of rank 0
                self.assertLess(planned["step_s"] / clock_s, 1.1, degrees)
                self.assertGreater(planned["step_s"] / clock_s, 1 - 1e-9, degrees)
                self.assertEqual(planned["bytes"], sum(bytes_["formula"] for bytes_ in report["memory"].values()))

    def test_a_script_tries_them_all(self):
        script = [ROOT / "scripts/bench/try_meshes.py", f"--build={BUILD}", "--ranks=2", self.data, "--layers=2"]
        done = subprocess.run([*script, "--link=5us,1GB/s", "--sequence-parallel"], capture_output=True, text=True, check=True)
        rows = [line.split() for line in done.stdout.splitlines()[2:]]
        self.assertEqual([row[:3] for row in rows[:3]], [["dp=2", "tp=1", "pp=1"], ["dp=1", "tp=1", "pp=2"], ["dp=1", "tp=2", "pp=1"]])
        fastest = min(rows[:3], key=lambda row: float(row[3]))
        self.assertIn("fastest: " + " ".join(fastest[:3]), done.stdout)
        for options, said in [(["--link=5us,1GB/s", "--tp=2"], "--tp=2 cannot be given"), (["--link=5us,1GB/s", "--steps=3"], "--steps=3 cannot be given"),
                              (["--link=5us"], "--link=5us has"),
                              (["--link=5us,1GB/s", "--ranks=0"], "--ranks=0 is not a number of ranks")]:
            done = subprocess.run([*script, *options], capture_output=True, text=True, check=False)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn(said, done.stderr)
            self.assertNotIn("---", done.stderr)

    def test_the_limit_of_memory_counts(self):
        for limit, fastest in [("0B", "dp=4 tp=1 pp=1"), ("4MB", "dp=2 tp=2 pp=1"), ("3300kB", "dp=1 tp=4 pp=1")]:
            done = self.run_program("--dry-run", "--link=5us,1GB/s", f"--memory-limit={limit}", "--dp=1", "--tp=4", ranks=4)
            self.assertEqual(done.stdout.splitlines()[-1], "# fastest that fits: " + fastest)


class Checkpoints(OnMesh, zero_case.Checkpoints):
    def setUp(self):
        super().setUp()
        self.fixed = [self.data, "--layers=4", "--channels=32", "--sequence=16", "--arithmetic=exact", "--dropout=0.1"]

    def layouts(self):
        """All three axes, and each pair of them."""
        return [mesh(2, 2, 2), mesh(1, 2, 2, HALVES), mesh(2, 1, 2, INTERLEAVED, "--zero=0"), mesh(2, 2, 1)]

    def test_three_ranks_of_any_lesson_go_on_from_three_of_any_other(self):
        self.three_ranks_go_on_near_the_run_that_never_stopped("--layers=4", "--heads=3", "--channels=48", "--sequence=16")

    def test_master_weights_in_bf16(self):
        fixed = [*self.fixed, "--precision=bf16", "--tp=1"]
        whole = self.report(*fixed, "--steps=3", ranks=4)["digest"]
        self.report(*fixed, "--steps=2", self.checkpoint, ranks=4)
        self.assertEqual(self.report(*fixed, "--steps=3", self.checkpoint, "--resume", "--dp=1", ranks=2)["digest"], whole)

    def test_the_mesh_may_change(self):
        whole = self.report_of(L01, *self.fixed, "--steps=3")["digest"]
        for step, (ranks, *options) in enumerate([mesh(2, 2, 2), mesh(1, 2, 2, HALVES), mesh(2, 1, 2, "--zero=0")]):
            report = self.report(*self.fixed, f"--steps={step + 1}", self.checkpoint, *options,
                                 *(["--resume"] if step > 0 else []), ranks=ranks)
            self.assertEqual(report["first_step"], step)
        self.assertEqual(report["digest"], whole)


class Output(OnMesh, zero_case.Lesson):
    def test_validation_and_sample_are_those_of_lesson_01(self):
        options = self.options("--arithmetic=exact", "--steps=1")
        expected = self.report_of(L01, *options)["validation"]
        ranks, *layout = mesh(2, 2, 2, INTERLEAVED)
        self.assertEqual(self.report(*options, *layout, ranks=ranks)["validation"], expected)
        text = [re.search(r"# sample:\n(# .*\n)+",
                          self.run_program(*options, "--sample=30", *more, ranks=n, program=program).stdout).group()
                for n, program, *more in [(None, L01), (ranks, None, *layout)]]
        self.assertEqual(text[0], text[1])

    def test_groups_are_shown(self):
        ranks, *options = mesh(2, 2, 2)
        done = self.run_program(*self.options("--steps=1", "--show-groups", *options), ranks=ranks)
        self.assertRegex(done.stdout, r"# +rank +host +cores +pp +dp +tp +groups\n")
        self.assertRegex(done.stdout, r"#    6  \S+ +\S+ +1 +1 +0  pp: 2 6; dp: 4 6; tp: 6 7\n")
        self.assertIn("# dp=2 tp=2 pp=2;", done.stdout)


def settings(path):
    """Settings of a configuration file."""
    lines = (line.split("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines())
    return dict(re.split(r"\s*=\s*", line) for line in lines if line)


def degrees(said):
    """dp, tp and pp of the layout that a file sets."""
    return [int(said[name]) for name in ("dp", "tp", "pp")]


class Layouts(zero_case.Lesson):
    """The configuration files of this lesson, as they are written."""

    program = PROGRAM
    of_a_mesh = {"dp", "tp", "pp", "zero", "schedule"}  # lesson 01 has no such option

    def test_a_configuration_gives_the_bits_of_lesson_01(self):
        paths = sorted((ROOT / PROGRAM).glob("*.conf"))
        self.assertGreaterEqual(len(paths), 3)
        for path in paths:
            with self.subTest(path.name):
                said, small = settings(path), [self.data, "--channels=32", "--sequence=16", "--steps=1", "--arithmetic=exact"]
                dp, tp, pp = degrees(said)
                shared = [f"--{name}={value}" for name, value in said.items() if name not in self.of_a_mesh]
                report = self.report(*small, f"--config={path}", ranks=dp * tp * pp)
                self.assertEqual(report["layout"], {"dp": dp, "tp": tp, "pp": pp})
                self.assertEqual(report["digest"], self.report_of(L01, *small, *shared)["digest"])

    def test_a_configuration_has_the_degrees_of_its_name_and_the_ranks_of_its_comment(self):
        for path in (ROOT / PROGRAM).glob("*.conf"):
            with self.subTest(path.name):
                said, text = settings(path), path.read_text(encoding="utf-8")
                dp, tp, pp = degrees(said)
                named = dict(re.findall(r"([a-z]+)(\d)", path.stem))
                self.assertEqual(named, {name: said[name] for name in named})
                self.assertIn(f": {dp * tp * pp} ranks.", text)
                self.assertIn(f"mpirun -np {dp * tp * pp} build/{PROGRAM} --config={PROGRAM}/{path.name}\n", text)

    def test_a_batch_script_asks_for_the_ranks_of_its_configuration(self):
        """With an srun that prints the command that it would start."""
        srun = pathlib.Path(self.path("srun"))
        srun.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n", encoding="utf-8")
        srun.chmod(0o755)
        environment = {**os.environ, "PATH": f"{self.folder}:{os.environ['PATH']}", "SLURM_CPUS_PER_TASK": "3"}
        scripts = list((ROOT / PROGRAM).glob("*.sbatch"))
        self.assertTrue(scripts)
        for script in scripts:
            with self.subTest(script.name):
                asked = dict(re.findall(r"^#SBATCH --([a-z-]+)=(\d+)$", script.read_text(encoding="utf-8"), re.MULTILINE))
                tasks, per_node = int(asked["ntasks"]), int(asked["ntasks-per-node"])
                done = subprocess.run([script, "--dry-run"], env=environment, cwd=ROOT, check=True, capture_output=True, text=True)
                of_srun, options = done.stdout.split(f"build/{PROGRAM}\n")
                self.assertEqual(of_srun.split(), ["--cpus-per-task=3"])
                self.assertIn("--threads=3", options.split())
                config, = re.findall(r"--config=(\S+)", options)
                dp, tp, pp = degrees(settings(ROOT / config))
                self.assertEqual((tasks, int(asked["nodes"]) * per_node), (dp * tp * pp, tasks))
                self.assertEqual(per_node % tp, 0)  # the parts of a stage share a node
                started = self.run_program(*options.replace(config, str(ROOT / config)).split(), ranks=tasks)
                self.assertEqual(started.returncode, 0, started.stderr)


class Impossible(OnMesh, zero_case.Lesson):
    def test_what_is_no_mesh(self):
        self.assert_all_refused([
            (["--dp=3"], ["With --dp=3 the 4 ranks that were started form no mesh: 3 does not divide them", "as dp tp pp:",
                          "1 2 2"]),
            (["--tp=-1"], ["--tp=-1 is not a number of ranks"]),
            (["--zero=2"], ["--zero=2 is not one of its values", "Use 1"]),
            (["--tp=4", "--heads=2"], ["--tp=4 does not divide the 2 heads", "--tp=1, 2"]),
            (["--pp=4", "--layers=2"], ["the model has 2 blocks"]),
            (["--dp=4", "--global-batch=6"], ["--global-batch=6 cannot be shared out among 4 ranks"]),
            (["--regather"], ["--regather needs --sequence-parallel"]),
            (["--memory-limit=100kB"], ["this run needs", "The least that works on this mesh", "Start more ranks"]),
            (["--memory-limit=1500kB", "--dp=4"], ["The least that works on this mesh", "With these options --dp=1 --tp=4 --pp=1 fits"]),
        ], ranks=4)
        self.assert_refused("--arithmetic=exact", "--dp=1", "--tp=3", "--heads=6", "--channels=48", ranks=3,
                            says=["--tp=3 is not a power of two"])
        self.assert_refused("--arithmetic=exact", "--dp=3", "--global-batch=2", ranks=3, says=["--global-batch=2", "ranks, 3"])


if __name__ == "__main__":
    unittest.main()
