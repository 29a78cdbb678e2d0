"""Lesson 17: the plan of a layout of the lessons is what the lesson itself says, every question has an answer, what is refused, and
how long a search takes."""

import json
import pathlib
import re
import shlex
import time
import unittest

from program_case import ProgramCase

MACHINES = pathlib.Path(__file__).resolve().parents[3] / "lessons/17_choose_a_layout/machines"

PROGRAM = "lessons/17_choose_a_layout"
A100 = f"--machine={MACHINES / 'a100-80gb-sxm.conf'}"
SMALL = ["--layers=4", "--heads=4", "--channels=32", "--context=32", "--vocabulary=256", "--precision=f32"]


class Planner(ProgramCase):
    program = PROGRAM

    def machine(self, **changes):
        """A machine file: that of the A100, with these values of its facts in place of its own."""
        text = (MACHINES / "a100-80gb-sxm.conf").read_text(encoding="utf-8")
        for name, value in changes.items():
            text = re.sub(rf"(?m)^{name.replace('_', '-')} = .*$", f"{name.replace('_', '-')} = {value}", text)
        path = pathlib.Path(self.folder) / "changed.conf"
        path.write_text(text, encoding="utf-8")
        return f"--machine={path}"

    def on_cpus(self):
        """A machine file whose devices are cores, with 4 GB each."""
        return self.machine(device="cpu", memory="4 GB")

    def on_slow_links(self):
        """A machine file with the slowest links and the fastest computation that there may be, so that a step is its messages."""
        return self.machine(device="cpu", gpus_per_node=1024, memory="10 TB", half="1e6 TFLOP/s", single="1e6 TFLOP/s",
                            memory_rate="1e6 TB/s", node_rate="1 GB/s", meeting="1 us", hidden_sums=0, hidden_gathers=0,
                            gather="0.1 ms")

    def plan_and_dry_run(self, machine, gpus, *options):
        """The plan, and the report and the text of the dry run of the command that the planner prints."""
        report = pathlib.Path(self.folder) / "report.json"
        done = self.run_program(machine, f"--gpus={gpus}", *options, f"--report={report}")
        self.assertEqual(done.returncode, 0, done.stderr)
        plan = json.loads(report.read_text(encoding="utf-8"))["plan"]
        words = shlex.split(re.search(r"# run it: (.*)", done.stdout).group(1))
        self.assertEqual(words[:3], ["mpirun", "-np", str(gpus)])
        dry = self.run_program(*words[4:], "--dry-run", f"--ranks={gpus}", f"--report={report}", program=words[3].removeprefix("build/"))
        self.assertEqual(dry.returncode, 0, dry.stderr)
        return plan, json.loads(report.read_text(encoding="utf-8")), dry.stdout


class OfTheLessons(Planner):
    def test_memory_is_that_of_the_command_that_it_prints(self):
        machine = self.on_cpus()
        for gpus, options in [(8, []), (8, ["--tp=2", "--pp=2", "--zero=0"]), (4, ["--pp=4", "--recompute=full"]),
                              (8, ["--zero=3", "--tp=2", "--micro-batch=1"]), (4, ["--zero=2", "--tp=1"]), (8, ["--cp=2", "--tp=2"]),
                              (8, ["--experts=4", "--ep=2", "--tp=2", "--pp=2"]), (16, ["--experts=4", "--cp=2"]),
                              (4, ["--zero=3", "--optimizer=host"]), (8, ["--tp=4", "--sequence-parallel=on"]),
                              (1024, ["--tp=4", "--pp=2"]), (256, ["--zero=3", "--tp=1"])]:
            with self.subTest(gpus=gpus, options=options):
                plan, report, _ = self.plan_and_dry_run(machine, gpus, *SMALL, f"--global-batch={max(16, gpus)}", *options)
                most = max(rank["memory"]["device"]["total"]["peak"] for rank in report["plan"]["ranks"])
                self.assertEqual(plan["bytes"], most)

    def test_messages_take_the_bytes_of_the_command_that_it_prints(self):
        machine = self.on_slow_links()
        for dp, tp, pp, zero, divided in [(8, 1, 1, 0, "off"), (8, 1, 1, 1, "off"), (8, 1, 1, 2, "off"), (8, 1, 1, 3, "off"),
                                          (2, 4, 1, 3, "off"), (1, 8, 1, 0, "off"), (1, 8, 1, 0, "on"), (1, 1, 8, 0, "off"),
                                          (64, 2, 2, 0, "off"), (256, 4, 1, 2, "off")]:
            with self.subTest(dp=dp, tp=tp, pp=pp, zero=zero, sequence_parallel=divided):
                plan, _, text = self.plan_and_dry_run(
                    machine, dp * tp * pp, "--layers=8", "--heads=32", "--channels=4096", "--context=2048", "--vocabulary=51200",
                    "--precision=f32", f"--global-batch={max(16, 2 * dp)}", "--micro-batch=1", f"--dp={dp}", f"--tp={tp}", f"--pp={pp}",
                    f"--zero={zero}", f"--sequence-parallel={divided}", "--recompute=none", "--virtual-stages=1")
                for part, words in [("tensor-parallel sums", "to parts|to tensor-parallel ranks"),
                                    ("messages between replicas", "to replicas|of the tied embedding|to ranks with other shards")]:
                    sent = sum(int(number.replace(",", "")) for number in re.findall(rf"a step, (?:{words}) +([\d,]+)", text))
                    self.assertAlmostEqual(plan["time_s"][part], sent / 1e9, delta=0.002 * sent / 1e9 + 1e-4)

    def test_the_idle_share_is_that_of_the_command_that_it_prints(self):
        machine = self.on_slow_links()
        for gpus, pp, stages in [(4, 4, 1), (4, 4, 2), (8, 2, 4), (1024, 16, 1)]:
            with self.subTest(gpus=gpus, pp=pp, stages=stages):
                plan, report, _ = self.plan_and_dry_run(
                    machine, gpus, "--layers=64", "--heads=4", "--channels=256", "--context=256", "--vocabulary=64", "--precision=f32",
                    f"--global-batch={16 * gpus // pp}", "--micro-batch=1", f"--dp={gpus // pp}", "--tp=1", f"--pp={pp}",
                    f"--virtual-stages={stages}", "--zero=0", "--sequence-parallel=off", "--recompute=none")
                time_s = plan["time_s"]
                in_pipeline = sum(time_s[part] for part in ("computation", "waiting for the host", "bubble"))
                self.assertAlmostEqual(time_s["bubble"] / in_pipeline / report["schedule"]["idle"]["formula"], 1, delta=0.02)


class OfOtherPrograms(Planner):
    def test_activations_are_of_the_micro_batches_that_lesson_09_has_in_flight(self):
        sizes = ["--layers=16", "--heads=4", "--channels=256", "--context=128", "--vocabulary=64"]
        layer = 128 * 256 * (34 + 5 * 4 * 128 / 256)  # T b C (34 + 5 H T / C)
        rest = {}  # what a stage has beside activations, however many micro-batches there are
        for p, v, m in [(4, 1, 1), (4, 1, 2), (4, 1, 3), (4, 1, 4), (4, 1, 9), (8, 1, 2), (8, 1, 8), (4, 2, 4), (4, 4, 8)]:
            with self.subTest(p=p, v=v, m=m):
                schedule = ["--schedule=interleaved", f"--virtual-stages={v}"] if v > 1 else []
                report = pathlib.Path(self.folder) / "report.json"
                dry = self.run_program("--dry-run", f"--ranks={p}", "--layers=16", *schedule, f"--global-batch={m}", "--micro-batch=1",
                                       f"--report={report}", program="lessons/09_pipeline_parallel")
                self.assertEqual(dry.returncode, 0, dry.stderr)
                in_flight = json.loads(report.read_text(encoding="utf-8"))["schedule"]["max_in_flight"]
                kept = [layer * 16 / (p * v) * most for most in in_flight]
                plan = self.report(A100, "--system=megatron", *sizes, f"--gpus={p}", f"--pp={p}", "--tp=1", "--dp=1", "--zero=0",
                                   "--recompute=none", "--sequence-parallel=off", "--micro-batch=1", f"--virtual-stages={v}",
                                   f"--global-batch={m}")["plan"]
                largest = plan["stage_bytes"].index(plan["bytes"])
                self.assertEqual(plan["memory_bytes"]["activations"], kept[largest])
                others = [bytes_ - activations for bytes_, activations in zip(plan["stage_bytes"], kept)]
                self.assertEqual(others, rest.setdefault(p, others))


class Questions(Planner):
    def answer(self, *options):
        return self.report(A100, "--system=megatron", *options)

    def test_a_search_over_a_thousand_gpus_takes_seconds(self):
        begin = time.monotonic()
        report = self.answer("--model=175b", "--gpus=1024", "--global-batch=1536")
        self.assertLess(time.monotonic() - begin, 10)
        steps = [plan["step_s"] for plan in report["layouts"]]
        self.assertEqual(steps, sorted(steps))
        self.assertEqual(len(steps), 6)
        plan = report["plan"]
        self.assertAlmostEqual(sum(plan["time_s"].values()), plan["step_s"])
        self.assertAlmostEqual(sum(plan["memory_bytes"].values()), plan["bytes"])
        self.assertEqual(max(plan["stage_bytes"]), plan["bytes"])
        self.assertLessEqual(plan["bytes"], 80e9)
        self.assertAlmostEqual(plan["days"], 300e9 / (1536 * 2048) * plan["step_s"] / 86400)

    def test_the_four_other_questions(self):
        report = self.answer("--model=175b", "--gpus=64", "--question=largest-model")
        fits = {model["name"]: model["fits"] for model in report["models"]}
        self.assertTrue(fits["22b"] and not fits["1t"])
        self.assertGreaterEqual(report["largest_layers"], 96 if fits["175b"] else 8)

        report = self.answer("--model=175b", "--global-batch=1536", "--question=fewest-gpus", "--days=40")
        self.assertLessEqual(report["plan"]["days"], 40)
        fewer = self.answer("--model=175b", "--global-batch=1536", "--question=days", f"--gpus={report['fewest_gpus'] // 2}")
        self.assertGreater(fewer["plan"]["days"], 40)

        report = self.answer("--model=22b", "--gpus=64", "--question=bandwidth")
        steps = [network["step_s"] for network in report["networks"]]
        self.assertEqual(steps, sorted(steps, reverse=True))

    def test_every_machine_and_system_has_a_plan(self):
        for machine in sorted(MACHINES.iterdir()):
            for system in ("rankwise", "megatron", "deepspeed"):
                with self.subTest(machine=machine.name, system=system):
                    self.report(f"--machine={machine}", f"--system={system}", "--model=gpt2-xl", "--gpus=16")


class Refusals(Planner):
    def test_several_processes(self):
        self.assert_refused(A100, "--model=22b", ranks=2, says=["the planner is one process; 2 were started"])

    def test_what_cannot_be_planned(self):
        self.assert_all_refused([
            (["--model=22b"], ["--machine is missing"]),
            ([A100, "--model=23b"], ["--model=23b is not a model"]),
            ([A100, "--model=22b", "--system=megatron", "--experts=4"], ["experts are known of lesson 16 only"]),
            ([A100, "--model=22b", "--experts=4", "--ep=3", "--gpus=64"], ["ep=3 does not divide"]),
            ([A100, "--model=22b", "--precision=fp16"], ["fp16 is not known of the lessons"]),
            ([A100, "--model=22b", "--precision=f32", "--system=megatron"], ["f32 is planned for the lessons only"]),
            ([A100, "--dp=4294967296", "--tp=4294967296"], ["more than 8 GPUs"]),
            ([A100, "--global-batch=9223372036854775807"], ["is above 10^9"]),
            ([A100, "--model=175b"], ["The layout that needs least"]),
            ([A100, "--check=/tmp"], ["/tmp is a folder"]),
            ([A100, "--gpus=0"], ["--gpus=0 is not from 1"]),
            ([A100, "--days=3"], ["--days=3 on another question", "--question=fewest-gpus"]),
            ([A100, "--question=fewest-gpus", "--gpus=16"], ["--gpus=16 with --question=fewest-gpus"]),
            ([A100, "--question=largest-model", "--layers=16"], ["--layers=16 with --question=largest-model"]),
            ([A100, "--context=-1"], ["--context=-1 is out of range"]),
            ([A100, "--only=x"], ["--only=x without measured steps"]),
            ([A100, "--model=22b", "--auxiliary-loss=0.1"], ["--auxiliary-loss=0.1 with --experts=1"]),
            ([A100, "--context=2147483648", "--channels=8", "--heads=1", "--layers=1", "--vocabulary=8"], ["operations, too many"]),
            ([A100, "--rows=11"], ["--rows=11 is not from 1 to 10"]),
            ([A100, "--model=22b", "--system=megatron", "--tp=7"], ["the degrees do not divide 8 GPUs"]),
            ([A100, "--model=22b", "--system=megatron", "--zero=3"], ["Megatron-LM"]),
            ([A100, "--model=22b", "--system=megatron", "--gpus=8", "--micro-batch=5"], ["do not divide the global batch"]),
            ([A100, "--model=175b", "--system=megatron", "--gpus=8"], ["The layout that needs least"]),
            ([A100, "--model=22b", "--system=megatron", "--gpus=16", "--pp=1", "--recompute=none", "--tp=2"], ["This one fits"]),
            ([A100, "--model=1t", "--system=megatron", "--question=fewest-gpus", "--days=1e-3"], ["No number of GPUs"]),
            ([A100, "--calibrate=nowhere.csv"], ["nowhere.csv"]),
            (["--machine=nowhere.conf"], ["--machine=nowhere.conf does not exist"])])


if __name__ == "__main__":
    unittest.main()
