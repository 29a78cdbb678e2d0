"""Runs a lesson's program as a user would, and looks at its output, report and exit status."""

import concurrent.futures
import glob
import json
import os
import random
import shlex
import subprocess
import tempfile
import unittest

import repeated_runs

BUILD = os.environ["RANKWISE_BUILD"]  # where the programs are
ALL = "RANKWISE_ALL" in os.environ  # every combination, at night; else a set that covers them
SLOWNESS = float(os.environ.get("RANKWISE_SLOWNESS", "1"))  # of this machine; time limits are for an idle one
TIME_LIMIT_S = 250 * SLOWNESS
# When a rank ends with a status other than 0, Open MPI gives the others a second to end. No rank of these tests needs it.
NO_GRACE = {f"{launcher}_MCA_odls_base_sigkill_timeout": "0" for launcher in ("OMPI", "PRTE")}


def temporaries(path):
    """The files that jobs began and have not committed, or have left, of this path."""
    return glob.glob(glob.escape(path) + ".*.tmp")


def run_to_its_end(command):
    """The finished process. One that takes too long fails the test with what it had printed; the launcher is asked to end
    its ranks first, which would outlive it."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
                          env={**NO_GRACE, **os.environ}) as process:
        try:
            output, errors = process.communicate(timeout=TIME_LIMIT_S)
            return subprocess.CompletedProcess(command, process.returncode, output, errors)
        except subprocess.TimeoutExpired:
            process.terminate()
        try:
            output, errors = process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            output, errors = process.communicate()
    raise AssertionError(f"{' '.join(command)}\nhad not ended after {TIME_LIMIT_S:.0f} s; it had printed:\n{output}{errors}")


def mixed_job(ranks, first, others):
    """The command of a job in which rank 0 runs another command than the other ranks. mpirun would take both with a colon
    between them, but that of Open MPI 5.0.7 crashes on it."""
    return ["mpirun", "-np", str(ranks), "sh", "-c", f'if [ "${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}}" = 0 ]; then '
            f"exec {shlex.join(first)}; else exec {shlex.join(others)}; fi"]


class ProgramCase(unittest.TestCase):
    """A test case for one program; `program` is its path below the build folder. By day a lesson's
    processes are used for many runs, unless `repeated` is false."""

    program = ""
    repeated = repeated_runs.LIBRARY is not None and not ALL

    @staticmethod
    def prepared(folder, length=3000):
        """Writes a random text of so many characters as a token file. Returns the option that names it."""
        text, data = (os.path.join(folder, name) for name in ("text.txt", "text.h5"))
        with open(text, "w", encoding="utf-8") as file:
            file.write("".join(random.Random(3).choices("abcdefgh \n", k=length)))
        subprocess.run([os.path.join(BUILD, "data/prepare"), "--tokenizer=byte", text, data], check=True,
                       capture_output=True)
        return f"--data={data}"

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def run_program(self, *options, ranks=None, program=None):
        """The finished process, with its output as text.

        A rank that ends waits 2 s for the launcher's answer (PMIx_Finalize()). On a machine so busy that it does not come, the
        launcher calls a good end improper; so such a run is repeated once, by scripts/ladder.sh too. A rank that really ends so
        does it again."""
        launcher = [] if ranks is None else ["mpirun", "-np", str(ranks)]
        program = program or self.program
        path = os.path.join(BUILD, program)
        if self.repeated and program.startswith("lessons/") and "LD_PRELOAD" not in os.environ:
            return repeated_runs.run(launcher, path, options, {**NO_GRACE, **os.environ}, TIME_LIMIT_S)
        for _ in range(2):
            done = run_to_its_end([*launcher, path, *options])
            if "exiting improperly" not in done.stderr:
                break
        return done

    def report(self, *options, ranks=None):
        """The report of a run whose checks all hold."""
        path = os.path.join(self.folder, "report.json")
        done = self.run_program(*options, f"--report={path}", ranks=ranks)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        with open(path, encoding="utf-8") as file:
            return json.load(file)

    def assert_refused(self, *options, says, ranks=None):
        """The run ends with status 2 and one paragraph that holds every text of `says`."""
        return self.assert_is_refusal(self.run_program(*options, ranks=ranks), says)

    def assert_all_refused(self, cases, ranks=None):
        """assert_refused() for cases of options and texts; side by side, since a launcher takes its time to end such a run."""
        with concurrent.futures.ThreadPoolExecutor(max_workers=1 if self.repeated else 4) as pool:
            runs = [pool.submit(self.run_program, *options, ranks=ranks) for options, _ in cases]
        for (options, says), run in zip(cases, runs):
            with self.subTest(options=options):
                self.assert_is_refusal(run.result(), says)

    def assert_is_refusal(self, done, says):
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertEqual(done.stderr.count("error:"), 1, done.stderr)
        for text in says:
            self.assertIn(text, done.stderr)
        return done


class ShortTextCase(ProgramCase):
    """Runs on a short text, named by the option `data`. A run validates the whole validation split, and that of the embedded
    corpus takes five times as long as the steps of a test."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.data = cls.prepared(folder.name)
