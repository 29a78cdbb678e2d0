"""Runs programs for the judge: of the reference, or of a student in a sandbox; their messages go through the hub."""

import contextlib
import dataclasses
import json
import os
import pathlib
import random
import subprocess
import tempfile

from hub import Hub

LARGEST_REPORT, LARGEST_TEXT = 4 << 20, 1 << 20  # bytes that are read of what a program wrote
# Becomes a command, and prints after it what the command has written into the file $0, in one line.
WITH_REPORT = '"$@"; status=$?; if [ -f "$0" ]; then printf "\nREPORT "; tr -d "\n" <"$0"; fi; exit $status'


@dataclasses.dataclass
class Answer:
    """Answer of one run."""

    outputs: list         # by rank, by case: the JSON after ANSWER
    outcome: object       # of the hub; None without ranks
    reason: str           # of the processes: "ended", "timed out", ...
    text: str             # all that was printed
    report: dict = None   # of a lesson's program


def parsed(text):
    """The JSON object that a program wrote, or that somebody forged; None if it is none. A number that no double holds is
    infinite."""
    try:
        document = json.loads(text, parse_int=lambda digits: int(digits) if len(digits) < 20 else float(digits))
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def read_answers(text):
    """The objects that a driver answered; an empty one in place of what is none."""
    return [parsed(line[7:]) or {} for line in text.split("\n") if line.startswith("ANSWER ")]


def read_report(file):
    """The report that WITH_REPORT has added to what a program printed; None if there is none."""
    file.seek(max(0, file.seek(0, os.SEEK_END) - LARGEST_REPORT))
    return parsed(file.read().rpartition(b"\nREPORT ")[2])


class Runner:
    """Runs programs, of the reference or of a student; a student's in a sandbox.

    @param box_of  box_of(seen, deadline) is a new sandbox in which a program sees these files and folders.
    """

    def __init__(self, workshop, box_of):
        self.workshop, self.box_of = workshop, box_of

    def run(self, judged, program, cases, sandboxed, deadline):
        """Runs cases that have the same number of ranks, in one job."""
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o755)
            if "prepare" in judged.needs:
                self._prepare(folder)
            return self._job(judged, program, cases, sandboxed, deadline, folder)

    def _prepare(self, folder):
        """A short text, {folder}/text.h5: the validation split of the embedded one takes long without optimization."""
        text = pathlib.Path(folder) / "text.txt"
        text.write_text("".join(random.Random(3).choices("abcdefgh \n", k=3000)), encoding="ascii")
        subprocess.run([self.workshop.path("prepare"), "--tokenizer=byte", text, f"{folder}/text.h5"], check=True,
                       capture_output=True)

    def _job(self, judged, program, cases, sandboxed, deadline, folder):
        """One job. A student's ranks see the folder, and have none that another one could read what they write in."""
        ranks = cases[0].ranks
        lines = "".join(json.dumps(case.inputs) + "\n" for case in cases).encode()
        hub = Hub(ranks, judged.delay_s, judged.steps is not None, cases[0].hides) if ranks else None
        box = self.box_of([program, folder], deadline) if sandboxed else Unboxed(deadline)
        report = "/tmp/report.json" if box.protected else f"{folder}/report.json"
        with contextlib.ExitStack() as stack:
            processes, files = [], []
            for r in range(max(ranks, 1)):
                environment = {"OMP_NUM_THREADS": "2" if not ranks else "1", "OPENBLAS_NUM_THREADS": "1"}
                words, descriptors = [str(program), judged.number], ()
                if cases[0].options:
                    words[1:] = [*(option.format(folder=folder) for option in cases[0].options), f"--report={report}"]
                    words = words if r else ["sh", "-c", WITH_REPORT, report, *words]
                if hub:
                    descriptors = (hub.descriptor(r),)
                    environment |= {"RANKWISE_HUB": hub.variable(r), "LD_PRELOAD": str(self.workshop.path("hub_mpi"))}
                files.append(stack.enter_context(tempfile.TemporaryFile()))
                stdin = stack.enter_context(tempfile.TemporaryFile())
                stdin.write(lines)
                stdin.seek(0)
                processes.append(stack.enter_context(box.start(words, stdin=stdin, stdout=files[-1], stderr=subprocess.STDOUT,
                                                               pass_fds=descriptors, env=environment)))
            outcome = hub.run(lambda r: processes[r].poll() is None, deadline.left_s,
                              [process.pid for process in processes]) if hub else None
            return answer_of(processes, files, outcome)


def answer_of(processes, files, outcome):
    """Collects the answer of a job, once the hub has served it."""
    reason = outcome.verdict if outcome else "ended"
    for process in processes:
        if reason != "ended":
            process.kill()
        ended = process.wait().reason
        reason = ended if reason == "ended" else reason
    texts = []
    for file in files:
        file.seek(0)
        texts.append(file.read(LARGEST_TEXT).decode(errors="replace"))
    return Answer([read_answers(text) for text in texts], outcome, reason, "\n".join(texts), read_report(files[0]))


class Process:
    """A process of the reference. What a sandbox starts has the same methods."""

    def __init__(self, deadline, words, **settings):
        self.deadline, self.process = deadline, subprocess.Popen(words, start_new_session=True, **settings)
        self.pid, self.poll, self.kill = self.process.pid, self.process.poll, self.process.kill

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
        self.process.wait()

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
    """Place in which the reference runs: no sandbox."""

    protected = False

    def __init__(self, deadline):
        self.deadline = deadline

    def start(self, words, env, **settings):
        return Process(self.deadline, words, env={"PATH": "/usr/bin:/bin", "HOME": "/tmp", **env}, **settings)
