"""Wrong solutions and broken lessons (tests/mutants), each planted in a lesson that trains: where the record of such a run parts
from that of the right one, and whether the broken function makes that tensor, or is the first to feed it.
"""

import re
import shutil
import subprocess

from exercise_tree import all_regions, read_tree
from includes import lesson_files, reached
from made_by import MADE_BY
from mutants import all_entries, plant
from planted import NO_PROGRESS, ROOT

MODEL = ("--steps=3", "--channels=32", "--heads=4", "--context=32", "--global-batch=8", "--dropout=0.1")
TIME_LIMIT_S, PROGRESS_S = "120", 15  # of a run; without progress, until the watchdog ends it
# The runs that a mutant of a lesson is planted in: program, ranks, options. Together they use what the lesson has.
RUNS = {
    "01": [("01_single_device", 1, "--micro-batch=2")],
    "02": [("03_ddp", 4, "--arithmetic=fast --collectives=ring"), ("03_ddp", 4, "--arithmetic=fast --collectives=tree"),
           ("15_experts", 4, "")],
    "03": [("03_ddp", 4, "--micro-batch=1 --bucket=20kB"), ("03_ddp", 3, "--strategy=per-tensor"),
           ("03_ddp", 4, "--strategy=bucketed --bucket=20kB")],
    "04": [("04_zero1", 4, "--micro-batch=1 --bucket=20kB"), ("04_zero1", 3, "")],
    "05": [("05_zero2", 4, "--micro-batch=1 --bucket=20kB"), ("05_zero2", 3, "")],
    "06": [("06_zero3", 4, ""), ("06_zero3", 3, "--unit=branch --prefetch=2 --persist=100 --micro-batch=1"),
           ("06_zero3", 2, "--unit=model --prefetch=0 --reshard=after-backward")],
    "07": [("07_offload", 2, "--micro-batch=2 --precision=bf16"), ("07_offload", 3, "--offload=optimizer --tier=disk:{work}"),
           ("07_offload", 2, "--offload=gradients --persist=100 --prefetch=2")],
    "08": [("08_tensor_parallel", 4, "--sequence-parallel"), ("08_tensor_parallel", 2, "--micro-batch=2"),
           ("08_tensor_parallel", 4, "--tp=2 --dp=2 --sequence-parallel --regather")],
    "09": [("09_pipeline_parallel", 2, "--micro-batch=2"), ("09_pipeline_parallel", 3, "--micro-batch=1 --schedule=gpipe"),
           ("09_pipeline_parallel", 2, "--micro-batch=2 --schedule=interleaved")],
    "10": [("10_3d_parallel", 4, "--tp=2 --pp=2 --micro-batch=2"), ("10_3d_parallel", 4, "--dp=2 --pp=2 --micro-batch=2"),
           ("10_3d_parallel", 4, "--dp=2 --tp=2 --sequence-parallel")],
    "11": [("11_zero_bubble", 2, "--micro-batch=1"), ("11_zero_bubble", 4, "--micro-batch=2")],
    "12": [("12_bert", 2, "--micro-batch=2"), ("12_bert", 4, "--zero=1 --bucket=20kB"), ("12_bert", 4, "--zero=0 --bucket=20kB --micro-batch=1")],
    "13": [("13_mesh_zero3", 4, "--tp=2"), ("13_mesh_zero3", 4, "--tp=1 --shard-ranks=2 --micro-batch=1"),
           ("13_mesh_zero3", 4, "--tp=2 --zero=2 --sequence-parallel")],
    "14": [("14_context_parallel", 2, "--micro-batch=1"), ("14_context_parallel", 4, "--attention=all-to-all"),
           ("14_context_parallel", 4, "--cp=2 --order=contiguous"), ("14_context_parallel", 4, "--arithmetic=fast")],
    "15": [("15_experts", 4, ""), ("15_experts", 2, "--experts-per-token=2 --capacity-factor=1"),
           ("15_experts", 4, "--ep=2 --experts-per-token=2 --micro-batch=1")],
    "16": [("16_five_axes", 4, "--dp=2 --ep=2 --cp=2 --tp=1 --pp=1 --capacity-factor=1"),
           ("16_five_axes", 4, "--dp=2 --ep=2 --tp=2 --cp=1 --pp=1 --experts-per-token=2 --capacity-factor=1"),
           ("16_five_axes", 4, "--cp=2 --pp=2 --dp=1 --tp=1 --micro-batch=1"),
           ("16_five_axes", 4, "--dp=2 --ep=2 --tp=1 --cp=1 --pp=2 --micro-batch=1")],
}
LAYERS = {"09": 4, "10": 4, "11": 4, "16": 4}  # others have 2
NOT_TRAINED = ("lessons/00_mpi/", "lessons/02_collectives/")  # programs without a model


def all_mutants(tree, only=()):
    """All wrong solutions and broken lessons, or those whose names begin so."""
    regions = all_regions(tree)
    return [plant(tree, regions, entry) for entry in all_entries(tree)
            if entry.kind != "RIGHT" and (not only or entry.name.startswith(tuple(only)))]


def made_by(name, broken, first):
    """True if the broken function makes the tensor that a sentence names, or if it is the first tensor made of its result."""
    return re.match(MADE_BY.get(name, MADE_BY.get(broken, "nothing")), first) is not None


def changed_sources(tree, changed, lesson):
    """The .cpp files to compile anew: those changed, and those of the lesson that include a changed header."""
    files = reached(lesson_files(tree, lesson), lambda path: tree[path].decode() if path in tree else None)
    of_lesson = [path for path in files if path.endswith(".cpp")]
    return {*(path for path in changed if path.endswith(".cpp")),
            *(path for path in of_lesson for header in changed if f'"{header}"'.encode() in tree[path])}


class Locator:
    """Plants mutants, and compares the records of their runs with those of the right programs."""

    def __init__(self, bench):
        self.bench, self.tree = bench, read_tree(ROOT)
        self.right = {}  # run -> record of the right program

    def compile(self, mutant):
        """The object files of what a mutant changes, by source."""
        output, objects = self.bench.work / mutant.name, {}
        for path, content in mutant.changed.items():
            (output / path).parent.mkdir(parents=True, exist_ok=True)
            (output / path).write_bytes(content)
        for path in changed_sources(self.tree, mutant.changed, mutant.broken[:2]):
            source = output / path if path in mutant.changed else ROOT / path
            objects[path] = (output / path).with_suffix(".o")
            if error := self.bench.compile(path, source, objects[path], "-Wno-error", headers=output):
                return None, error
        return objects, ""

    def run(self, program, lesson, run, record):
        """The exit status of a run that leaves its record."""
        record.unlink(missing_ok=True)
        _, ranks, options = run
        timeout = [f"--timeout={PROGRESS_S}"] if ranks > 1 else []
        arithmetic = [] if "--arithmetic" in options else ["--arithmetic=exact"]
        command = [ROOT / "tests/run.sh", TIME_LIMIT_S, "mpirun", "-np", ranks, program, *MODEL, f"--layers={LAYERS.get(lesson, 2)}",
                   f"--record={record}", *timeout, *arithmetic, *options.format(work=self.bench.work).split()]
        return subprocess.run([str(word) for word in command], cwd=ROOT, capture_output=True, check=False).returncode

    def right_record(self, lesson, run):
        if run not in self.right:
            record = self.bench.work / f"right{len(self.right)}.h5"
            status = self.run(self.bench.path(run[0]), lesson, run, record)
            if status != 0:
                raise RuntimeError(f"the right program ends with status {status}: {run}")
            self.right[run] = record
        return self.right[run]

    def first_difference(self, lesson, run, record):
        """The first difference that compare_records finds; empty if there is none."""
        done = subprocess.run([self.bench.folder / "data/compare_records", self.right_record(lesson, run), record],
                              capture_output=True, text=True, check=False)
        return "".join(re.findall("First difference: (.*)", done.stdout))

    def look_at(self, mutant):
        """Returns the outcome of a mutant, and removes what was built for it."""
        try:
            return self.outcome(mutant)
        finally:
            shutil.rmtree(self.bench.work / mutant.name, ignore_errors=True)

    def outcome(self, mutant):
        """The outcome of a mutant: a dictionary with "outcome", and with "run" and "first" where a number changes."""
        if all(path.startswith(NOT_TRAINED) for path in mutant.changed):
            return {"outcome": "no model is trained with it"}
        objects, error = self.compile(mutant)
        if error:
            return {"outcome": "does not compile"}
        found, record, programs = {"outcome": "no number changes"}, self.bench.work / "wrong.h5", {}
        for run in RUNS[mutant.broken[:2]]:
            if run[0] not in programs:
                programs[run[0]] = self.bench.link(run[0], objects, self.bench.work / mutant.name / run[0])
            status = self.run(programs[run[0]], mutant.broken[:2], run, record)
            first = self.first_difference(mutant.broken[:2], run, record) if record.exists() else ""
            if first:
                return {"outcome": "changes a number", "run": f"{run[0]} -np {run[1]} {run[2]}".strip(), "first": first,
                        "located": made_by(mutant.name, mutant.broken, first)}
            if status == NO_PROGRESS:
                return {"outcome": "stands still"}
            if not record.exists():
                found = {"outcome": "ends with an error"}
        return found
