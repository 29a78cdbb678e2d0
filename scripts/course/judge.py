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
import os
import pathlib
import random
import re
import tempfile

from exercise_bench import first_error
from exercise_tree import Refused, all_regions, find_regions, replace_bodies
from leaks import without_comments
from runner import Runner
from sandbox import Deadline, Limits, Sandbox
from verdicts import compare
from workshop import Workshop

LIMIT_S = 40  # for compiling and running one exercise, on an idle machine
LIMITS = Limits(memory=3 << 30, processes=128, cpu_s=20, file_bytes=256 << 20, writable_bytes=512 << 20)
MOST_DETAIL = 4000  # characters of what a program or a compiler said
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
    options: list = None  # of a lesson's program; then there are no inputs. {folder} has what `needs` makes
    hides: bool = False   # whether half as many messages as with the reference, or more, have to travel while their sender computes

    @property
    def text(self):
        ranks = f"{self.ranks} ranks, " if self.ranks > 1 else "one rank, " if self.ranks == 1 else ""
        return ranks + self.about.format(**self.inputs)


@dataclasses.dataclass
class Judged:
    """Rules by which an exercise is judged."""

    number: str
    cases: object                               # function of Draw that yields cases
    target: str                                 # the program
    near: dict = dataclasses.field(default_factory=dict)  # tolerance by name of the output, relative to its largest value
    explain: object = None                      # function(case, rank, name, expected, got) -> text or None
    fields: tuple = ()                          # of a lesson's program: what of its report is compared
    traffic: str = "pairs"                      # what is compared: of each pair of ranks, or "sums" over all
    steps: object = None                        # function(ranks): how many messages may come one after the other; None: any
    delay_s: float = 0                          # of every message; 0: until its receiver waits
    without: tuple = ()                         # what the program is linked without: parts of names of objects and libraries
    needs: tuple = ()                           # further programs of the reference; "prepare" makes {folder}/text.h5
    hint: str = ""


def exercise(number, program=None, **settings):
    """Registers the cases of an exercise. `program`: a lesson's, whose reports are compared; else judge_NN is run."""
    def register(cases):
        EXERCISES[number] = Judged(number, cases, program or f"judge_{number[:2]}", **settings)
        return cases
    return register


STEP = ("loss", "grad_norm", "digest", "memory", "traffic")  # of the report of a training program


def short_run(draw, ranks, about, *more):
    """A case of a training program: two steps of a small model, of drawn size, on the text of "prepare". Sums are in the order
    of the ring where the number of ranks is no power of two, else exact."""
    order = "fast" if ranks == 3 else "exact"
    sizes = [f"--layers={draw.size(1, 2)}", "--context=16", "--channels=32", "--heads=2", f"--seed={draw.size(1, 999)}"]
    batch = [f"--global-batch={2 * ranks}", "--steps=2", "--dropout=0.1", "--clip=0.5", f"--arithmetic={order}"]
    if order == "exact":  # names the first tensor that differs, if one does
        batch.append("--check-against=reference")
    return Case({}, about, ranks, [*sizes, *batch, "--data={folder}/text.h5", *more])


def load(root, lesson):
    """Reads tests/judge/lesson_NN.py; gives the exercises of the lesson that are judged."""
    path = pathlib.Path(root) / f"tests/judge/lesson_{lesson}.py"
    if path.is_file():
        spec = importlib.util.spec_from_file_location(f"lesson_{lesson}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return {number: judged for number, judged in EXERCISES.items() if number.startswith(lesson + ".")}


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
        expected = runner.run(judged, runner.workshop.path(judged.target), cases, False, deadline)
        if expected.reason == "timed out":  # compiling and the cases before took all of it
            return "timed out", f"{cases[0].text}: no time is left"
        if expected.reason != "ended" or any("outputs" not in answer for answers in expected.outputs for answer in answers):
            raise Refused(f"the reference of exercise {judged.number} does not run ({expected.reason}):\n" + expected.text[-2000:])
        try:
            verdict, detail = compare(judged, cases, expected, runner.run(judged, program, cases, True, deadline))
        except Exception as error:  # pylint: disable=broad-except  # what a program did to its judge is its own verdict
            verdict, detail = "failed", f"{cases[0].text}: the judge could not go on: {type(error).__name__}: {error}"
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
        bodies[region.exercise] = lines[own.body:own.end]
        if "\0" in "\n".join(bodies[region.exercise]):
            raise Refused(f"{path}: exercise {region.exercise} contains a 0 byte")
    mine = {region.exercise: region for region in find_regions(path, reference)}
    return replace_bodies(reference, [mine[name] for name in bodies], lambda region: bodies[region.exercise])


def make_program(workshop, judged, folder, path, text, deadline, protected):
    """The exercise's program with the student's version of one file: (program, ""), or (None, why it was not made)."""
    source, made, program = folder / "source" / path, folder / "made/student.o", folder / "made" / judged.target
    source.parent.mkdir(parents=True)
    source.write_text(text, encoding="utf-8")
    for part in (folder / "source", *(folder / "source").rglob("*")):  # the sandbox's user reads it, whatever the umask is
        part.chmod(0o755 if part.is_dir() else 0o644)
    for output in (made, program):
        words = (workshop.compile_command(path, source, made) if output == made else
                 workshop.link_command(judged.target, {path: made}, program, folder, judged.without))
        # The course's headers are seen, and of its build what the command names.
        seen = [folder, *workshop.named(words)]
        done = Sandbox(workshop.headers, LIMITS, deadline, seen, folder / "made", protected).run(words)
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
        """Builds what these exercises need of the reference; Refused if one has no cases, or the course itself does not compile."""
        if without := [number for number in exercises if number not in self.judged]:
            raise Refused(f"these exercises have no cases in tests/judge/: {', '.join(without)}")
        wanted = [self.judged[number] for number in exercises]
        targets = {judged.target for judged in wanted} | {target for judged in wanted for target in judged.needs}
        if targets:
            self.workshop.build(self.tree, targets | {"hub_mpi"})

    def rows(self, regions, submitted, *names):
        """The rows of these exercises: exercise, points, verdict and feedback.

        @param submitted  path -> bytes of the student's files, or why there are none.
        @param names      decide the inputs.
        """
        return [self._row(region, submitted.get(region.path, f"{region.path} is missing"), names) for region in regions]

    def _row(self, region, content, names):
        verdict, detail = "refused", content
        if isinstance(content, bytes):
            verdict, detail = self.grade(region.exercise, content, *names)
        if len(detail) > MOST_DETAIL:
            detail = detail[:MOST_DETAIL] + " ..."
        return dict(exercise=region.exercise, kind="implement", title=region.title,
                    points=region.points if verdict == "passed" else 0, of=region.points, verdict=verdict, detail=detail)

    def grade(self, number, submitted, *names):
        """(verdict, detail) of one exercise, from the student's file. Other exercises of that file are the reference's.

        @param names  of the course's secret and the student: they decide the sizes.
        """
        return self.grade_often(number, submitted, [names])[0]

    def grade_often(self, number, submitted, each):
        """grade() for each names of `each`: compiled once, judged once for each, with one deadline each."""
        region, judged = self.regions[number], self.judged[number]
        try:
            text = merged(region.path, self.tree[region.path].decode(), submitted, [region])
        except Refused as refusal:
            return [("refused", str(refusal))]
        mine = next(one for one in find_regions(region.path, text) if one.exercise == number)
        if re.match(rf'\s*not_implemented\("{number}"', without_comments("\n".join(text.split("\n")[mine.body:mine.end]))):
            return [("not implemented", "")]
        self.work.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.work) as folder:
            folder = pathlib.Path(folder)
            os.chmod(folder, 0o755)
            (folder / "made").mkdir()
            deadline = Deadline(LIMIT_S)

            program, why = self.workshop.path(judged.target), ""
            if text.encode() != self.tree[region.path]:  # else it is the reference, which is built
                program, why = make_program(self.workshop, judged, folder, region.path, text, deadline, self.protected)

            # The program sees itself and what it may write.
            def box_of(seen, limit):
                return Sandbox(folder / "made", LIMITS, limit, [*seen, *self.workshop.libraries()], protected=self.protected)
            if program is None:
                return [("timed out" if "timed out" in why else "does not compile", why)]
            runner, verdicts = Runner(self.workshop, box_of), []
            for names in each:
                verdicts.append(judge(runner, judged, program, Draw(number, *names), deadline or Deadline(LIMIT_S)))
                deadline = None  # it was for compiling and the first time
            return verdicts
