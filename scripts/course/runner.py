"""Runs programs for the judge: of the reference, or of a student in a sandbox; their messages go through the hub."""

import dataclasses
import json
import os
import pathlib
import random
import stat
import subprocess
import tempfile

from hub import Hub, work_of

LARGEST_REPORT = 4 << 20  # bytes


@dataclasses.dataclass
class Answer:
    """What one run answered."""

    outputs: list         # by rank, by case: the JSON after ANSWER
    outcome: object       # of the hub; None without ranks
    reason: str           # of the processes: "ended", "timed out", ...
    text: str             # all that was printed
    report: dict = None   # of a lesson's program


def read_answer(line):
    """The JSON object of a line that a driver wrote, or that somebody forged; None if there is none."""
    if not line.startswith("ANSWER "):
        return None
    try:
        document = json.loads(line[7:])
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def read_report(path):
    """The report that a run left; None if there is none. It may be anything: a link, a pipe, no JSON."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        try:
            document = json.loads(file.read(LARGEST_REPORT))
        except (ValueError, RecursionError):
            return None
    return document if isinstance(document, dict) else None


class Runner:
    """Runs programs, of the reference or of a student; a student's in a sandbox."""

    def __init__(self, workshop, box_of):
        self.workshop, self.box_of = workshop, box_of

    def run(self, judged, program, cases, sandboxed, deadline):
        """Runs cases that have the same number of ranks, in one job; and one more for each that follows.

        @return  (cases, their answer) of each job.
        """
        jobs = []
        with tempfile.TemporaryDirectory() as folder:
            if "prepare" in judged.needs:
                self._prepare(folder)
            while cases and all(answer.reason == "ended" for _, answer in jobs):
                of_job = program if cases[0].own else self.workshop.path(judged.target)
                jobs.append((cases, self._job(judged, of_job, cases, sandboxed, deadline, folder)))
                cases = [case.then for case in cases if case.then]
        return jobs

    def _prepare(self, folder):
        """A short text, {folder}/text.h5: the validation split of the embedded one takes long without optimization."""
        text = pathlib.Path(folder) / "text.txt"
        text.write_text("".join(random.Random(3).choices("abcdefgh \n", k=3000)), encoding="ascii")
        subprocess.run([self.workshop.path("prepare"), "--tokenizer=byte", text, f"{folder}/text.h5"], check=True,
                       capture_output=True)

    def _job(self, judged, program, cases, sandboxed, deadline, folder):
        """One job, which may write in the folder."""
        ranks = cases[0].ranks
        lines = "".join(json.dumps(case.inputs) + "\n" for case in cases).encode()
        hub = Hub(ranks, judged.delay_s) if ranks else None
        report = pathlib.Path(folder) / "report.json"
        report.unlink(missing_ok=True)
        processes, files = [], []
        for r in range(max(ranks, 1)):
            environment = {"OMP_NUM_THREADS": "2" if not ranks else "1", "OPENBLAS_NUM_THREADS": "1"}
            words, descriptors = [str(program), judged.number], ()
            if cases[0].options:
                words[1:] = [*(option.format(folder=folder) for option in cases[0].options), f"--report={report}"]
            if hub:
                descriptors = (hub.descriptor(r),)
                environment |= {"RANKWISE_HUB": hub.variable(r), "LD_PRELOAD": str(self.workshop.path("hub_mpi"))}
            files.append(tempfile.TemporaryFile())
            stdin = tempfile.TemporaryFile()
            stdin.write(lines)
            stdin.seek(0)
            box = self.box_of(program, folder, deadline) if sandboxed else Unboxed(deadline)
            processes.append(box.start(words, stdin=stdin, stdout=files[-1], stderr=subprocess.STDOUT,
                                       pass_fds=descriptors, env=environment))
        reason, outcome = "ended", None
        if hub:
            outcome = hub.run(lambda r: processes[r].poll() is None, deadline.left_s,
                              lambda: work_of(process.pid for process in processes))
            if outcome.verdict != "ended":
                reason = outcome.verdict
                for process in processes:
                    process.kill()
        for process in processes:
            ended = process.wait().reason
            reason = ended if reason == "ended" else reason
        texts = []
        for file in files:
            file.seek(0)
            texts.append(file.read(1 << 20).decode(errors="replace"))
        answers = [[answer for answer in map(read_answer, text.split("\n")) if answer is not None] for text in texts]
        return Answer(answers, outcome, reason, "\n".join(texts), read_report(report))


class Process:
    """A process of the reference. What a sandbox starts has the same methods."""

    def __init__(self, deadline, words, **settings):
        self.deadline, self.process = deadline, subprocess.Popen(words, start_new_session=True, **settings)
        self.pid, self.poll, self.kill = self.process.pid, self.process.poll, self.process.kill

    def wait(self):
        """Waits for its end."""
        while True:
            try:
                status = self.process.wait(max(0.1, self.deadline.left_s()))
                return Ended(f"killed by signal {-status}" if status < 0 else "ended")
            except subprocess.TimeoutExpired:
                if self.deadline.left_s() <= 0:
                    self.kill()
                    self.process.wait()
                    return Ended("timed out")


@dataclasses.dataclass
class Ended:
    reason: str


class Unboxed:
    """Where the reference runs: in no sandbox."""

    def __init__(self, deadline):
        self.deadline = deadline

    def start(self, words, env, **settings):
        return Process(self.deadline, words, env={"PATH": "/usr/bin:/bin", "HOME": "/tmp", **env}, **settings)
