"""Judges implement exercises: the reference and the student's program get the same inputs, and their answers are compared.

What runs the student's code gets inputs and gives answers; expected values, seeds and verdicts are here. The cases of an
exercise are in tests/judge/lesson_NN.py, a function for each:

    @exercise("01.1", near={"": 1e-5})
    def norm_backward(draw):
        for T in (1, draw.size(5, 20)):
            yield Case({"type": "f32", "B": 2, "T": T, "C": 20}, "two sequences of {T} tokens")
"""

import dataclasses
import hashlib
import importlib.util
import json
import math
import os
import pathlib
import random
import re
import stat
import subprocess
import tempfile
import time

from exercise_tree import Refused, all_regions, find_regions, replace_bodies
from hub import Hub, work_of
from sandbox import Deadline, Limits, Sandbox
from workshop import Workshop, first_error

LIMIT_S = 40  # for compiling and running one exercise, on an idle machine
LARGEST_REPORT = 4 << 20  # bytes
LIMITS = Limits(memory=3 << 30, processes=128, cpu_s=20, file_bytes=256 << 20, writable_bytes=512 << 20)

MISSING = re.compile(r"exercise (\d\d\.\d+) is not implemented")
PREPROCESSOR = re.compile(r"^\s*(#|%:|\?\?=)|\b(_Pragma|asm|__asm__|__asm|__attribute__)\b|\[\[gnu::", re.MULTILINE)
EXERCISES = {}  # number -> Judged, of all lessons that are loaded


class Draw:
    """Sizes and seeds of one student's cases."""

    def __init__(self, *names):
        self.random = random.Random(hashlib.sha256("\0".join(names).encode()).digest())

    def size(self, first, last):
        return self.random.randint(first, last)

    def seed(self):
        return self.random.randrange(1 << 20)

    def choice(self, values):
        return self.random.choice(values)


@dataclasses.dataclass
class Case:
    """One input. `about` says for people what it is; names in braces are inputs."""

    inputs: dict
    about: str
    ranks: int = 0        # 0: one process without MPI
    options: list = None  # of a lesson's program; then there are no inputs. {folder} is where the run may write
    then: object = None   # a Case of the same program, which runs after this one in the same folder
    own: bool = True      # whether the student's program runs it; if not, the reference, on what that has written

    @property
    def text(self):
        ranks = f"{self.ranks} ranks, " if self.ranks > 1 else "one rank, " if self.ranks == 1 else ""
        return ranks + self.about.format(**self.inputs)


@dataclasses.dataclass
class Judged:
    """How an exercise is judged."""

    number: str
    cases: object                               # function of Draw that yields cases
    target: str                                 # the program
    near: dict = dataclasses.field(default_factory=dict)  # tolerance by name of the output, relative to its largest value
    explain: object = None                      # function(case, rank, name, expected, got) -> text or None
    fields: tuple = ()                          # of a lesson's program: what of its report is compared
    traffic: str = "pairs"                      # what is compared: of each pair of ranks, "sums" over all, or sums and "steps"
    delay_s: float = 0                          # of every message; 0: until its receiver waits
    needs: tuple = ()                           # further programs of the reference; "prepare" makes {folder}/text.h5
    hint: str = ""


def exercise(number, program=None, **settings):
    """Registers the cases of an exercise. `program`: a lesson's, whose reports are compared; else judge_NN is run."""
    def register(cases):
        EXERCISES[number] = Judged(number, cases, program or f"judge_{number[:2]}", **settings)
        return cases
    return register


def load(root, lesson):
    """Reads tests/judge/lesson_NN.py; gives the exercises of the lesson that are judged."""
    path = pathlib.Path(root) / f"tests/judge/lesson_{lesson}.py"
    if path.is_file():
        spec = importlib.util.spec_from_file_location(f"lesson_{lesson}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return {number: judged for number, judged in EXERCISES.items() if number.startswith(lesson + ".")}


# ---- Comparing --------------------------------------------------------------------------------------------------------

def first_difference(expected, got, near, place=""):
    """Where two answers differ first, (place, expected, got); None if they do not."""
    if isinstance(expected, dict) and isinstance(got, dict):
        for key in expected:
            if key not in got:
                return f"{place} {key}".strip(), expected[key], "nothing"
            if found := first_difference(expected[key], got[key], near, f"{place} {key}".strip()):
                return found
        return None
    if isinstance(expected, list) and isinstance(got, list):
        if len(expected) != len(got):
            return f"{place}: the number of elements", len(expected), len(got)
        numbers = [abs(value) for value in expected if isinstance(value, float)]
        bound = near.get(place.split("[")[0], near.get("", 0)) * max(numbers, default=0)
        for i, (one, other) in enumerate(zip(expected, got)):
            if isinstance(one, (int, float)) and isinstance(other, (int, float)) and not isinstance(one, bool):
                same = one == other or (math.isfinite(one) and math.isfinite(other) and abs(one - other) <= bound)
                if not same:
                    return f"{place}[{i}]", one, other
            elif found := first_difference(one, other, near, f"{place}[{i}]"):
                return found
        return None
    if isinstance(expected, float) and isinstance(got, (int, float)):
        return None if abs(expected - got) <= near.get(place, near.get("", 0)) * abs(expected) else (place, expected, got)
    return None if expected == got and isinstance(expected, bool) == isinstance(got, bool) else (place, expected, got)


def sum_of_traffic(messages):
    return [sum(count[i] for count in messages.values()) for i in range(2)]


def sums_difference(judged, expected, got):
    """The same where another order of messages is right too: over all ranks, and how many come one after the other."""
    wanted, sent = sum_of_traffic(expected.messages), sum_of_traffic(got.messages)
    if wanted[1] != sent[1] or wanted[0] < sent[0]:
        return f"all ranks sent {sent[0]:,} messages with {sent[1]:,} bytes; {wanted[0]:,} messages with {wanted[1]:,} bytes are needed"
    if judged.traffic == "steps" and got.steps > expected.steps:
        return f"{got.steps} messages are sent one after the other; {expected.steps} steps are enough"
    return ""


def traffic_difference(judged, expected, got):
    """The first pair of ranks between which something else was sent, as a sentence; empty if there is none."""
    if judged.traffic != "pairs":
        return sums_difference(judged, expected, got)
    expected, got = expected.messages, got.messages
    for pair in sorted(set(expected) | set(got)):
        wanted, sent = expected.get(pair, [0, 0]), got.get(pair, [0, 0])
        if wanted != sent:
            return (f"rank {pair[0]} sent {sent[0]:,} messages with {sent[1]:,} bytes to rank {pair[1]}; "
                    f"{wanted[0]:,} messages with {wanted[1]:,} bytes are needed")
    return ""


# ---- Running ----------------------------------------------------------------------------------------------------------

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
            outcome = hub.run(lambda r: processes[r].poll() is None, time.monotonic() + deadline.left_s(),
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
        try:
            status = self.process.wait(max(0.1, self.deadline.left_s()))
            return Ended(f"killed by signal {-status}" if status < 0 else "ended")
        except subprocess.TimeoutExpired:
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


# ---- The verdict ------------------------------------------------------------------------------------------------------

def without_answers(text):
    """What a program printed for people, its end."""
    lines = [line for line in text.split("\n") if line.strip() and not line.startswith(("ANSWER ", "# --"))]
    return "\n".join(lines[-8:])[-1500:]


def compare(judged, cases, expected, got):
    """(verdict, detail) of the answers of one job."""
    missing = [one[-1]["not implemented"] for one in got.outputs if one and "not implemented" in one[-1]]
    missing = set(MISSING.findall("\n".join(missing) + got.text))
    if judged.number in missing:
        return "not implemented", ""
    if missing:
        return "failed", f"needs exercise {min(missing)} first"
    where = cases[0].text if len(cases) == 1 else f"one of {len(cases)} cases: {cases[0].text}"
    if got.reason in ("timed out", "too much processor time"):
        return "timed out", f"{where}: the time was over"
    if got.reason == "deadlock":
        return "failed", f"{where}: all ranks wait for ever\n{got.outcome.detail}"
    if got.report is not None or expected.report is not None:
        answer = {name: (got.report or {}).get(name) for name in judged.fields}
        wanted = {name: expected.report.get(name) for name in judged.fields}
        if got.report is None:
            return "failed", f"{where}: the program ended without a report\n{without_answers(got.text)}"
        if found := first_difference(wanted, answer, judged.near):
            return "failed", f"{where}\n{said(judged, cases[0], 0, found)}"
    for c, case in enumerate(cases if not cases[0].options else []):
        for rank, answers in enumerate(got.outputs):
            rank_text = f"rank {rank}: " if len(got.outputs) > 1 else ""
            if len(answers) <= c or "error" in answers[c]:
                why = answers[c]["error"] if len(answers) > c else f"the program ended before it answered\n{without_answers(got.text)}"
                return "failed", f"{case.text}\n{rank_text}{why}"
            if "outputs" not in answers[c]:
                return "failed", f"{case.text}\n{rank_text}the program gave no outputs"
            wanted = expected.outputs[rank][c]["outputs"]
            if found := first_difference(wanted, answers[c]["outputs"], judged.near):
                return "failed", f"{case.text}\n{rank_text}{said(judged, case, rank, found)}"
    if got.outcome is not None:
        if got.outcome.verdict != "ended":
            return "failed", f"{where}: {got.outcome.detail}\n{without_answers(got.text)}"
        if got.outcome.unreceived:
            sender, receiver, size = got.outcome.unreceived[0]
            return "failed", f"{where}: no rank received a message of {size:,} bytes from rank {sender} to rank {receiver}"
        if difference := traffic_difference(judged, expected.outcome, got.outcome):
            return "failed", f"{where}\n{difference}"
        if more := dict(got.outcome.collectives - expected.outcome.collectives):
            return "failed", f"{where}\nthe ranks called {', '.join(more)}, which this exercise writes by hand"
    return ("passed", "") if got.reason == "ended" else ("failed", f"{where}: {got.reason}")


def said(judged, case, rank, found):
    """A difference in words, with the exercise's own explanation where it has one, and its hint."""
    place, expected, got = found
    text = f"{place}: got {got}, expected {expected}"
    own = judged.explain(case, rank, place, expected, got) if judged.explain else None
    return "\n".join(line for line in (text, own, judged.hint and f"hint: {judged.hint}") if line)


def groups_of(cases):
    """Cases that run in one job: those with the same number of ranks; a program's run is alone."""
    groups = []
    for case in cases:
        if groups and not case.options and groups[-1][0].ranks == case.ranks and not groups[-1][0].options:
            groups[-1].append(case)
        else:
            groups.append([case])
    return groups


def judge(runner, judged, program, draw, deadline):
    """(verdict, detail) of one exercise. `program` is the student's."""
    for cases in groups_of(judged.cases(draw)):
        references = runner.run(judged, runner.workshop.path(judged.target), cases, False, deadline)
        for _, expected in references:
            if expected.reason != "ended":
                raise Refused(f"the reference of exercise {judged.number} does not run ({expected.reason}):\n"
                              + expected.text[-2000:])
        # A job of the student's that did not end is the last one, and fails here.
        for (_, expected), (of_job, got) in zip(references, runner.run(judged, program, cases, True, deadline)):
            verdict, detail = compare(judged, of_job, expected, got)
            if verdict != "passed":
                return verdict, detail
    return "passed", ""


# ---- A student's programs ---------------------------------------------------------------------------------------------

def merged(path, reference, submitted, regions):
    """The reference's file with the bodies that a student wrote, and nothing else of theirs. Refused says why not."""
    if len(submitted) > 1 << 20:
        raise Refused(f"{path} is larger than 1 MB")
    try:
        text = submitted.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError:
        raise Refused(f"{path} is not UTF-8") from None
    found = {region.exercise: region for region in find_regions(path, text)}
    lines = text.split("\n")
    bodies = {}
    for region in regions:
        if region.exercise not in found:
            raise Refused(f"{path} has lost its lines BEGIN EXERCISE {region.exercise} ... END EXERCISE")
        own = found[region.exercise]
        body = lines[own.body:own.end]
        if match := PREPROCESSOR.search("\n".join(line for line in body if not re.match(r"^\s*#\s*pragma omp\b", line))):
            raise Refused(f"{path}: exercise {region.exercise} contains `{match.group().strip()}`, which a solution does not need")
        if "\0" in "\n".join(body):
            raise Refused(f"{path}: exercise {region.exercise} contains a 0 byte")
        bodies[region.exercise] = body
    mine = {region.exercise: region for region in find_regions(path, reference)}
    return replace_bodies(reference, [mine[name] for name in bodies], lambda region: bodies[region.exercise])


def make_program(workshop, box, folder, path, text, target):
    """The program `target` with the student's version of one file: (program, ""), or (None, why it was not made)."""
    source, made, program = folder / "source" / path, folder / "made" / "student.o", folder / "made" / target
    source.parent.mkdir(parents=True)
    source.write_text(text, encoding="utf-8")
    for words, output in ((workshop.compile_command(path, source, made), made),
                          (workshop.link_command(target, {path: made}, program), program)):
        done = box.run(words)
        if done.reason != "ended":
            return None, f"the compiler was stopped: {done.reason}"
        if done.status != 0 or not output.is_file():
            return None, first_error((done.stdout + done.stderr).decode(errors="replace"), folder / "source")
    return program, ""


class Judge:
    """Judges the implement exercises of a course in one workshop. Several threads may do so at a time."""

    def __init__(self, root, tree, work, protected=True):
        self.tree, self.protected, self.work = tree, protected, pathlib.Path(work).resolve()
        self.workshop = Workshop(root, self.work)
        self.regions = {region.exercise: region for region in all_regions(tree)}
        self.judged = {}
        for lesson in sorted({number[:2] for number in self.regions}):
            self.judged |= load(root, lesson)

    def build(self, exercises):
        """Builds what these exercises need of the reference."""
        wanted = [self.judged[number] for number in exercises if number in self.judged]
        targets = {judged.target for judged in wanted} | {target for judged in wanted for target in judged.needs}
        if targets:
            self.workshop.build(self.tree, targets | {"hub_mpi"})

    def grade(self, number, submitted, *names):
        """(verdict, detail) of one exercise, from the student's file. Other exercises of that file are the reference's.

        @param names  of the course's secret and the student: they decide the sizes.
        """
        region, judged = self.regions[number], self.judged[number]
        try:
            text = merged(region.path, self.tree[region.path].decode(), submitted, [region])
        except Refused as refusal:
            return "refused", str(refusal)
        self.work.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.work) as folder:
            folder = pathlib.Path(folder)
            os.chmod(folder, 0o755)
            (folder / "made").mkdir()
            deadline = Deadline(LIMIT_S)

            # The compiler sees the course; the program must not: it could run the reference, or compile its source.
            compiler = Sandbox(self.workshop.source, LIMITS, deadline, [self.workshop.folder, folder], folder / "made", self.protected)
            program, why = make_program(self.workshop, compiler, folder, region.path, text, judged.target)

            def box_of(shown, writable, limit):
                seen = [shown, *self.workshop.libraries()]
                return Sandbox(folder / "made", LIMITS, limit, seen, writable, self.protected)
            if program is None:
                return "timed out" if "timed out" in why else "does not compile", why
            return judge(Runner(self.workshop, box_of), judged, program, Draw(number, *names), deadline)
