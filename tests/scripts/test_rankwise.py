#!/usr/bin/env python3
"""scripts/rankwise and scripts/doctor.sh: what is run, and what a mistake gets. Nothing is built: programs are stand-ins."""

import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/usr/bin/env bash\n" + text)
    path.chmod(0o755)


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name, "it's a $clone")
        self.folder.mkdir()

    def copy(self, *names):
        """Copies scripts to the same place in the folder."""
        for name in names:
            (self.folder / "scripts" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / "scripts" / name, self.folder / "scripts" / name)

    def run_in(self, tree, *words, input=None, cwd=None, **environment):
        return subprocess.run([tree / "scripts/rankwise", *words], input=input, cwd=cwd, capture_output=True, text=True,
                              check=False, env={**os.environ, **environment})


class Rankwise(Case):
    """In a small tree with three lessons, whose programs say how they were started."""

    def setUp(self):
        super().setUp()
        self.copy("rankwise", "lib/words.sh")
        for name, said in (("setup", "set up"), ("build", "built $*"), ("ladder", "ladder $*"), ("course/diff", "diff $*")):
            script(self.folder / f"scripts/{name}.sh", f'echo "{said}"\n')
        (self.folder / "scripts/mpi_environment.sh").write_text("export MPI_IS_SET_UP=yes\n")
        for lesson, title in (("01_one", "a first idea"), ("03_three", "a third idea"), ("17_plan", "a plan")):
            program = self.folder / f"lessons/{lesson}/{lesson}.cpp"
            program.parent.mkdir(parents=True)
            program.write_text(f"// Lesson {lesson[:2]}: {title}\n")
            (program.parent / "README.md").write_text(f"# {title}\n")
            script(self.folder / f"build/lessons/{lesson}", f'echo "{lesson} in $PWD with $MPI_IS_SET_UP: $*"\n')
        script(self.folder / "bin/mpirun", 'echo "mpirun $1 $2"; shift 2; exec "$@"\n')
        self.path = f"{self.folder / 'bin'}:{os.environ['PATH']}"

    def rankwise(self, *words):
        return self.run_in(self.folder, *words, PATH=self.path)

    def test_lists_lessons_by_their_headers(self):
        self.assertEqual(self.rankwise("list").stdout, "01  a first idea\n03  a third idea\n17  a plan\n")
        with open("/dev/full", "wb") as full:
            done = subprocess.run([self.folder / "scripts/rankwise", "list"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr.split("\n")[0]), (1, "error: the list cannot be written."))

    def test_runs_a_lesson_on_ranks_with_its_options(self):
        for words, started in ((["3", "-n", "2", "--steps=5"], "mpirun -np 2"), (["03", "--steps=5"], "mpirun -np 4"),
                               (["03_three", "--steps=5", "-np", "8"], "mpirun -np 8")):
            done = self.rankwise("run", *words)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(done.stdout.splitlines(), ["set up", "built release 03_three", started,
                                                        f"03_three in {pathlib.Path.cwd()} with yes: --steps=5"])
            self.assertEqual(shlex.split(done.stderr), [*started.split(), f"{self.folder}/build/lessons/03_three", "--steps=5"])

    def test_runs_lessons_of_one_process_without_a_launcher(self):
        for lesson in ("01", "17"):
            self.assertNotIn("mpirun", self.rankwise("run", lesson).stdout)

    def test_returns_the_status_of_the_program(self):
        script(self.folder / "build/lessons/01_one", "exit 86\n")
        self.assertEqual(self.rankwise("run", "01").returncode, 86)

    def test_prints_a_command_that_can_be_copied(self):
        done = self.run_in(self.folder, "run", "03", "-n", "2", "--prompt=it's $5", cwd=self.folder, PATH=self.path)
        self.assertEqual(shlex.split(done.stderr), ["mpirun", "-np", "2", "build/lessons/03_three", "--prompt=it's $5"])

    def test_leaves_the_standard_input_to_the_loop_around_it(self):
        script(self.folder / "build/lessons/03_three", "cat\n")
        for options, read in (((), ""), (("--prompt-file=/dev/stdin",), "of the loop")):
            done = self.run_in(self.folder, "run", "03", *options, PATH=self.path, input="of the loop")
            self.assertEqual(done.stdout.splitlines()[-1], read or "mpirun -np 4")

    def test_other_folders_on_the_cdpath_are_not_taken(self):
        (self.folder / "other/scripts").mkdir(parents=True)
        done = subprocess.run(["bash", "scripts/rankwise", "list"], cwd=self.folder, capture_output=True, text=True, check=False,
                              env={**os.environ, "CDPATH": str(self.folder / "other")})
        self.assertEqual((done.stdout.count("\n"), done.stdout[:2]), (3, "01"))
        for path in [ROOT / "scripts/rankwise", *(ROOT / "scripts").rglob("*.sh"), *(ROOT / "tests").rglob("*.sh")]:
            self.assertNotRegex(path.read_text(encoding="utf-8"), r"(?<!CDPATH='' )cd \"\$[({].*dirname", path)

    def test_python_starts_commands_wherever_the_clone_is(self):
        self.copy("lib/with_mpi.py", "lib/documents.py")
        code = "import subprocess, with_mpi; subprocess.run(with_mpi.with_mpi('bash', '-c', 'cat; echo \"$MPI_IS_SET_UP $0\"', '$a \"b'))"
        done = subprocess.run([sys.executable, "-c", code], cwd=self.folder / "scripts/lib", input="of the loop", capture_output=True, text=True,
                              check=False)
        self.assertEqual(done.stdout, 'yes $a "b\n')

    def test_explains_and_shows_differences_and_compares(self):
        self.assertEqual(self.rankwise("explain", "03").stdout, "# a third idea\n")
        self.assertEqual(self.rankwise("diff", "3").stdout, "diff 03\n")
        self.assertEqual(self.rankwise("compare", "1", "03", "--steps=2").stdout, "ladder --lessons=01,03 --steps=2\n")
        self.assertEqual(self.rankwise("compare", "--ranks=2").stdout, "ladder --ranks=2\n")

    def test_a_mistake_gets_one_message_and_status_2(self):
        for words, said in ((["walk"], "'walk' is no command"), (["run"], "run needs the number"), (["diff"], "diff needs"),
                            (["run", "07"], "no lesson '07'"), (["run", "three"], "no lesson 'three'"), (["compare", "9"], "no lesson '9'"),
                            (["run", "03", "-n"], "-n nothing is not a number"), (["run", "03", "-n", "0"], "-n 0 is not"),
                            (["run", "03", "-n", "two"], "-n two is not"), (["run", "03", "-n", "10000"], "-n 10000 is not"),
                            (["\x1b[2J\u202e\x9b"], "'?[2J??' is no command")):
            done = self.rankwise(*words)
            self.assertEqual((done.returncode, done.stdout), (2, ""), words)
            self.assertTrue(done.stderr.startswith("error: "), done.stderr)
            self.assertIn(said, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 2, done.stderr)


class Ladder(Case):
    """In a small tree with one lesson, whose program writes a report."""

    def setUp(self):
        super().setUp()
        self.copy("ladder.sh", "lib/words.sh", "lib/lock.py", "lib/documents.py", "plot/ladder_table.py")
        for name in ("setup.sh", "build.sh", "mpi_environment.sh", "plot/plot_ladder.py", "page/compare_runs.py"):
            script(self.folder / "scripts" / name, "")
        (self.folder / "lessons/01_one").mkdir(parents=True)
        report = json.dumps({"lesson": "01_one", "checks": [], "model": {"name": "nano", "architecture": "gpt2", "parameters": 1},
                             "loss": [5.5], "time": {"step_s": 1, "tokens_per_s": 1}, "memory": {}, "memory_peak": 1, "digest": "aa"})
        script(self.folder / "build/lessons/01_one", f"""
for option in "$@"; do if [[ $option == --report=* ]]; then echo '{report}' >"${{option#*=}}"; fi; done
if [[ -e wait ]]; then : >waits; while [[ -e wait ]]; do sleep 0.05; done; fi
exit "$(cat status)"
""")
        (self.folder / "status").write_text("0")

    def start(self, *words):
        return subprocess.Popen([self.folder / "scripts/ladder.sh", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def ladder(self, *words):
        ladder = self.start(*words)
        return ladder.communicate(timeout=60)[0], ladder.returncode

    def test_a_run_that_breaks_after_its_report_is_told(self):
        said, status = self.ladder()
        self.assertIn("All checks hold", said)
        self.assertEqual(status, 0)
        (self.folder / "status").write_text("134")
        said, status = self.ladder()
        self.assertIn("01_one.np1: a run broke", said)
        self.assertNotIn("All checks hold", said)
        self.assertEqual(status, 1)

    def test_a_mistake_ends_it_before_anything_is_built(self):
        script(self.folder / "scripts/build.sh", "echo built\n")
        (self.folder / "lessons/options.cpp").write_text('add("steps")')
        for word, said in (("--ranks=huge", "is not a number"), ("--ranks=10000", "is not a number"), ("--lessons=", "names lesson ''"),
                           ("--lessons=02", "does not exist"), ("--nosuch\x1b", "no lesson has the option '--nosuch?'"), ("steps", "no lesson has")):
            said_of_it, status = self.ladder("--steps=3", word)
            self.assertIn(said, said_of_it)
            self.assertEqual((status, said_of_it.count("\n"), said_of_it[:7]), (2, 2, "error: "), said_of_it)
        self.assertIn("\nbuilt\n", self.ladder("--steps", "3")[0])

    def test_there_is_one_ladder_at_a_time(self):
        (self.folder / "wait").touch()
        first = self.start()
        while not (self.folder / "waits").exists():
            self.assertIsNone(first.poll())
            time.sleep(0.01)
        said, status = self.ladder()
        self.assertIn("error: another ladder climbs in this clone", said)
        self.assertEqual(status, 2)
        (self.folder / "wait").unlink()
        self.assertIn("All checks hold", first.communicate()[0])
        self.assertEqual(first.returncode, 0)


class Build(Case):
    def test_there_is_one_at_a_time(self):
        script(self.folder / "bin/cmake", """
if [[ $1 == --preset ]]; then echo "-- Build files have been written to: $PWD/build"; exit; fi
echo begins >>log; while [[ ! -e go ]]; do sleep 0.05; done; echo ends >>log
""")
        self.copy("build.sh", "lib/words.sh", "lib/lock.py")
        (self.folder / "CMakePresets.json").write_text('"name": "release"')
        (self.folder / "build").mkdir()
        (self.folder / "build/.ninja_deps").touch()
        builds = []
        for _ in range(2):
            builds.append(subprocess.Popen([self.folder / "scripts/build.sh", "release"], stderr=subprocess.PIPE, text=True,
                                           env={**os.environ, "PATH": f"{self.folder}/bin:{os.environ['PATH']}"}))
            while not (self.folder / "log").exists():
                self.assertIsNone(builds[0].poll())
                time.sleep(0.01)
        self.assertIn("Another build runs in this clone", builds[1].stderr.readline())
        (self.folder / "go").touch()
        self.assertNotIn("Another", "".join(build.communicate(timeout=60)[1] for build in builds))
        self.assertEqual((self.folder / "log").read_text(encoding="utf-8").split(), ["begins", "ends"] * 2)
        self.assertEqual([build.returncode for build in builds], [0, 0])

    def test_a_lock_that_is_not_to_be_had_stops_nobody(self):
        done = subprocess.run([sys.executable, ROOT / "scripts/lib/lock.py", "99"], capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr[:9]), (0, "warning: "))


class Doctor(Case):
    def doctor(self, **environment):
        return self.run_in(ROOT, "doctor", **environment)

    def test_finds_nothing_bad_where_the_tests_were_built(self):
        done = self.doctor(OMP_PROC_BIND="true", OMP_PLACES="")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("two ranks have exchanged a message", done.stdout)
        self.assertRegex(done.stdout, r"memory +\d+ MiB are free in (this machine|the control group|ulimit)")
        self.assertIn("note  cores      OMP_PROC_BIND=true binds the threads of each rank", done.stdout)
        self.assertNotIn("OMP_PLACES", done.stdout)

    def test_says_what_is_bad_and_what_to_do(self):
        script(self.folder / "mpirun", 'shift 2; "$@"; exec "$@"\n')  # starts two jobs of one rank
        script(self.folder / "c++", "echo 'twenty.cpp:1: error: no such header'; exit 1\n")
        script(self.folder / "cmake", "echo 'CMake Error at x:'; echo '  Not found: HDF5'; echo 'Call Stack'; exit 1\n")
        done = self.doctor(PATH=f"{self.folder}:{os.environ['PATH']}", CXX="c++", PMI_SIZE="4\x1b", TMPDIR=str(self.folder / "nowhere"))
        self.assertEqual(done.returncode, 1)
        for said in ("BAD   compiler", "no such header", "two jobs of one rank", "Not found: HDF5", "PMI_SIZE=4?\n", "unset PMI_SIZE", "BAD   TMPDIR",
                     "what to do stands above"):
            self.assertIn(said, done.stdout)


if __name__ == "__main__":
    unittest.main()
