"""Exercises as lessons/NN/exercises.toml describes them: texts, hints, sizes that are drawn for each student, and the figures of
the lesson's own program that answers are compared with. They stand in an order in which each needs none but those before it.

An exercise that is answered has, beside kind, points, minutes, title and hints:

    text      what to read; {N} is a size, and {command} the command line
    section   heading of the lesson's README that explains it, as an anchor
    program   the program, lesson 06's own unless given; options: its options, with sizes in braces
    ranks     ranks that are started, a size or a number; none: the program in one process, as for a dry run
    sizes     values of which one is drawn, by name; set: further sizes, expressions of the ones above
    figures   parts of the report by name: "plan.ranks.0.flops"; with "max:" or "sum:" over several, "plan.ranks.*.flops"; with
              "ratio:" a fraction in place of a rounded number
    names     of a derivation: the names that a formula may use, with their meanings; each is a size or a figure
    asks      a list: name, what is asked, unit, value (an expression of sizes and figures) and tolerance, relative, if any
"""

import dataclasses
import hashlib
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import tempfile
from fractions import Fraction

import expressions
from exercise_tree import Refused, read_toml
from with_mpi import with_mpi

KINDS = ("implement", "account", "measure", "derive")
DRAWS = {"account": 1, "measure": 1, "derive": 3}  # sets of sizes with which an answer is compared
LARGEST_DENOMINATOR = 10**6                        # of a "ratio:"
TIMEOUT_S = 120                                    # of a program, on a busy machine


@dataclasses.dataclass
class Ask:
    """One number or formula that is asked for."""

    name: str
    what: str
    value: str            # expression of sizes and figures
    unit: str = ""
    tolerance: float = 0  # relative


@dataclasses.dataclass
class Exercise:
    """One table [[exercise]]; what only answered kinds have is empty for the others."""

    number: str
    kind: str
    minutes: int
    hints: list
    points: int = 0
    title: str = ""
    text: str = ""
    section: str = ""
    program: str = ""
    options: list = dataclasses.field(default_factory=list)
    ranks: object = None
    sizes: dict = dataclasses.field(default_factory=dict)
    set: dict = dataclasses.field(default_factory=dict)
    figures: dict = dataclasses.field(default_factory=dict)
    names: dict = dataclasses.field(default_factory=dict)
    asks: list = dataclasses.field(default_factory=list)


def folder_of(root, lesson):
    """The folder of a lesson."""
    found = sorted(pathlib.Path(root).glob(f"lessons/{lesson}_*"))
    if not re.fullmatch(r"\d\d", lesson) or not found:
        raise Refused(f"there is no lesson {lesson}; write two digits, as 01")
    return found[0]


def read_exercises(root, lesson):
    """All exercises of a lesson, in the order of its exercises.toml."""
    path = folder_of(root, lesson) / "exercises.toml"
    if not path.is_file():
        raise Refused(f"lesson {lesson} has no exercises.toml")
    exercises = []
    for table in read_toml(path.read_text(encoding="utf-8"), path).get("exercise", []):
        try:
            exercise = Exercise(**table)
            exercise.asks = [Ask(**ask) for ask in exercise.asks]
        except TypeError as error:
            raise Refused(f"{path}: exercise {table.get('number', '?')}: {error}") from None
        if exercise.kind not in KINDS:
            raise Refused(f"{path}: exercise {exercise.number}: kind {exercise.kind} is not one of {', '.join(KINDS)}")
        exercise.program = exercise.program or path.parent.name
        exercises.append(exercise)
    return exercises


def draw_sizes(exercise, student, secret, number=0):
    """The sizes of one student: each is drawn by the SHA-256 of secret, student, exercise, number of the draw and name."""
    sizes = {}
    for name, values in exercise.sizes.items():
        seed = "\0".join([secret, student, exercise.number, str(number), name])
        sizes[name] = values[int.from_bytes(hashlib.sha256(seed.encode()).digest(), "big") % len(values)]
    for name, expression in exercise.set.items():
        sizes[name] = int(expressions.evaluate(expression, numbers_of(sizes)))
    return sizes


def numbers_of(sizes):
    """The sizes that are numbers."""
    return {name: value for name, value in sizes.items() if not isinstance(value, str)}


def filled(text, sizes):
    """The text with sizes in place of their names in braces."""
    return re.sub(r"\{(\w+)\}", lambda name: str(sizes.get(name[1], name[0])), text)


def command_of(exercise, sizes):
    """The command line that shows the figures, in words."""
    ranks = sizes.get(exercise.ranks, exercise.ranks)
    launcher = [] if ranks is None else ["mpirun", "-np", str(ranks)]
    return [*launcher, f"build/lessons/{exercise.program}", *(filled(option, sizes) for option in exercise.options)]


class Programs:
    """Runs lessons' programs of one build folder, each command once."""

    def __init__(self, root, build):
        self.root, self.build, self.reports = pathlib.Path(root), pathlib.Path(build), {}

    def report(self, command):
        """The report of a command line; Refused if the program cannot be run."""
        if tuple(command) in self.reports:
            return self.reports[tuple(command)]
        with tempfile.TemporaryDirectory() as folder:
            path, log = pathlib.Path(folder) / "report.json", pathlib.Path(folder) / "log"
            status = self._run([*command, f"--report={path}"], log)
            if status != 0:
                said = log.read_text(encoding="utf-8", errors="replace")[-2000:]
                why = f"took more than {TIMEOUT_S} s" if status is None else f"ended with status {status}; is it built?"
                raise Refused(f"{shlex.join(command)} {why}\n{said}")
            document = json.loads(path.read_text(encoding="utf-8"))
        self.reports[tuple(command)] = document
        return document

    def _run(self, command, log):
        """Exit status of a command; None if it takes too long. What it prints goes to a file, not to a pipe: a helper of MPI
        that outlives the program would keep a pipe open."""
        words = [str(self.build / word.removeprefix("build/")) if word.startswith("build/") else word for word in command]
        with log.open("wb") as output, subprocess.Popen(with_mpi(*words), cwd=log.parent, stdout=output, stderr=subprocess.STDOUT,
                                                        start_new_session=True) as process:
            try:
                return process.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                return None


def part_of(document, path):
    """All values at a path of a report, in a list: "a.0.b" has one, "a.*.b" several."""
    parts = [document]
    for name in path.split("."):
        steps = []
        for part in parts:
            if name == "*":
                steps += part.values() if isinstance(part, dict) else part
            else:
                steps.append(part[int(name) if isinstance(part, list) else name])
        parts = steps
    return parts


def figure_of(document, path):
    """The figure at a path of a report, a fraction."""
    how, _, rest = path.rpartition(":")
    try:
        values = [Fraction(str(value)) for value in part_of(document, rest)]
    except (KeyError, IndexError, TypeError, ValueError):
        raise Refused(f"the report has no number {rest}") from None
    if how == "ratio":
        return values[0].limit_denominator(LARGEST_DENOMINATOR)
    return {"max": max, "sum": sum, "": lambda all_: all_[0]}[how](values)


def figures_of(exercise, sizes, programs):
    """The sizes and the figures of the report, by name: what an expression may use."""
    document = programs.report(command_of(exercise, sizes))
    return {**numbers_of(sizes), **{name: figure_of(document, filled(path, sizes)) for name, path in exercise.figures.items()}}


def question_of(exercise, sizes):
    """The text of a question with its sizes, in lines of paragraphs."""
    lines = filled(exercise.text.strip(), {**sizes, "command": " ".join(command_of(exercise, sizes))}).split("\n")
    if exercise.names:
        lines += ["", "A formula may use these names:"]
        lines += [f"  {name}  {filled(meaning, sizes)}" for name, meaning in exercise.names.items()]
    return lines
