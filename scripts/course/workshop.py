"""One build of the reference, shared by all gradings, and a student's programs made from it.

The reference is built once, with nothing of a student in it. A student's files are compiled one by one, in the sandbox, and
linked in front of the reference's libraries: a function that the student's object file defines is not taken from them.
"""

import fcntl
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess

from exercise_tree import Refused, write_tree

EXERCISE_FLAGS = "-O0 -DRANKWISE_POISON=1"  # as the debug build, without what costs time and brings nothing for small tests


def last_line(text):
    return (text.strip().split("\n") or [""])[-1]


def first_error(output, folder):
    """The first error that a compiler or linker printed, in one line and without the path of the copy."""
    lines = [line for line in output.split("\n") if re.search(r"\berror:|undefined reference|\bld: (?!warning)", line)]
    return (lines or output.strip().split("\n")[-1:])[0].replace(f"{folder}/", "").strip()


class Workshop:
    """Builds a tree in work/source -> work/build. Nothing but build() writes there."""

    def __init__(self, root, work):
        work = pathlib.Path(work).resolve()
        self.root, self.source, self.folder = pathlib.Path(root), work / "source", work / "build"
        self.commands = {}  # source file -> how it is compiled; known after build()

    def _run(self, *command):
        done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        if done.returncode != 0:
            raise Refused(f"the course itself does not compile: {first_error(done.stdout.decode(errors='replace'), self.source)}")

    def build(self, tree, targets):
        """Builds programs of the reference; does nothing where they are up to date. One at a time does it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder.parent / "lock", "w", encoding="ascii") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            write_tree(self.source, tree, self.root)
            for path in [self.source, *self.source.rglob("*")]:  # the sandbox's user has to read it, whatever the umask was
                path.chmod(path.stat().st_mode | (0o755 if path.is_dir() else 0o444))
            if not (self.folder / "build.ninja").exists():
                launcher = ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
                self._run("cmake", "-G", "Ninja", "-S", self.source, "-B", self.folder, "-DCMAKE_BUILD_TYPE=Exercise",
                          "-DRANKWISE_CUDA=off", f"-DCMAKE_CXX_FLAGS_EXERCISE={EXERCISE_FLAGS}",
                          "-DRANKWISE_WARNINGS_AS_ERRORS=OFF", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", *launcher)
            self._run("cmake", "--build", self.folder, "--parallel", os.cpu_count() or 1, "--target", *sorted(targets))
        with open(self.folder / "compile_commands.json", encoding="utf-8") as file:
            self.commands = {entry["file"]: shlex.split(entry["command"]) for entry in json.load(file)}

    def path(self, target):
        """Where a program or library of the reference is."""
        found = [path for path in (self.folder / "tests" / target, self.folder / "lessons" / target,
                                   self.folder / "data" / target, self.folder / "tests" / "judge" / target,
                                   self.folder / "tests" / "judge" / f"lib{target}.so") if path.is_file()]
        if not found:
            raise Refused(f"the build has no program {target}")
        return found[0]

    def libraries(self):
        """What a program needs to run, beside itself and the system."""
        return [path for path in [self.folder / "tests/judge/libhub_mpi.so"] if path.is_file()]

    def compile_command(self, path, source, output):
        """How the student's version, `source`, of the reference's file `path` is compiled."""
        words = list(self.commands[str(self.source / path)])
        if pathlib.Path(words[0]).name == "ccache":
            words = words[1:]
        words[words.index("-o") + 1] = str(output)
        words[words.index("-c") + 1] = str(source)
        return words

    def link_command(self, target, objects, output):
        """How a program is linked with the student's object files, by path of their source."""
        listed = subprocess.run(["ninja", "-C", str(self.folder), "-t", "commands", "-s",
                                 str(self.path(target).relative_to(self.folder))], capture_output=True, check=True)
        words = shlex.split(last_line(listed.stdout.decode()))
        words = words[words.index("&&") + 1:]
        words = words[:words.index("&&")] if "&&" in words else words
        words = [word for word in words if not word.startswith("-Wl,--dependency-file=")]  # of the reference's own link
        words[words.index("-o") + 1] = str(output)
        for path, made in objects.items():
            own = [i for i, word in enumerate(words) if word.endswith(f"{path}.o")]  # it is the program's own source
            if own:
                words[own[0]] = str(made)
            else:
                words.insert(next(i for i, word in enumerate(words) if word.endswith(".o")), str(made))
        return [str(self.folder / word) if (self.folder / word).exists() and not word.startswith("/") else word
                for word in words]
