"""Every lesson that trains: a rank is killed at random moments, half of them while a checkpoint is written. The job ends,
nothing of it is left, and it goes on from the last committed checkpoint to the bits of the run that was never killed.

A story is a job that is killed, goes on and is killed again, and goes on to its end. Its seed decides what happens:
RANKWISE_KILL_SEED=SEED RANKWISE_KILLS=2 tells one of them again, as far as moments can be repeated.
"""

import collections
import contextlib
import glob
import json
import os
import random
import re
import select
import shutil
import signal
import statistics
import subprocess
import time
import unittest
import uuid

from program_case import BUILD, SLOWNESS, ProgramCase, temporaries

SEED = int(os.environ.get("RANKWISE_KILL_SEED", "1"))  # of the first story; the next ones count on from it
KILLS = int(os.environ.get("RANKWISE_KILLS", "10"))  # two a story
TIME_LIMIT_S = 120 * SLOWNESS  # of a job
GRACE_S = 5 * SLOWNESS  # for what a launcher leaves to end by itself
LOOK_S = 0.0002  # between two looks at a file; writing a checkpoint takes some milliseconds
LOOK_FOR_PROCESSES_S = 0.01

EVERYONE = (None, 1, 2, 2, 4, 4)  # ranks, to draw from; None: without a launcher
CASES = [  # a program, its options, on how many ranks, and the layers of the model where one is not enough
    ("01_single_device", (), (None, 1)),
    ("03_ddp", (), EVERYONE),
    ("04_zero1", (), EVERYONE),
    ("05_zero2", (), EVERYONE),
    ("06_zero3", (), EVERYONE),
    ("07_offload", ("--offload=all", "--tier=host"), EVERYONE),
    ("07_offload", ("--offload=all", "--tier=disk:{disk}"), EVERYONE),
    ("08_tensor_parallel", ("--sequence-parallel",), EVERYONE),
    ("09_pipeline_parallel", (), EVERYONE, 4),
    ("11_zero_bubble", (), EVERYONE, 4),
    ("10_3d_parallel", ("--sequence-parallel",), (None, 1, 2, 4, 8, 8), 4),
    ("13_mesh_zero3", ("--offload=all", "--tier=disk:{disk}"), EVERYONE),
    ("14_context_parallel", (), EVERYONE),
    ("15_experts", ("--expert-every=1",), EVERYONE),
    ("16_five_axes", ("--expert-every=1",), (1, 2, 4, 8), 4),
]
OTHER_MODELS = ("15_experts", "16_five_axes")  # whose digest is not that of lesson 01
STEPS = {"exact": 60, "fast": 240}  # so many that they are most of a job
EVERY = {"exact": 4, "fast": 16}  # steps between checkpoints; they and a checkpoint take about as long

Setup = collections.namedtuple("Setup", "program options ranks arithmetic layers")
Rehearsal = collections.namedtuple("Rehearsal", "digest lifetime_s writing_s")  # of a job that is not killed


def redrawn(setup, ranks, draw):
    """On another number of ranks, where that changes no bit."""
    return setup._replace(ranks=draw.choice(ranks)) if setup.arithmetic == "exact" else setup


class Place:
    """The folders to which a job writes: checkpoints, offloaded state, and output."""

    def __init__(self, folder):
        self.saves, self.disk, self.output, self.report = (
            os.path.join(folder, name) for name in ("saves", "disk", "output.txt", "report.json"))
        self.checkpoint = os.path.join(self.saves, "run.h5")

    def unfinished(self):
        """The temporary file of a checkpoint, or None."""
        return next(iter(temporaries(self.checkpoint)), None)

    def clean(self):
        for folder in (self.saves, self.disk):
            shutil.rmtree(folder, ignore_errors=True)
            os.makedirs(folder)


class Job:
    """A run that goes on if there is a checkpoint. Its processes have a mark in their environment, by which they are found
    wherever they are."""

    def __init__(self, setup, place, steps, *options, environment=()):
        self.setup, self.place, self.began_ns = setup, place, time.time_ns()
        command = [] if setup.ranks is None else ["mpirun", "-np", str(setup.ranks)]
        command += [os.path.join(BUILD, "lessons", setup.program), f"--layers={setup.layers}", "--sequence=16",
                    "--global-batch=4", "--dropout=0.1", f"--arithmetic={setup.arithmetic}", f"--steps={steps}", f"--checkpoint={place.checkpoint}",
                    *(option.format(disk=place.disk) for option in setup.options), *options]
        if os.path.exists(place.checkpoint):
            command.append("--resume")
        mark = ("RANKWISE_KILLED_JOB", str(uuid.uuid4()))
        self.mark = "=".join(mark).encode()
        with open(place.output, "wb") as file:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                                            env=dict([*os.environ.items(), *environment, mark]))

    def processes(self):
        """Living processes: the environment of each by its id."""
        found = {}
        for path in glob.glob("/proc/[0-9]*/environ"):
            try:
                with open(path, "rb") as file:
                    environment = file.read().split(b"\0")
            except OSError:  # it has ended, or is somebody else's
                continue
            if self.mark in environment:
                found[int(path.split("/")[2])] = environment
        return found

    def find(self, rank):
        """Waits until this rank has started. Returns a handle of it, which never means another process; None if the job
        ends before."""
        name = f"OMPI_COMM_WORLD_RANK={rank}".encode()
        while self.process.poll() is None:
            if self.setup.ranks is None:
                return os.pidfd_open(self.process.pid)
            for pid, environment in self.processes().items():
                if name in environment:
                    return os.pidfd_open(pid)
            time.sleep(LOOK_FOR_PROCESSES_S)
        return None

    def writing(self):
        """True if a checkpoint of this job is begun and not committed; leftovers of earlier jobs do not count."""
        try:
            return os.stat(self.place.unfinished()).st_mtime_ns > self.began_ns
        except (FileNotFoundError, TypeError):  # there is none, or it has just been committed
            return False

    def text(self):
        with open(self.place.output, encoding="utf-8", errors="replace") as file:
            return file.read()

    def kill(self):
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def ended(handle, wait_s):
    """True if a process ends within this time."""
    return bool(select.select([handle], [], [], wait_s)[0])


def stop(handle):
    """Stops a process; returns when it has stopped, or ended."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(handle, signal.SIGSTOP)
    with open(f"/proc/self/fdinfo/{handle}", encoding="utf-8") as file:
        process = re.search(r"^Pid:\s*(-?\d+)$", file.read(), re.MULTILINE)[1]
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        while True:
            with open(f"/proc/{process}/stat", encoding="utf-8") as file:
                if file.read().rpartition(")")[2].split()[0] in "TZX":
                    return
            time.sleep(LOOK_S)


def seen(what, handle):
    """Looks until it holds; false if the process ends before, or takes too long."""
    end = time.monotonic() + TIME_LIMIT_S
    while not what():
        if ended(handle, LOOK_S) or time.monotonic() > end:
            return False
    return True


class Moment:
    """Time of a kill and its rank: each drawn as a fraction of the total, which is known only later."""

    WRITING, COMMITTED, ANY = "while a checkpoint was written", "shortly after a commit", "at any moment"

    def __init__(self, draw, kind):
        self.kind, self.rank, self.part, self.part_of_writing = kind, draw.random(), draw.random(), draw.random()
        self.survivors_s = draw.choice([0, 1])

    def environment(self):
        """Time that the launcher lets the other ranks live: Open MPI's default of a second, or none."""
        return [(f"{launcher}_MCA_odls_base_sigkill_timeout", str(self.survivors_s)) for launcher in ("OMPI", "PRTE")]

    def come(self, job, handle, rehearsal, made):
        """Waits; false if the process ends before. The job resumes after this number of steps, or some more."""
        if self.kind == Moment.ANY:
            return not ended(handle, self.part * rehearsal.lifetime_s)
        saves = int(self.part * (STEPS[job.setup.arithmetic] - made) / EVERY[job.setup.arithmetic])
        for _ in range(saves + (self.kind == Moment.COMMITTED)):
            if not (seen(job.writing, handle) and seen(lambda: not job.writing(), handle)):
                return False
        wait_s = self.part_of_writing * rehearsal.writing_s
        if self.kind == Moment.COMMITTED:
            return not ended(handle, wait_s * self.part_of_writing ** 3)  # mostly at once
        while seen(job.writing, handle) and not ended(handle, wait_s):
            stop(handle)  # so that it cannot commit between the look and the kill
            if job.writing():
                return True
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGCONT)
        return False


@unittest.skipUnless(hasattr(os, "pidfd_open") and os.path.exists("/proc/self/environ"), "processes are found in /proc")
class Kills(ProgramCase):
    program = "lessons/01_single_device"

    def setUp(self):
        super().setUp()
        self.place, self.rehearsals, self.count = Place(os.path.join(self.folder, "story")), {}, collections.Counter()

    def test_a_killed_job_leaves_nothing_and_goes_on_from_the_last_commit(self):
        seeds = range(SEED, SEED + KILLS // 2)
        for seed in seeds:
            with self.subTest(seed=seed):
                other = (Moment.ANY, Moment.COMMITTED)[seed % 2]
                self.tell(random.Random(seed), [Moment.WRITING, other], *CASES[seed % len(CASES)])
        print(f"seeds {seeds[0]} to {seeds[-1]}:", ", ".join(f"{n} {what}" for what, n in self.count.items()))
        self.assertEqual(self.count[f"kills {Moment.WRITING}"], len(seeds))

    def tell(self, draw, kinds, program, options, ranks, layers=1):
        """A story. Its jobs go on to one step more each, so that one that was killed at its end has something left to do."""
        self.begin()
        setup = Setup(program, options, draw.choice(ranks), draw.choice(list(STEPS)), layers)
        for number, kind in enumerate(draw.sample(kinds, 2)):
            setup, moment = redrawn(setup, ranks, draw), Moment(draw, kind)
            while not self.killed(setup, STEPS[setup.arithmetic] + number, moment):
                self.count["jobs that ended before"] += 1
                self.begin()
                moment.part /= 2
        setup = redrawn(setup, ranks, draw)
        self.assertEqual(self.finish(setup), self.digest(setup), setup)

    def begin(self):
        self.place.clean()
        self.committed = 0  # the least that the last checkpoint may be after

    # ---- Jobs --------------------------------------------------------------------------------------------------------

    def start(self, *arguments, **options):
        job = Job(*arguments, **options)
        self.addCleanup(job.kill)
        return job

    def start_saving(self, setup, place, steps, *options, environment=()):
        every = f"--checkpoint-every={EVERY[setup.arithmetic]}"
        return self.start(setup, place, steps, every, *options, environment=environment)

    def wait(self, job):
        """The status with which a job ends by itself. It leaves no process, and no file but a checkpoint and an unfinished
        one."""
        try:
            job.process.wait(TIME_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.end_hung_launcher(job)
        end = time.monotonic() + GRACE_S
        while job.processes() and time.monotonic() < end:
            time.sleep(LOOK_FOR_PROCESSES_S)
        self.assertEqual(list(job.processes()), [], job.setup)
        self.assertEqual(os.listdir(job.place.disk), [], job.setup)
        left = {os.path.basename(path) for path in temporaries(job.place.checkpoint)}
        self.assertLessEqual(len(left), 1, job.setup)
        self.assertLessEqual(set(os.listdir(job.place.saves)), {"run.h5", ".run.h5.lock"} | left, job.setup)
        return job.process.returncode

    def end_hung_launcher(self, job):
        """Open MPI 4.1's mpirun may wait for ever if a rank dies as it connects to it. It has ended the other ranks then, and
        said so. Nothing else may hang."""
        if set(job.processes()) != {job.process.pid} or "PMIX ERROR" not in job.text():
            self.fail(f"{job.setup} does not end; there are the processes {list(job.processes())}\n{job.text()}")
        self.count["launchers that hung after all ranks had ended"] += 1
        job.kill()

    def killed(self, setup, steps, moment):
        """Starts a job and kills one of its ranks; false if the job ended before."""
        rehearsal = self.rehearsal(setup)
        job = self.start_saving(setup, self.place, steps, environment=moment.environment())
        rank = int(moment.rank * (setup.ranks or 1))
        handle = job.find(rank)
        self.assertIsNotNone(handle, job.text())
        come = moment.come(job, handle, rehearsal, self.committed)
        was_there = os.path.exists(self.place.checkpoint)
        if come:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        os.close(handle)
        status = self.wait(job)
        self.assertIn(status, (0, -signal.SIGKILL, 128 + signal.SIGKILL) if come else (0,), job.text())
        if status == 0:
            return False
        if moment.kind == Moment.WRITING and rank == 0:  # who commits, and does not any more
            self.assertTrue(job.writing(), job.text())
        self.look_at_what_is_left(job, was_there)
        self.count[f"kills {moment.kind}"] += 1
        return True

    def look_at_what_is_left(self, job, was_there):
        steps = [int(row) for row in re.findall(r"^ *(\d+) +\d+\.\d+ .*\n", job.text(), re.MULTILINE)]
        if steps:  # what was due before the last row is committed
            self.assertGreaterEqual(steps[0], self.committed, job.setup)
            every = EVERY[job.setup.arithmetic]
            self.committed = max(steps[0], steps[-1] // every * every)
        if was_there or self.committed > 0:
            self.assertTrue(os.path.exists(self.place.checkpoint), job.setup)
        if unfinished := self.place.unfinished():
            self.count["unfinished checkpoints"] += 1
            done = self.run_program(f"--layers={job.setup.layers}", "--steps=1", f"--initial={unfinished}")
            self.assertIn(done.returncode, (0, 2), done.stderr)  # 0: it lacked its name only

    def finish(self, setup):
        """The digest at the end of a run that resumes from the last commit, or starts anew if there was none."""
        job = self.start(setup, self.place, STEPS[setup.arithmetic] + 2, f"--report={self.place.report}")
        self.assertEqual(self.wait(job), 0, job.text())
        self.assertEqual(os.listdir(self.place.saves), ["run.h5"])
        report = self.report_in(self.place)
        self.assertGreaterEqual(report.get("first_step", 0), self.committed, setup)
        return report["digest"]

    @staticmethod
    def report_in(place):
        with open(place.report, encoding="utf-8") as file:
            return json.load(file)

    # ---- Jobs that are not killed ------------------------------------------------------------------------------------

    def digest(self, setup):
        if setup.arithmetic == "exact" and setup.program in OTHER_MODELS:
            setup = setup._replace(ranks=None)
        elif setup.arithmetic == "exact":
            setup = Setup("01_single_device", (), None, "exact", setup.layers)
        return self.rehearsal(setup).digest

    def rehearsal(self, setup):
        if setup not in self.rehearsals:
            self.rehearsals[setup] = self.rehearse(setup)
        return self.rehearsals[setup]

    def rehearse(self, setup):
        """Runs a job to its end in a folder of its own, observed like those that are killed."""
        place = Place(os.path.join(self.folder, "rehearsal"))
        place.clean()
        job = self.start_saving(setup, place, STEPS[setup.arithmetic] + 2, f"--report={place.report}")
        handle, times_s = job.find(0), [time.monotonic()]
        self.assertIsNotNone(handle, job.text())
        while seen(lambda: job.writing() == bool(len(times_s) % 2), handle):
            times_s.append(time.monotonic())
        lifetime_s = time.monotonic() - times_s[0]
        self.assertEqual(self.wait(job), 0, job.text())
        os.close(handle)
        self.assertGreater(len(times_s), 2, "no checkpoint is written under the temporary name")
        writing_s = [end - begin for begin, end in zip(times_s[1::2], times_s[2::2])]
        return Rehearsal(self.report_in(place)["digest"], lifetime_s, statistics.median(writing_s))


if __name__ == "__main__":
    unittest.main(verbosity=2)
