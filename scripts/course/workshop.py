"""One build of the reference, shared by all gradings, and a student's programs made from it.

The reference is built once, with nothing of a student in it. A student's file is compiled in the sandbox, which shows the
course's headers and no source, and linked with the reference's object files but that of the same file: what is not there
can neither be included nor called.
"""

import fcntl
import json
import pathlib
import re
import shlex
import shutil
import subprocess

from exercise_bench import build_telling, first_error
from exercise_tree import Refused, write_tree

HEADER = re.compile(r"(common|data|gpt2|lessons)/.*\.hpp$")
EXERCISE_FLAGS = "-O0 -DRANKWISE_POISON=1"  # as the debug build, without what costs time and brings nothing for small tests


class Workshop:
    """Builds a tree in work/source -> work/build. Nothing but build() writes there."""

    def __init__(self, root, work):
        work = pathlib.Path(work).resolve()
        self.root, self.source, self.folder = pathlib.Path(root), work / "source", work / "build"
        self.headers = work / "headers"  # what a student's file can include of the course: no solution, no judge
        self.commands = {}  # source file -> how it is compiled; known after build()

    def _run(self, *command):
        done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        self._require(done.returncode, done.stdout.decode(errors="replace"))

    def _require(self, status, output):
        if status != 0:
            raise Refused(f"the course itself does not compile: {first_error(output, self.source)}")

    def build(self, tree, targets):
        """Builds programs of the reference; does nothing where they are up to date. One at a time does it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder.parent / "lock", "w", encoding="ascii") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            write_tree(self.source, tree, self.root)
            write_tree(self.headers, {path: tree[path] for path in tree if HEADER.match(path)}, self.root)
            for path in [self.headers, *self.headers.rglob("*")]:  # the sandbox's user has to read it, whatever the umask was
                path.chmod(path.stat().st_mode | (0o755 if path.is_dir() else 0o444))
            if not (self.folder / "build.ninja").exists():
                launcher = ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
                self._run("cmake", "-G", "Ninja", "-S", self.source, "-B", self.folder, "-DCMAKE_BUILD_TYPE=Exercise",
                          "-DRANKWISE_CUDA=off", f"-DCMAKE_CXX_FLAGS_EXERCISE={EXERCISE_FLAGS}",
                          "-DRANKWISE_WARNINGS_AS_ERRORS=OFF", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", *launcher)
            self._require(*build_telling(self.folder, targets))
        with open(self.folder / "compile_commands.json", encoding="utf-8") as file:  # tests compile some files once more
            self.commands = {entry["file"]: shlex.split(entry["command"]) for entry in json.load(file)
                             if " -o tests/" not in entry["command"]}

    def path(self, target):
        """Path of a program or library of the reference."""
        found = [path for path in (self.folder / "tests" / target, self.folder / "lessons" / target,
                                   self.folder / "data" / target, self.folder / "tests" / "judge" / target,
                                   self.folder / "tests" / "judge" / f"lib{target}.so") if path.is_file()]
        if not found:
            raise Refused(f"the build has no program {target}")
        return found[0]

    def libraries(self):
        """Files that a program needs to run, beside itself and the system."""
        return [path for path in [self.folder / "tests/judge/libhub_mpi.so"] if path.is_file()]

    def compile_command(self, path, source, output):
        """Command that compiles the student's version, `source`, of the reference's file `path`."""
        words = [word.replace(str(self.source), str(self.headers)) for word in self.commands[str(self.source / path)]]
        if pathlib.Path(words[0]).name == "ccache":
            words = words[1:]
        words[words.index("-o") + 1] = str(output)
        words[words.index("-c") + 1] = str(source)
        return words

    def _made_by(self, file):
        """The command that makes a program or a library of the build, as words; it runs in the folder of the build."""
        listed = subprocess.run(["ninja", "-C", str(self.folder), "-t", "commands", "-s", str(file)], capture_output=True, check=True)
        commands = map(shlex.split, listed.stdout.decode().strip().split("\n")[-1].split("&&"))
        return next(words for words in commands if any(word.endswith(".o") for word in words))

    def link_command(self, target, objects, output, folder, without=()):
        """Command that links a program with other object files, by path of their source. The reference's of these sources are
        left out, and so is each object file and library in whose name a word of `without` stands.

        @param folder  where libraries are written that lack some of their objects.
        """
        # A folder that is compiled as one file is unity_gpt2_kernels_cpu_cxx.cxx.o.
        left_out = re.compile("|".join((*(re.escape(f"/{path}.o") for path in objects), *(re.escape(name).replace("/", "[/_]") for name in without))))

        def library(name):
            words = self._made_by(name)
            everything = words[words.index(name) + 1:]
            kept = [str(self.folder / word) for word in everything if not left_out.search(word)]
            if len(kept) == len(everything):
                return name
            copy = folder / pathlib.Path(name).name
            copy.unlink(missing_ok=True)
            self._run("ar", "qcs", copy, *kept)
            copy.chmod(0o644)
            return str(copy)

        words = self._made_by(self.path(target).relative_to(self.folder))
        words = [word for word in words if not left_out.search(word) and not word.startswith("-Wl,--dependency-file=")]
        libraries = {name: library(name) for name in {word for word in words if re.fullmatch(r"[^/-].*\.a", word)}}
        at = words.index("-o") + 1
        words[at:at + 1] = map(str, (output, *objects.values()))
        words += ["-Wl,--unresolved-symbols=ignore-all"] * bool(without)
        words = [libraries.get(word, word) for word in words]
        return [str(self.folder / word) if (self.folder / word).is_file() else word for word in words]

    def named(self, words):
        """The files of the build that a command names: all of it that the command has to see."""
        files = [pathlib.Path(word + end) for word in words for end in ("", ".gch")]
        return [file for file in files if self.folder in file.parents and file.is_file()]
