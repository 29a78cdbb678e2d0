"""The frame around every lesson: it stops between steps when it is asked to, its report and its log are written as the run goes
on, and a dry run of one process answers for any number of ranks.
"""

import concurrent.futures
import contextlib
import fcntl
import glob
import json
import os
import pty
import re
import resource
import shutil
import signal
import struct
import subprocess
import termios
import time
import unittest
import uuid

from program_case import ALL, BUILD, TIME_LIMIT_S, ProgramCase, ShortTextCase, run_to_its_end

SMALL = ["--layers=1", "--sequence=16", "--dropout=0.1"]
ENDLESS = "--steps=1000000"
LOOK_S = 0.01  # between two looks
CORES = getattr(os, "sched_getaffinity", lambda _: ())(0)


def wait_until(holds, what):
    """Looks until it holds; however slow the machine is, something must have gone wrong after TIME_LIMIT_S."""
    end = time.monotonic() + TIME_LIMIT_S
    while not holds():
        if time.monotonic() > end:
            raise AssertionError(f"waited too long for {what}")
        time.sleep(LOOK_S)


class Job:
    """A run that would not end by itself. Its ranks are found by a mark in their environment."""

    def __init__(self, command, ranks, folder, interrupt=signal.SIG_DFL):
        self.ranks, self.report_path = ranks, os.path.join(folder, "running.json")
        with contextlib.suppress(FileNotFoundError):
            os.remove(self.report_path)
        self.output_path = os.path.join(folder, "output.txt")
        self.mark = f"RANKWISE_JOB={uuid.uuid4()}"
        launcher = [] if ranks is None else ["mpirun", "-np", str(ranks)]
        with open(self.output_path, "wb") as output:
            self.process = subprocess.Popen(
                [*launcher, *command, f"--report={self.report_path}"], stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                env=dict([*os.environ.items(), tuple(self.mark.split("="))]),
                preexec_fn=lambda: signal.signal(signal.SIGINT, interrupt))

    def rank(self, number):
        """The process id of a rank that runs."""
        if self.ranks is None:
            return self.process.pid
        name = f"OMPI_COMM_WORLD_RANK={number}".encode()
        for path in glob.glob("/proc/[0-9]*/environ"):
            with contextlib.suppress(OSError), open(path, "rb") as file:  # it has ended, or is somebody else's
                environment = file.read().split(b"\0")
                if self.mark.encode() in environment and name in environment:
                    return int(path.split("/")[2])
        raise AssertionError(f"rank {number} is not there:\n{self.output()}")

    def wait_for_report(self):
        """Until the first validation, after which the report is there."""
        wait_until(lambda: os.path.exists(self.report_path) or self.process.poll() is not None, "the first report")

    def wait(self):
        """The exit status."""
        return self.process.wait(TIME_LIMIT_S)

    def output(self):
        with open(self.output_path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def report(self):
        with open(self.report_path, encoding="utf-8") as file:
            return json.load(file)

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


class Frame(ShortTextCase):
    def setUp(self):
        super().setUp()
        self.fast = [self.data, *SMALL]
        self.small = [*self.fast, "--arithmetic=exact"]

    def start(self, program, ranks, *options, interrupt=signal.SIG_DFL):
        """A job that has made a step and validated."""
        self.program = f"lessons/{program}"
        job = Job([os.path.join(BUILD, self.program), *options, "--evaluate-every=1"], ranks, self.folder, interrupt)
        self.addCleanup(job.end)
        job.wait_for_report()
        return job


class Starting(ProgramCase):
    def test_many_may_start_at_once_without_a_launcher(self):
        """Each is a job of its own, which shares no folder with the others: see prepare_single_rank()."""
        command = [os.path.join(BUILD, "lessons/01_single_device"), "--steps=none"]  # it starts, refuses and ends
        with concurrent.futures.ThreadPoolExecutor(max_workers=6) as pool:
            runs = list(pool.map(lambda _: subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT_S),
                                 range(300 if ALL else 60)))
        self.assertEqual([run.stderr for run in runs if run.returncode != 2], [])


class Screen(Frame):
    def shown(self, *command, to_terminal, columns=120, **variables):
        """Text of a run on a terminal: its output and errors, or its errors alone, while a pipe takes the output."""
        keyboard, screen = os.openpty()
        fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=screen if to_terminal else subprocess.PIPE, stderr=screen,
                              env=os.environ | variables) as process:
            os.close(screen)
            text = b""
            with contextlib.suppress(OSError):  # Linux: the other end is closed
                while block := os.read(keyboard, 4096):
                    text += block
            output = b"" if to_terminal else process.stdout.read()
        os.close(keyboard)
        self.assertEqual(process.returncode, 0, text)
        return text.decode(), output.decode()

    def test_a_terminal_has_colours_and_a_bar_under_a_launcher_too(self):
        run = [os.path.join(BUILD, "lessons/03_ddp"), *self.fast, "--steps=3"]
        for command in (run, ["mpirun", "-np", "2", *run]):
            with self.subTest(command=command):
                text, _ = self.shown(*command, to_terminal=True)
                self.assertIn("\033[32m  PASS\033[0m", text)
                self.assertRegex(text, r"\[#+\.*\] 2 of 3 steps, loss [\d.]+, [\d,]+ tokens/s, [\d.]+ MB, \d+:\d\d to go")
                self.assertNotIn("\033[32m", self.shown(*command, to_terminal=True, NO_COLOR="1")[0])
                text, output = self.shown(*command, to_terminal=False)
                self.assertNotIn("\033", output)
                self.assertIn("  PASS  ", output)
                self.assertIn("to go", text)

    def test_the_bar_is_no_longer_than_a_line_of_the_terminal(self):
        run = [os.path.join(BUILD, "lessons/03_ddp"), *self.fast, "--steps=3"]
        for command in (run, ["mpirun", "-np", "2", *run]):
            for columns in (80, 60, 20):
                text, _ = self.shown(*command, to_terminal=True, columns=columns)
                bars = re.findall(r"\r([^\r\n]*)\033\[K", text)
                self.assertEqual(len(bars), 3, text)
                for bar in bars:
                    self.assertIn(" of 3 steps", bar)
                    self.assertLess(len(bar), columns)
                self.assertEqual(bars[0].startswith("["), columns > 60, bars[0])

    def test_a_dumb_terminal_gets_text_alone(self):
        run = [os.path.join(BUILD, "lessons/03_ddp"), *self.fast, "--steps=3"]
        for terminal in ("dumb", "", "unknown"):
            self.assertNotIn("\033", self.shown(*run, to_terminal=True, TERM=terminal)[0], terminal)


class Stopping(Frame):
    def assert_stops(self, program, ranks, number, send, *options):
        """On a signal the run stops after a step, reports and saves; resumed, it ends like the undisturbed run."""
        file = os.path.join(self.folder, f"{program}-{ranks}-{number}.h5")
        fixed = [*self.small, ENDLESS, *options]
        job = self.start(program, ranks, *fixed, f"--checkpoint={file}")
        send(job)
        self.assertEqual(job.wait(), 128 + number, job.output())
        report = job.report()
        made = len(report["loss"])
        self.assertIn(f"# stopped by {signal.Signals(number).name} after step {made} of", job.output())
        self.assertTrue(report["finished"])
        if ranks is not None and ranks > 1:
            self.assertIn(("digest on every rank", True), [(check["name"], check["pass"]) for check in report["checks"]])
        self.assertTrue(all(check["pass"] for check in report["checks"]), report["checks"])

        end = f"--stop-after={made + 2}"
        resumed = self.report(*fixed, f"--checkpoint={file}", "--resume", end, ranks=ranks)
        whole = self.report(*fixed, end, f"--checkpoint={file}.whole", ranks=ranks)
        self.assertEqual(resumed["first_step"], made)
        self.assertEqual(report["loss"] + resumed["loss"], whole["loss"])
        self.assertEqual(resumed["digest"], whole["digest"])

    def test_one_process(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
                       signal.SIGALRM, signal.SIGXCPU):
            with self.subTest(number=number):
                def send(job):
                    for _ in range(3 if number == signal.SIGXCPU else 1):  # the system repeats that one
                        job.process.send_signal(number)
                        time.sleep(LOOK_S)

                self.assert_stops("01_single_device", None, number, send)

    def test_all_ranks_stop_after_the_same_step_whoever_was_asked(self):
        for program, ranks, asked, *options in [("03_ddp", 2, 1), ("06_zero3", 4, 2), ("04_zero1", 1, 0)]:
            with self.subTest(program=program, ranks=ranks):
                self.assert_stops(program, ranks, signal.SIGTERM,
                                  lambda job: os.kill(job.rank(asked), signal.SIGTERM), *options)

    def test_the_launcher_passes_sigusr1_on(self):
        self.assert_stops("05_zero2", 4, signal.SIGUSR1, lambda job: job.process.send_signal(signal.SIGUSR1))

    def test_a_sample_is_left_unfinished(self):
        job = self.start("03_ddp", 2, *self.fast, "--steps=1", "--sample=1000000")
        time.sleep(5 * LOOK_S)
        os.kill(job.rank(1), signal.SIGTERM)
        self.assertEqual(job.wait(), 128 + signal.SIGTERM, job.output())
        self.assertIn("# stopped by SIGTERM after step 1, in a sample", job.output())
        self.assertTrue(job.report()["finished"])

    def test_without_a_checkpoint_it_reports_all_the_same(self):
        job = self.start("03_ddp", 3, *self.fast, ENDLESS, "--global-batch=12")
        os.kill(job.rank(0), signal.SIGINT)
        self.assertEqual(job.wait(), 128 + signal.SIGINT, job.output())
        self.assertTrue(job.report()["finished"])

    def test_a_terminal_that_is_closed_stops_the_run(self):
        """The system sends SIGHUP, and nothing can be printed any more."""
        saved, report = (os.path.join(self.folder, name) for name in ("run.h5", "run.json"))
        program = os.path.join(BUILD, "lessons/01_single_device")
        process, terminal = pty.fork()
        if process == 0:
            os.execv(program, [program, *self.small, ENDLESS, f"--checkpoint={saved}", f"--report={report}", "--evaluate-every=1"])
        wait_until(lambda: os.read(terminal, 4096) and os.path.exists(report), "the first report")
        os.close(terminal)
        ended = []
        wait_until(lambda: ended or (number := os.waitpid(process, os.WNOHANG))[0] and not ended.append(number[1]), "the end")
        self.assertEqual(os.waitstatus_to_exitcode(ended[0]), 128 + signal.SIGHUP)
        with open(report, encoding="utf-8") as file:
            made = len(json.load(file)["loss"])
        self.program = "lessons/01_single_device"
        resumed = self.report(*self.small, f"--steps={made + 1}", f"--checkpoint={saved}", "--resume")
        self.assertEqual(resumed["first_step"], made)

    def test_signals_of_writes_that_fail_become_a_sentence(self):
        program = os.path.join(BUILD, "lessons/01_single_device")
        with subprocess.Popen([program, *self.small, ENDLESS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
            run.stdout.readline()
            run.stdout.close()  # as head -1 does
            self.assertRegex(run.stderr.read(), "cannot print the report: Broken pipe")
        self.assertEqual(run.returncode, 1)
        saved = os.path.join(self.folder, "run.h5")
        done = subprocess.run([program, *self.small, "--steps=1", f"--checkpoint={saved}"], capture_output=True, text=True,
                              timeout=TIME_LIMIT_S, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100000, 100000)))
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("File too large", done.stderr)
        self.assertIn(saved, done.stderr)
        self.assertEqual([name for name in os.listdir(self.folder) if name.startswith("run.h5")], [])

    def test_a_limit_of_the_time_asks_to_stop_before_the_system_kills(self):
        saved = os.path.join(self.folder, "run.h5")
        done = subprocess.run([os.path.join(BUILD, "lessons/01_single_device"), *self.small, ENDLESS, f"--checkpoint={saved}"],
                              capture_output=True, text=True, timeout=TIME_LIMIT_S,
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (4, 4)))
        self.assertEqual(done.returncode, 128 + signal.SIGXCPU, done.stderr)
        self.assertTrue(os.path.exists(saved))

    @unittest.skipIf(len(CORES) < 2 or not shutil.which("taskset"), "on one core ranks have no choice")
    def test_ranks_that_are_bound_to_the_same_core(self):
        for bound in (["env", "OMP_PROC_BIND=true", "mpirun", "-np", "2"], ["env", f"GOMP_CPU_AFFINITY={min(CORES)}", "mpirun", "-np", "2"],
                      ["mpirun", "-np", "2", "taskset", "-c", str(min(CORES))], ["mpirun", "-np", "2"]):
            with self.subTest(bound=bound):
                done = run_to_its_end([*bound, os.path.join(BUILD, "lessons/03_ddp"), *self.small, "--steps=1"])
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                self.assertEqual("the 2 threads of the ranks on the machine of rank 0 are bound to 1 of its" in done.stdout,
                                 len(bound) > 3, done.stdout)

    def test_threads_that_do_not_start(self):
        for variable in ("OMP_THREAD_LIMIT=1", "OMP_MAX_ACTIVE_LEVELS=0"):
            done = run_to_its_end(["env", variable, os.path.join(BUILD, "lessons/01_single_device"), *self.fast, "--steps=1", "--threads=2"])
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn("error: --threads=2, of which only 1 start.", done.stderr)

    def test_a_signal_that_is_ignored_stays_so(self):
        job = self.start("01_single_device", None, *self.small, ENDLESS, interrupt=signal.SIG_IGN)
        job.process.send_signal(signal.SIGINT)
        made = len(job.report()["loss"])
        wait_until(lambda: len(job.report()["loss"]) > made + 2 or job.process.poll() is not None, "further steps")
        job.process.send_signal(signal.SIGTERM)
        self.assertEqual(job.wait(), 128 + signal.SIGTERM, job.output())

    def test_the_second_signal_ends_a_rank_at_once(self):
        file = os.path.join(self.folder, "run.h5")
        job = self.start("03_ddp", 2, *self.small, ENDLESS, f"--checkpoint={file}")
        waiting, held = job.rank(0), job.rank(1)
        os.kill(held, signal.SIGSTOP)  # so rank 0 does not come to the end of a step
        handled = 1 << (signal.SIGTERM - 1)

        def noted():
            with open(f"/proc/{waiting}/status", encoding="utf-8") as status:
                return not int(re.search(r"SigCgt:\s*(\w+)", status.read())[1], 16) & handled

        self.assertFalse(noted())
        os.kill(waiting, signal.SIGTERM)
        wait_until(noted, "rank 0 to note the signal")
        self.assertIsNone(job.process.poll())
        os.kill(waiting, signal.SIGTERM)
        self.assertNotEqual(job.wait(), 0)
        self.assertIn("signal 15", job.output())
        self.assertNotIn("stopped by", job.output())
        self.assertFalse(job.report()["finished"])
        self.assertFalse(os.path.exists(file))


class ReportAsItGoesOn(Frame):
    def test_the_last_document_stands_when_the_job_is_killed(self):
        for program, ranks in (("01_single_device", None), ("06_zero3", 2)):
            with self.subTest(program=program):
                job = self.start(program, ranks, *self.small, ENDLESS)
                os.kill(job.rank(0), signal.SIGKILL)
                self.assertNotEqual(job.wait(), 0)
                report = job.report()
                self.assertFalse(report["finished"])
                self.assertEqual([entry["step"] for entry in report["validation"]],
                                 list(range(1, len(report["loss"]) + 1)))
                self.assertEqual((report["digest"], "memory" in report), ("", False))
                whole = self.report(*self.small, ENDLESS, f"--stop-after={len(report['loss'])}", "--evaluate-every=1",
                                    f"--checkpoint={self.folder}/{program}.h5", ranks=ranks)
                self.assertTrue(whole["finished"])
                for what in ("loss", "grad_norm", "validation", "model", "layout", "lesson", "ranks", "first_step"):
                    self.assertEqual(whole[what], report[what], what)

    def test_a_checkpoint_comes_with_a_document_too(self):
        file = os.path.join(self.folder, "run.h5")
        options = [*self.small, "--steps=3", f"--checkpoint={file}", "--checkpoint-every=1", "--learning-rate=1e38", "--warmup=0",
                   "--clip=0"]  # the second or third step is not finite any more, and ends the run
        self.program = "lessons/03_ddp"
        path = os.path.join(self.folder, "report.json")
        done = self.run_program(*options, f"--report={path}", ranks=2)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        with open(path, encoding="utf-8") as file:
            report = json.load(file)
        self.assertFalse(report["finished"])
        self.assertGreaterEqual(len(report["loss"]), 1)


class Time(Frame):
    """Virtual arithmetic of a step: measured beside the formula; and a dry run's time of a step."""

    LINK = ["--link=5us,10GB/s", "--flops=100GFLOP/s"]
    CASES = [("03_ddp", 3, ["--micro-batch=1"]), ("04_zero1", 2, ["--recompute=block"]), ("05_zero2", 2, ["--micro-batch=1"]),
             ("06_zero3", 2, ["--recompute=block"]), ("07_offload", 2, []),
             ("08_tensor_parallel", 2, ["--recompute=block"]), ("08_tensor_parallel", 4, ["--tp=2", "--dp=2", "--sequence-parallel"]),
             ("09_pipeline_parallel", 2, ["--recompute=block", "--micro-batch=2"]),
             ("11_zero_bubble", 2, ["--recompute=block", "--micro-batch=2"]),
             ("10_3d_parallel", 4, ["--tp=2", "--pp=2", "--micro-batch=2"])]

    def test_arithmetic_of_a_step_is_the_formula_whatever_is_done_between_steps(self):
        for program, ranks, options in self.CASES:
            with self.subTest(program=program, options=options):
                self.program = f"lessons/{program}"
                report = self.report(self.fast[0], "--layers=2", "--sequence=16", *self.LINK, *options, f"--global-batch={4 * ranks}", "--steps=3",
                                     "--evaluate-every=1", ranks=ranks)
                check = {check["name"]: check for check in report["checks"]}["FLOP of a step"]
                self.assertTrue(check["pass"], check)
                self.assertEqual(len({step["compute_ps"] for step in report["virtual"]}), 1, report["virtual"])

    def planned_ms(self, link):
        """Lines of the block "time" of a dry run of lesson 03 on four ranks."""
        done = self.run_program(*self.fast, link, self.LINK[1], "--dry-run", "--ranks=4", "--global-batch=8",
                                program="lessons/03_ddp")
        self.assertEqual(done.returncode, 0, done.stderr)
        block = done.stdout[done.stdout.index("\ntime\n"):].splitlines()[2:6]
        return {what: float(ms) for what, ms in (re.match(r"  (.+?)  +([0-9.]+)  ms", line).groups() for line in block)}

    def test_a_dry_run_times_arithmetic_messages_and_the_step(self):
        times_ms = self.planned_ms(self.LINK[0])
        self.assertEqual(list(times_ms), ["step", "compute", "communication", "exposed"])
        self.assertAlmostEqual(times_ms["step"], times_ms["compute"] + times_ms["exposed"], 3)
        self.assertGreaterEqual(times_ms["communication"], times_ms["exposed"])

    def test_a_script_is_that_of_a_dry_run_with_a_link(self):
        self.program = "lessons/03_ddp"
        for options in [], ["--dry-run"], [self.LINK[0]]:
            self.assert_refused("--script=x", *options, says=["--script=x without --dry-run and --link."])

    def test_messages_between_nodes_take_the_time_of_the_link_between_them(self):
        near, far = (self.planned_ms(link)["communication"] for link in (self.LINK[0], "--link=5us,10GB/s,50us,1GB/s,2"))
        self.assertGreater(far, 5 * near)
        self.assertLess(far, 10 * near)



class DryRun(ProgramCase):
    """`--ranks=N` in one process beside `mpirun -np N`."""

    CASES = {
        "03_ddp": [[], ["--strategy=flat", "--precision=bf16", "--gradients=bf16"], ["--arithmetic=exact", "--micro-batch=1"],
                   ["--collectives=hierarchical", "--ranks-per-node=2"]],
        "04_zero1": [[], ["--bucket=100kB", "--model=mini"], ["--precision=bf16", "--arithmetic=exact"]],
        "05_zero2": [[], ["--bucket=100kB", "--micro-batch=1"], ["--precision=bf16", "--gradients=bf16"]],
        "06_zero3": [[], ["--unit=branch", "--prefetch=0", "--micro-batch=1"],
                     ["--persist=4096", "--recompute=block", "--precision=bf16"], ["--reshard=after-backward"]],
    }

    def answer(self, program, *options, ranks=None):
        """Output and report, without the two options that are not the same and the columns that these widen."""
        path = os.path.join(self.folder, f"{ranks}.json")
        done = self.run_program("--dry-run", *options, f"--report={path}", ranks=ranks, program=f"lessons/{program}")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
        for option in ("ranks", "report"):
            document["options"].pop(option, None)
        del document["provenance"]  # has the time
        return re.sub(" +", " ", re.sub(r"# --(ranks|report) .*\n", "", done.stdout)), document

    def assert_same_answers(self, ranks):
        for program, cases in self.CASES.items():
            for options in cases if ranks == 4 else cases[:2]:
                if "--collectives=hierarchical" in options and ranks % 2 == 1:
                    continue
                options = [*options, f"--global-batch={8 * ranks}"]
                with self.subTest(program=program, ranks=ranks, options=options):
                    expected = self.answer(program, *options, ranks=ranks)
                    self.assertEqual(self.answer(program, *options, f"--ranks={ranks}"), expected)
                    self.assertEqual(expected[1]["ranks"], ranks)

    def test_one_rank(self):
        self.assert_same_answers(1)

    def test_two_ranks(self):
        self.assert_same_answers(2)

    def test_three_ranks(self):
        self.assert_same_answers(3)

    def test_four_ranks(self):
        self.assert_same_answers(4)

    @unittest.skipUnless(ALL, "at night")
    def test_eight_ranks(self):
        self.assert_same_answers(8)

    def test_the_report_has_the_plan_of_every_rank(self):
        for ranks in (1, 2, 3, 4) if ALL else (3, 4):
            for program, options in (("03_ddp", []), ("06_zero3", ["--micro-batch=1"]), ("07_offload", []), ("09_pipeline_parallel", [])):
                with self.subTest(program=program, ranks=ranks):
                    options = ["--layers=4", "--sequence=16", f"--global-batch={2 * ranks}", "--link=5us,10GB/s", *options]
                    plan = self.answer(program, *options, f"--ranks={ranks}")[1]["plan"]
                    self.program = f"lessons/{program}"
                    run = self.report("--steps=1", *options, ranks=ranks)
                    self.assertEqual(plan["parameters"], run["model"]["parameters"])
                    self.assertEqual(len(plan["ranks"]), ranks)
                    for planned, measured in zip(plan["ranks"], run["memory_ranks"]):
                        for category, bytes_ in measured["device"].items():
                            self.assertEqual(planned["memory"]["device"][category], {"kept": bytes_["current"], "peak": bytes_["peak"]})
                        self.assertEqual(planned["memory"]["device"]["total"]["kept"],
                                         sum(bytes_["current"] for bytes_ in measured["device"].values()))
                    for axis, sent in plan["ranks"][0]["sent"].items():
                        self.assertEqual(sent, {what: run["traffic"][axis][what] for what in ("bytes", "messages")})
                    flops = {check["name"]: check for check in run["checks"]}["FLOP of a step"]["measured"]
                    self.assertEqual(f"{plan['ranks'][0]['flops']:,}", flops)
                    if program == "07_offload":
                        self.assertEqual(plan["ranks"][0]["memory"]["host"]["total"]["kept"], run["tiers"]["host"]["bytes"])

    def test_the_number_that_is_asked_for_counts_whatever_was_started(self):
        self.assertEqual(self.answer("05_zero2", "--ranks=4", ranks=2), self.answer("05_zero2", ranks=4))

    def test_only_a_dry_run_answers_for_others(self):
        self.program = "lessons/06_zero3"
        self.assert_all_refused([(["--ranks=4"], ["--ranks=4 without --dry-run", "mpirun -np N"]),
                                 (["--flops=1GFLOP/s"], ["--flops=1GFLOP/s without --link", "add --link"]),
                                 *((["--dry-run", f"--{option}=x"], [f"--{option}=x with --dry-run", "Use --report"])
                                   for option in ("trace", "log", "record", "html")),
                                 (["--dry-run", "--ranks=-1"], ["--ranks=-1 is out of range"]),
                                 (["--dry-run", "--ranks=3"], ["cannot be shared out among 3 ranks"])])
        self.assert_refused("--ranks=4", ranks=2, says=["--ranks=4 without --dry-run"])

    def test_one_device_is_one_rank(self):
        self.assertEqual(self.answer("01_single_device"), self.answer("01_single_device", ranks=1))


class Utilisation(Frame):
    def setUp(self):
        super().setUp()
        self.program = "lessons/03_ddp"

    def test_shares_of_a_given_peak(self):
        for ranks in (None, 2):
            with self.subTest(ranks=ranks):
                report = self.report(*self.fast, "--steps=3", "--peak=1GFLOP/s", "--recompute=block", ranks=ranks)
                block = report["utilisation"]
                self.assertEqual(block["peak_flops_per_s"], 1e9 * (ranks or 1))
                for count in block["counts"]:
                    self.assertAlmostEqual(count["flops_per_s"], count["flops"] / report["time"]["step_s"], delta=1)
                    self.assertAlmostEqual(count["share"], count["flops_per_s"] / block["peak_flops_per_s"])
                counts = {count["name"]: count for count in block["counts"]}
                self.assertAlmostEqual(counts["MFU"]["flops_per_s"] * 1e-12, report["time"]["tflops"])
                self.assertGreater(counts["HFU"]["flops"], counts["MFU"]["flops"])

    def test_a_measured_peak_belongs_to_no_category_of_memory(self):
        done = self.run_program(*self.fast, "--steps=2", "--peak=measured", "--memory-limit=5MB", ranks=2)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"peak +[0-9.e-]+ +TFLOP/s of 2 devices; the fastest f32 matrix product")

    def test_no_peak_is_assumed(self):
        self.assertNotIn("utilisation", self.report(*self.fast, "--steps=1", ranks=2))

    def test_no_rate(self):
        for peak in ("312", "fast", "0GFLOP/s", "-1TFLOP/s", "312TB/s"):
            self.assert_refused(f"--peak={peak}", says=[f"--peak={peak} is not a rate", "--peak=100GFLOP/s"])


class Samples(Frame):
    def texts(self, program, *options, ranks=None):
        done = self.run_program("--layers=2", "--sequence=16", "--steps=1", "--arithmetic=exact", *options, ranks=ranks,
                                program="lessons/" + program)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout.partition("# sample")[2].partition("checks")[0]

    def test_a_prompt_is_continued_alike_on_every_layout(self):
        asked = ("--sample=5", "--samples=2", "--prompt=ab", "--top-p=0.9")
        text = self.texts("01_single_device", *asked)
        self.assertEqual(text.count("ab"), 2, text)
        self.assertIn("sample 2:", text)
        for program, ranks in (("03_ddp", 2), ("06_zero3", 2), ("09_pipeline_parallel", 2)):
            with self.subTest(program=program):
                self.assertEqual(self.texts(program, *asked, ranks=ranks), text)

    def test_a_prompt_from_a_file(self):
        path = os.path.join(self.folder, "prompt.txt")
        with open(path, "w", encoding="utf-8") as file:
            file.write("ab")
        self.assertEqual(self.texts("01_single_device", "--sample=3", f"--prompt-file={path}"),
                         self.texts("01_single_device", "--sample=3", "--prompt=ab"))

    def test_a_prompt_from_standard_input(self):
        whole = ("--layers=2", "--sequence=16", "--steps=1", "--arithmetic=exact", "--sample=3", "--prompt-file=/dev/stdin")
        done = subprocess.run([os.path.join(BUILD, "lessons/01_single_device"), *whole], input="ab", capture_output=True, text=True)
        self.assertEqual(done.stdout.partition("# sample")[2].partition("checks")[0],
                         self.texts("01_single_device", "--sample=3", "--prompt=ab"), done.stderr)

    def test_a_sample_ends_at_its_stop_token(self):
        with_all = self.texts("01_single_device", "--sample=6", "--temperature=0", "--prompt=ab")
        drawn = with_all[with_all.index("ab") + 2]
        if drawn.isprintable():
            text = self.texts("01_single_device", "--sample=6", "--temperature=0", "--prompt=ab", f"--stop={drawn}")
            self.assertEqual(text[text.index("ab") + 2:].rstrip("\n"), drawn)

    def test_what_no_sample_can_have(self):
        self.program = "lessons/03_ddp"
        self.assert_all_refused([
            *(([option], [f"{option} without a sample", "It has no effect", "--sample=N"])
              for option in ("--prompt=a", "--prompt-file=/dev/null", "--stop=.", "--samples=2", "--temperature=2", "--top-k=5")),
            (["--sample=2", "--temperature=0", "--top-k=5"], ["--top-k=5 with --temperature=0"]),
            (["--sample=2", "--temperature=0", "--samples=2"], ["--samples=2 with --temperature=0", "all samples are equal"]),
            (["--sample=2", "--top-k=256"], ["--top-k=256 of 256 tokens"]),
            (["--sample=2", "--prompt-file=/dev/stdin"], ["is a pipe or a device, which only one of 2 ranks could read"]),
            (["--sample=2", "--prompt=a", "--prompt-file=/nowhere"], ["both say what a sample begins with"]),
            (["--sample=2", "--prompt-file=/nowhere"], ["/nowhere"]),
            (["--sample=2", "--stop=end"], ["--stop=end is 3 tokens"]),
            (["--sample=2", "--top-p=0"], ["--top-p=0", "0 < top-p <= 1"]),
            (["--samples=0"], ["--samples=0"]),
        ], ranks=2)


class Log(Frame):
    def setUp(self):
        super().setUp()
        self.program = "lessons/03_ddp"
        self.log = os.path.join(self.folder, "run.jsonl")

    def lines(self):
        with open(self.log, encoding="utf-8") as file:
            return [json.loads(line) for line in file if line.endswith("\n")]

    def test_a_line_for_each_step(self):
        for ranks in (None, 2, 3, 4):
            with self.subTest(ranks=ranks):  # each run replaces the log of the one before
                report = self.report(*self.fast, "--steps=3", "--global-batch=12", "--evaluate-every=2", f"--log={self.log}", ranks=ranks)
                run, *steps = self.lines()
                self.assertEqual(run["run"]["provenance"], report["provenance"])
                self.assertEqual([step["step"] for step in steps], [0, 1, 2, 2, 3])  # of 2 and 3 the validation
                losses = [step["loss"] for step in steps if "loss" in step]
                self.assertEqual(losses, report["loss"])
                self.assertEqual([step["validation_loss"] for step in steps if "validation_loss" in step],
                                 [validation["loss"] for validation in report["validation"]])
                last = steps[-2]
                self.assertEqual(last["memory"]["gradients"], report["memory"]["gradients"]["current"])
                self.assertGreater(last["time"]["compute"], 0)
                self.assertAlmostEqual(last["tokens_per_s"] * last["seconds"], 12 * 16)

    def test_lines_are_there_while_the_run_goes_on(self):
        job = self.start("03_ddp", None, *self.fast, ENDLESS, f"--log={self.log}")
        self.assertIn("loss", self.lines()[1])
        job.process.send_signal(signal.SIGTERM)
        self.assertEqual(job.wait(), 128 + signal.SIGTERM, job.output())

    def test_a_resumed_run_adds_its_lines(self):
        files = [f"--checkpoint={self.folder}/c.h5", f"--log={self.log}"]
        self.report(*self.fast, "--steps=3", "--stop-after=2", *files, ranks=2)
        self.report(*self.fast, "--steps=3", "--resume", *files, ranks=2)
        self.assertEqual([line["step"] for line in self.lines() if "loss" in line], [0, 1, 2])
        self.assertEqual(sum("run" in line for line in self.lines()), 2)

    def test_a_full_disk_and_a_name_twice(self):
        done = self.run_program(*self.fast, "--steps=1", "--log=/dev/full", ranks=2)
        self.assertNotIn(done.returncode, (0, 2))
        self.assertIn("cannot write to /dev/full: No space left on device", done.stderr)
        self.assert_refused(f"--log={self.log}", f"--report={self.log}", says=["are the same file"])

    def test_where_a_run_comes_from(self):
        provenance = self.report(*self.fast, "--steps=1")["provenance"]
        self.assertEqual(sorted(provenance), ["compiler", "date", "host", "mpi", "products", "revision"])
        self.assertRegex(provenance["products"], r"\A(oneDNN|OpenBLAS) \d+\.\d+\.\d+\Z")
        exact = self.report(*self.fast, "--steps=1", "--arithmetic=exact")["provenance"]
        self.assertEqual(exact["products"], "tiles in a fixed order")
        self.assertRegex(provenance["date"], r"\A\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ\Z")
        self.assertRegex(provenance["revision"], r"\A([0-9a-f]{7,}|unknown)\Z")


if __name__ == "__main__":
    unittest.main()
