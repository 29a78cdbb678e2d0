"""Folders of scripts/course/exercise.py: one copy of the repository and one build folder, kept between runs."""

import collections
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree

import prebuilt
from exercise_tree import Refused, write_tree

LABEL = re.compile(r"^(?:exercise-(\d\d\.\d+)|lesson-(\d\d))$")
# What Catch2 prints above a failure: the case, its sections and the line, between rulers.
CASE = re.compile(r"-{70,}\n(.+?)\n-{70,}\n\S+:\d+\n\.{70,}", re.DOTALL)
# What tests/run.sh prints of a test that took too long, however slow the machine is.
CUT_OFF = re.compile(r"(?<=^tests/run\.sh: )cut off after \d+ s", re.MULTILINE)
# Catch2 breaks long lines, and with several ranks each line begins with the rank.
NOT_IMPLEMENTED = re.compile(r"exercise (\d\d\.\d+) is not implemented".replace(" ", r"\s+(?:rank \d+:\s+)?"))
STEP = re.compile(r"\[ *(\d+)(?:/(\d+)|%)\] ")  # what Ninja and Make print in front of each step
PAUSE_S = 10                                     # between two lines that say how far a build is


def first_error(output, folder):
    """The first error that a compiler or linker printed, in one line and without the path of the copy."""
    lines = [line for line in output.split("\n") if re.search(r"\berror:|undefined reference|\bld: (?!warning|.*: in function)", line)]
    return (lines or output.strip().split("\n")[-1:])[0].replace(f"{folder}/", "").strip()


def build_telling(folder, targets):
    """Builds targets; says on stderr how far that is, where it takes longer than some seconds. Exit status and all output."""
    command = ["cmake", "--build", folder, "--parallel", os.cpu_count() or 1, "--target", *sorted(targets)]
    began = said = time.monotonic()
    output = []
    with subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as build:
        for line in build.stdout:
            output.append(line.decode(errors="replace"))
            step, now = STEP.match(output[-1]), time.monotonic()
            if step and int(step[1]) and now > said + PAUSE_S:
                done, of, said = int(step[1]), int(step[2] or 100), now
                print(f"building {folder}: {done} of {of}, about {(now - began) * (of - done) / done:.0f} s more", file=sys.stderr,
                      flush=True)
    return build.returncode, "".join(output)


class Bench:
    """Builds trees in work/source -> work/build and runs the tests labelled with exercises, exercise-01.1, or with what holds
    a lesson outside of them, lesson-01."""

    def __init__(self, root, work, keeps=False):
        self.root, self.source, self.folder = root, work / "source", work / "build"
        self.objects, self.keeps = work / "objects", keeps  # object files of others, or kept for others (prebuilt.py)
        self.log = self.folder / "Testing/Temporary/LastTest.log"
        self.tests = None  # exercise or lesson -> its tests, [(name, {targets})]; known once configured

    def _run(self, *command):
        """Exit status and all output of a command."""
        done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              check=False)
        return done.returncode, done.stdout.decode(errors="replace")

    def _configure(self):
        """Makes the build folder, and learns which tests there are. Its kind of build is the debug build (assertions on,
        memory poisoned) without what costs time and brings nothing for small tests; warnings end nothing. Its programs run on
        every processor of a kind, so object files can be brought along."""
        command = ["cmake", "-S", self.source, "-B", self.folder, "-DCMAKE_BUILD_TYPE=Exercise", "-DRANKWISE_CUDA=off",
                   "-DRANKWISE_NATIVE=OFF", "-DCMAKE_CXX_FLAGS_EXERCISE=-O0 -DRANKWISE_POISON=1", "-DRANKWISE_WARNINGS_AS_ERRORS=OFF"]
        if mode := "keep" if self.keeps else "use" if self.objects.is_dir() else "":
            command.append(f"-DCMAKE_CXX_COMPILER_LAUNCHER=python3;{prebuilt.__file__};{mode};{self.objects}")
        if not (self.folder / "CMakeCache.txt").exists():
            command += ["-G", "Ninja"] if shutil.which("ninja") else []
        status, output = self._run(*command)
        if status != 0:
            raise Refused(f"cmake cannot configure {self.source}:\n{output}")
        listed = json.loads(subprocess.run(["ctest", "--test-dir", str(self.folder), "--show-only=json-v1"],
                                           capture_output=True, check=True).stdout)
        self.tests = collections.defaultdict(list)
        for test in listed["tests"]:
            labels = [entry["value"] for entry in test["properties"] if entry["name"] == "LABELS"]
            words = [pathlib.Path(word) for word in test.get("command", [])]
            targets = {word.name for word in words if self.folder in word.parents and not word.suffix}
            for label in labels[0] if labels else []:
                if not (match := LABEL.match(label)):
                    continue
                if not targets:
                    raise Refused(f"the test {test['name']} runs no program of the build")
                self.tests[match[1] or match[2]].append((test["name"], targets))

    def build(self, tree, exercises):
        """Builds the tests of these exercises or lessons from a tree. Returns whether it compiled, and what was printed."""
        write_tree(self.source, tree, self.root)
        if self.keeps and not self.objects.is_dir():  # what was kept has been deleted, so all is made again
            shutil.rmtree(self.folder, ignore_errors=True)
        if self.tests is None:
            self._configure()
        status, output = build_telling(self.folder, self.targets(exercises))
        return status == 0, output

    def targets(self, exercises):
        """The programs that the tests of these exercises or lessons start; known after the first build."""
        for exercise in exercises:
            if not self.tests[exercise]:
                raise Refused(f"no test has the label {'exercise' if '.' in exercise else 'lesson'}-{exercise}")
        return {target for exercise in exercises for _, targets in self.tests[exercise] for target in targets}

    def run(self, exercises, until_failure=False):
        """Runs the tests of these exercises or lessons, or until one fails: each -> (verdict, detail)."""
        labels = "|".join(re.escape(exercise) for exercise in exercises)
        report = self.folder / "exercise.xml"
        report.unlink(missing_ok=True)
        self._run("ctest", "--test-dir", self.folder, "-L", f"^(exercise|lesson)-({labels})$", "--parallel", os.cpu_count() or 1,
                  "--output-junit", report, "--test-output-size-passed", 100000, "--test-output-size-failed", 300000,
                  *(["--stop-on-failure"] if until_failure else []))
        cases = {case.get("name"): case for case in xml.etree.ElementTree.parse(report).iter("testcase")}
        return {exercise: self._verdict(exercise, cases) for exercise in exercises}

    def _verdict(self, exercise, cases):
        """The verdict on one exercise: that of the first of its tests that did not pass."""
        for name, _ in sorted(self.tests[exercise], key=lambda test: test[0] not in cases):  # not run: after a failure
            output = cases[name].findtext("system-out") or ""
            # Exit status 0 is not enough: the code under test may have ended the program.
            if cases[name].get("status") == "run" and "All tests passed" in output:
                continue
            missing = set(NOT_IMPLEMENTED.findall(output))
            if exercise in missing:
                return "not implemented", ""
            if missing:
                return "failed", f"{name} needs exercise {min(missing)} first"
            case = CASE.search(output)
            where = " ".join(case.group(1).split()) if case else name
            failure, cut_off = cases[name].find("failure"), CUT_OFF.search(output)
            how = cut_off[0] if cut_off else "" if failure is None else failure.get("message", "")
            if cases[name].get("status") == "run":
                how = "the program ended before its tests"
            return "failed", where + (f" ({how})" if how not in ("", "Failed") else "")
        return "passed", ""
