#!/usr/bin/env python3
"""scripts/rankwise and scripts/doctor.sh: what is run, and what a mistake gets. Nothing is built: programs are stand-ins."""

import os
import pathlib
import shutil
import subprocess
import tempfile
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
        self.folder = pathlib.Path(folder.name)

    def run_in(self, tree, *words, **environment):
        return subprocess.run([tree / "scripts/rankwise", *words], capture_output=True, text=True, check=False,
                              env={**os.environ, **environment})


class Rankwise(Case):
    """In a small tree with three lessons, whose programs say how they were started."""

    def setUp(self):
        super().setUp()
        (self.folder / "scripts/course").mkdir(parents=True)
        shutil.copy(ROOT / "scripts/rankwise", self.folder / "scripts/rankwise")
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

    def test_runs_a_lesson_on_ranks_with_its_options(self):
        for words, started in ((["3", "-n", "2", "--steps=5"], "mpirun -np 2"), (["03", "--steps=5"], "mpirun -np 4"),
                               (["03_three", "--steps=5", "-np", "8"], "mpirun -np 8")):
            done = self.rankwise("run", *words)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(done.stdout.splitlines(), ["set up", "built release 03_three", started,
                                                        f"03_three in {pathlib.Path.cwd()} with yes: --steps=5"])
            self.assertIn(f"{started} build/lessons/03_three --steps=5", done.stderr)

    def test_runs_lessons_of_one_process_without_a_launcher(self):
        for lesson in ("01", "17"):
            self.assertNotIn("mpirun", self.rankwise("run", lesson).stdout)

    def test_returns_the_status_of_the_program(self):
        script(self.folder / "build/lessons/01_one", "exit 86\n")
        self.assertEqual(self.rankwise("run", "01").returncode, 86)

    def test_explains_and_shows_differences_and_compares(self):
        self.assertEqual(self.rankwise("explain", "03").stdout, "# a third idea\n")
        self.assertEqual(self.rankwise("diff", "3").stdout, "diff 03\n")
        self.assertEqual(self.rankwise("compare", "1", "03", "--steps=2").stdout, "ladder --lessons=01,03 --steps=2\n")
        self.assertEqual(self.rankwise("compare", "--ranks=2").stdout, "ladder --ranks=2\n")

    def test_a_mistake_gets_one_message_and_status_2(self):
        for words, said in ((["walk"], "'walk' is no command"), (["run"], "run needs the number"), (["diff"], "diff needs"),
                            (["run", "07"], "no lesson '07'"), (["run", "three"], "no lesson 'three'"), (["compare", "9"], "no lesson '9'"),
                            (["run", "03", "-n"], "-n nothing is not a number"), (["run", "03", "-n", "0"], "-n 0 is not"),
                            (["run", "03", "-n", "two"], "-n two is not")):
            done = self.rankwise(*words)
            self.assertEqual((done.returncode, done.stdout), (2, ""), words)
            self.assertTrue(done.stderr.startswith("error: "), done.stderr)
            self.assertIn(said, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 2, done.stderr)


class Doctor(Case):
    def doctor(self, **environment):
        return self.run_in(ROOT, "doctor", **environment)

    def test_finds_nothing_bad_where_the_tests_were_built(self):
        done = self.doctor()
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("two ranks have exchanged a message", done.stdout)

    def test_says_what_is_bad_and_what_to_do(self):
        script(self.folder / "mpirun", 'shift 2; "$@"; exec "$@"\n')  # starts two jobs of one rank
        script(self.folder / "c++", "echo 'twenty.cpp:1: error: no such header'; exit 1\n")
        script(self.folder / "cmake", "echo 'CMake Error at x:'; echo '  Not found: HDF5'; echo 'Call Stack'; exit 1\n")
        done = self.doctor(PATH=f"{self.folder}:{os.environ['PATH']}", CXX="c++", PMI_SIZE="4")
        self.assertEqual(done.returncode, 1)
        for said in ("BAD   compiler", "no such header", "two jobs of one rank", "Not found: HDF5", "PMI_SIZE=4", "unset PMI_SIZE",
                     "what to do stands above"):
            self.assertIn(said, done.stdout)


if __name__ == "__main__":
    unittest.main()
