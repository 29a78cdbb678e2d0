#!/usr/bin/env python3
"""The museum of real bugs: published mistakes, each planted in a lesson, and which instrument catches which.

    scripts/museum/museum.py run [01 02 ...]      plants each (or these), runs it, and writes tests/museum/caught.json
    scripts/museum/museum.py check [01 02 ...]    does the same, and compares with that file instead
    scripts/museum/museum.py table | texts        prints a part of docs/museum.md, for scripts/check/update_output.py

The right programs are built first, in build/planted: some minutes. An exhibit takes some 20 seconds.

An exhibit is tests/museum/NN_name.patch: a line with its title; lines "Source: URL", "Lesson: 03_ddp", "Run: -np 2 --option=...",
"Resumes: yes" where the run stops half-way and resumes, and "Races: yes" where the first wrong number depends on who is faster; a
paragraph; a unified diff (-p1) of source files, .cpp.

Exit status: 0; 1 if an exhibit is caught otherwise than the file says; 2 asked for something impossible.
"""

import argparse
import dataclasses
import functools
import json
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts/course"))

from exercise_bench import first_error  # noqa: E402
from exercise_tree import Refused, apply_patch, read_tree, write_whole  # noqa: E402
from documents import run_script  # noqa: E402
from workshop import Workshop  # noqa: E402

FOLDER = ROOT / "tests/museum"
CAUGHT = FOLDER / "caught.json"
STEPS, CURVE, TAIL = 6, 40, 10  # of an exact run; of a fast one, and how many of its steps are compared
NOTICEABLE = 0.01               # relative difference of the mean loss of two runs over their last TAIL steps
PROGRESS_S = 20                 # without progress, until the watchdog ends a job
NO_PROGRESS = 86                # its exit status
INSTRUMENTS = ("compiler", "digest", "bytes", "memory", "replicas", "error", "chaos", "poison", "watchdog", "deviation", "loss curve")
FRESH_MEMORY = "common/memory/device.cpp"  # fills it with NaNs where it is compiled so


@dataclasses.dataclass
class Exhibit:
    """Description of an exhibit in its patch."""

    path: str  # from the root
    title: str
    source: str
    lesson: str
    ranks: str
    options: tuple
    resumes: bool
    text: str
    patch: str
    races: bool = False

    @property
    def number(self):
        return pathlib.PurePosixPath(self.path).name[:2]


def read_exhibit(path):
    """The exhibit of a patch; Refused says what it lacks."""
    patch = path.read_text(encoding="utf-8")
    head, _, rest = patch.partition("\n\n")
    title, *lines = head.split("\n")
    fields = dict(line.split(": ", 1) for line in lines)
    text = rest.partition("\n--- ")[0].strip()
    ranks = re.match(r"-np (\d+) ?", fields.get("Run", ""))
    if lacking := [name for name in ("Source", "Lesson") if name not in fields] + ["Run: -np N ..."] * (not ranks):
        raise Refused(f"{path.name} lacks {', '.join(lacking)}")
    return Exhibit(path.relative_to(ROOT).as_posix(), title, fields["Source"], fields["Lesson"], ranks[1],
                   tuple(fields["Run"][ranks.end():].split()), "Resumes" in fields, text, patch, "Races" in fields)


# ---- Build and run ----------------------------------------------------------------------------------------------------

class Bench(Workshop):
    """Programs with a bug. Only the file that a patch changes is compiled, and linked with all else of the right
    programs. Those are built here, each file by itself: where a folder is compiled as one file, no file of it can be replaced."""

    def __init__(self, build, work):
        super().__init__(ROOT, work)
        self.source, self.headers, self.folder, self.work = ROOT, ROOT, build, work
        self._run("cmake", "-G", "Ninja", "-S", ROOT, "-B", build, "-DCMAKE_BUILD_TYPE=Release", "-DRANKWISE_UNITY=OFF",
                  "-DRANKWISE_TESTS=OFF", "-DRANKWISE_CUDA=off")
        self._run("cmake", "--build", build, "--target", "lessons", "prepare", "compare_records")
        commands = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
        self.commands = {entry["file"]: shlex.split(entry["command"]) for entry in commands}

    def compile(self, path, source, output, *flags, headers=None):
        """Compiles a file of the tree as it stands in `source`, with headers of the folder `headers` in place of the tree's: the
        compiler's first error, or nothing."""
        compiler, *words = self.compile_command(path, source, output)
        first = [f"-I{headers}"] if headers else []
        done = subprocess.run([compiler, *first, *words, *flags], cwd=self.folder, capture_output=True, check=False)
        return first_error(done.stderr.decode(errors="replace"), self.work) if done.returncode != 0 else ""

    def link(self, lesson, objects, program):
        subprocess.run(self.link_command(lesson, objects, program, program.parent), cwd=self.folder, check=True)
        return program

    def make(self, exhibit):
        """The program with the bug, the same with poisoned memory, and the compiler's first error if there is neither."""
        objects, output = {}, self.work / exhibit.number
        for path, content in apply_patch(read_tree(ROOT), exhibit.patch, exhibit.path).items():
            source = output / path
            source.parent.mkdir(parents=True, exist_ok=True)
            source.write_bytes(content)
            objects[path] = source.with_suffix(".o")
            if error := self.compile(path, source, objects[path]):
                return None, None, error
        poison = self.work / "poisoned.o"
        if not poison.is_file():
            self.compile(FRESH_MEMORY, ROOT / FRESH_MEMORY, poison, "-DRANKWISE_POISON=1")
        return (self.link(exhibit.lesson, objects, output / exhibit.lesson),
                self.link(exhibit.lesson, {**objects, FRESH_MEMORY: poison}, output / "poisoned"), "")

    def run(self, program, exhibit, *options, steps):
        """Exit status and report of a run."""
        report, checkpoint = self.work / "report.json", self.work / "checkpoint.h5"
        for path in (report, checkpoint):
            path.unlink(missing_ok=True)
        command = [ROOT / "tests/run.sh", "300", "mpirun", "-np", exhibit.ranks, program, f"--steps={steps}",
                   f"--timeout={PROGRESS_S}", f"--report={report}", *exhibit.options, *options]
        parts = [[]]
        if exhibit.resumes:
            parts = [[f"--checkpoint={checkpoint}", f"--stop-after={steps // 2}"], [f"--checkpoint={checkpoint}", "--resume"]]
        for part in parts:
            done = subprocess.run([str(word) for word in [*command, *part]], cwd=ROOT, capture_output=True, check=False)
        return done.returncode, json.loads(report.read_text(encoding="utf-8")) if report.is_file() else {}

    def right(self, exhibit, *options, steps):
        """The report of the right program."""
        return self._right(exhibit.lesson, exhibit.ranks, exhibit.options, exhibit.resumes, options, steps)

    @functools.lru_cache(maxsize=None)
    def _right(self, lesson, ranks, options, resumes, more, steps):
        exhibit = Exhibit("", "", "", lesson, ranks, options, resumes, "", "")
        status, report = self.run(self.path(lesson), exhibit, *more, steps=steps)
        if status != 0:
            raise Refused(f"the right program ends with status {status}: {lesson} -np {ranks} {' '.join(options + more)}")
        return report


# ---- What catches it --------------------------------------------------------------------------------------------------

def first_difference(right, wrong):
    """Place at which an exact run first has another number: "step 1", "validation" or "digest"; empty if there is none."""
    numbers = [list(zip(report.get("loss", []), report.get("grad_norm", []))) for report in (right, wrong)]
    for step, (mine, other) in enumerate(zip(*numbers), 1 + right["first_step"]):
        if mine != other:
            return f"step {step}"
    return next((name for name in ("validation", "digest") if name in wrong and right[name] != wrong[name]), "")


def failed(report, names):
    """True if a check fails whose name begins so."""
    return any(not check["pass"] and re.match(names, check["name"]) for check in report.get("checks", []))


def first_wrong_number(bench, exhibit, program):
    """First difference of the records of the right and the wrong run, by compare_records; empty if one has none."""
    records = [bench.work / f"{name}.h5" for name in ("right", "wrong")]
    for which, record in zip((bench.path(exhibit.lesson), program), records):
        record.unlink(missing_ok=True)
        bench.run(which, exhibit, "--arithmetic=exact", f"--record={record}", steps=STEPS)
        if not record.exists():
            return ""
    done = subprocess.run([bench.folder / "data/compare_records", *records], capture_output=True, text=True, check=False)
    return "".join(re.findall("First difference: (.*)", done.stdout))


def look_at_curve(bench, exhibit, program):
    """Signs of the fault in a run in fast arithmetic: its deviation from the reference, and its loss curve."""
    options = ("--arithmetic=fast", "--check-every=0", *([] if exhibit.resumes else [f"--compare={TAIL}"]))
    _, report = bench.run(program, exhibit, *options, steps=CURVE)
    right = bench.right(exhibit, *options, steps=CURVE)
    mean = [sum(losses[-TAIL:]) / TAIL for losses in (right["loss"], report.get("loss", []))]
    whole = len(report.get("loss", [])) == len(right["loss"])
    return {"deviation": failed(report, "deviation"), "loss curve": whole and abs(mean[1] / mean[0] - 1) > NOTICEABLE}


def look_at(bench, exhibit):
    """The instruments that catch an exhibit, each with what it says."""
    program, poisoned, error = bench.make(exhibit)
    if error:
        print(f"    {error}")
        return {"compiler": "yes"}
    right = bench.right(exhibit, "--arithmetic=exact", steps=STEPS)

    def outcome(which, *options):
        """The report, where it differs from the right one, and whether an error or the watchdog has ended the run."""
        status, report = bench.run(which, exhibit, "--arithmetic=exact", *options, steps=STEPS)
        ended = "watchdog" if status == NO_PROGRESS else "error" if not report.get("finished") else ""
        return report, first_difference(right, report), ended

    report, differs, ended = outcome(program)
    late, fresh = outcome(program, "--chaos=1")[1:], outcome(poisoned)[1:]
    caught = {"digest": differs, "bytes": failed(report, "traffic"), "memory": failed(report, "(most )?bytes of"),
              "replicas": failed(report, "replicated|tied|digest on|shards of|tensors that"), "error": ended == "error",
              "watchdog": "watchdog" in (ended, late[1])}
    if ended != "watchdog":
        caught.update(look_at_curve(bench, exhibit, program))
        caught.update(chaos=late != (differs, ended))
        caught.update(poison=not caught["chaos"] and fresh[1] == "error")
    if caught.get("chaos") or caught.get("poison"):  # then chance decides what else a run shows
        caught.update({name: "by chance" for name in ("digest", "error", "deviation", "loss curve") if caught[name]})
    else:
        caught["first wrong number"] = first_wrong_number(bench, exhibit, program)
    return {name: value if isinstance(value, str) else "yes" for name, value in caught.items() if value}


# ---- The command line -------------------------------------------------------------------------------------------------

def exhibits(numbers=()):
    """All exhibits, or those with these numbers."""
    found = [read_exhibit(path) for path in sorted(FOLDER.glob("*.patch"))]
    unknown = set(numbers) - {exhibit.number for exhibit in found}
    if unknown:
        raise Refused(f"there is no exhibit {min(unknown)} in {FOLDER.relative_to(ROOT)}")
    return [exhibit for exhibit in found if not numbers or exhibit.number in numbers]


def read_caught():
    return json.loads(CAUGHT.read_text(encoding="utf-8")) if CAUGHT.exists() else {}


def steps_until(caught):
    """After how many steps the first instrument catches it."""
    if "compiler" in caught:
        return "0"
    if step := re.match(r"step (\d+)", caught.get("digest", "")):
        return step[1]
    if set(caught) & {"bytes", "memory", "error", "chaos", "poison", "watchdog"}:
        return "1"
    return "at the end" if set(caught) & set(INSTRUMENTS) else "never"


def table():
    """One row for each exhibit, one column for each instrument."""
    columns, caught = [*INSTRUMENTS, "after steps", "first wrong number"], read_caught()
    print("\n| | exhibit | " + " | ".join(columns) + " |\n|---:|---|" + "---|" * len(columns))
    for exhibit in exhibits():
        row = {**caught[exhibit.number], "after steps": steps_until(caught[exhibit.number])}
        print(f"| {exhibit.number} | {exhibit.title} | " + " | ".join(row.get(name, "") for name in columns) + " |")
    print()


def texts():
    """The paragraph of each exhibit, with its source, its patch and its run."""
    for exhibit in exhibits():
        where = re.search(r"github\.com/([^/]+/[^/]+)/\w+/(\d+)", exhibit.source)
        run = " ".join(["-np", exhibit.ranks, *exhibit.options]) + (", stopped and resumed" if exhibit.resumes else "")
        print(f"\n### {exhibit.number}. {exhibit.title}\n\n{exhibit.text}\n\n"
              f"[{where[1]} #{where[2]}]({exhibit.source}); [the patch](../{exhibit.path}) of "
              f"[{exhibit.lesson}](../lessons/{exhibit.lesson}/{exhibit.lesson}.cpp); `{run}`.")
    print()


def always(exhibit, caught):
    """The findings that are the same in each run of an exhibit."""
    return {what: text for what, text in caught.items() if not (exhibit.races and what == "first wrong number")}


def look_at_all(command, numbers, build):
    """Looks at exhibits, and writes what catches them, or compares it with what is known."""
    work, known, chosen, status = build / "museum", read_caught(), exhibits(numbers), 0
    work.mkdir(parents=True, exist_ok=True)
    bench = Bench(build, work)
    for exhibit in chosen:
        caught = look_at(bench, exhibit)
        if command == "run":
            known[exhibit.number] = caught
            write_whole(CAUGHT, json.dumps(dict(sorted(known.items())), indent=1) + "\n")
        same = always(exhibit, caught) == always(exhibit, known.get(exhibit.number, {}))
        status |= not same
        print(f"{'PASS' if same else 'FAIL'}  {exhibit.number} {exhibit.title}: {caught}", flush=True)
    return status


def main(arguments, doc, named, look_at_all, others):
    """The command line of a script that plants patches: run and check call look_at_all(command, names, build); `others` are
    functions by command. `named` says what names are. Returns the exit status."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "check", *others))
    parser.add_argument("names", nargs="*", help=f"{named}; default: all")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/planted", help="where the right programs are built")
    options = parser.parse_args(arguments)
    if options.command in others:
        others[options.command]()
        return 0
    return look_at_all(options.command, options.names, options.build.resolve())


if __name__ == "__main__":
    run_script(lambda words: main(words, __doc__, "of exhibits, as 01", look_at_all, {"table": table, "texts": texts}))
