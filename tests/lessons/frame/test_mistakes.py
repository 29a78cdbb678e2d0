"""Ten mistakes of a newcomer, each with one message that says what to do: status 2, one line that begins with "error:", and in it
or below it the words that help. What comes from a launcher and not from these programs is looked for in the launcher's words.
"""

import os
import subprocess
import unittest

from program_case import BUILD, TIME_LIMIT_S, ProgramCase

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../.."))
FIRST, DDP = (os.path.join(BUILD, "lessons", name) for name in ("01_single_device", "03_ddp"))
RUNS_AS_ROOT = os.geteuid() == 0
OPEN_MPI = os.environ.get("RANKWISE_MPI", "openmpi") == "openmpi"


class Mistakes(ProgramCase):
    def started(self, *command, without=(), **variables):
        """The finished process, started in another folder than the repository's."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(tuple(without) or ("\0",))}
        return subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT_S, cwd=self.folder,
                              env=environment | variables, check=False)

    def refused(self, *command, says, status=2, **variables):
        done = self.started(*command, **variables)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        self.assertEqual(done.stderr.count("error:"), 1, done.stderr)
        for words in says:
            self.assertIn(words, done.stderr)

    def test_1_no_launcher(self):
        done = self.started(DDP, "--steps=1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("source scripts/mpi_environment.sh; mpirun -np 4 build/lessons/03_ddp", done.stdout)
        self.assertNotIn("mpirun", self.started(FIRST, "--steps=1").stdout)
        self.assertNotIn("mpirun -np 4", self.started("mpirun", "-np", "2", DDP, "--steps=1").stdout)

    @unittest.skipUnless(RUNS_AS_ROOT and OPEN_MPI, "only Open MPI refuses root")
    def test_2_root_without_the_environment(self):
        done = self.started("mpirun", "-np", "2", DDP, without=("OMPI_ALLOW", "PRTE_ALLOW"))
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("as root", done.stderr)

    def test_3_ranks_that_do_not_divide(self):
        self.refused("mpirun", "-np", "3", DDP, says=["cannot be shared out among 3 ranks", "multiple of 3"])

    @unittest.skipUnless(OPEN_MPI, "only Open MPI counts slots")
    def test_4_more_ranks_than_cores_without_the_environment(self):
        many = str(os.cpu_count() + 1)
        done = self.started("mpirun", "--host", "localhost:1", "-np", many, DDP,
                            without=("OMPI_MCA_rmaps", "PRTE_MCA_rmaps"))
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("slots", done.stderr)

    def test_5_a_typing_error(self):
        self.refused(FIRST, "--stpes=3", says=["unknown option --stpes", "Did you mean --steps?"])

    def test_6_another_folder(self):
        self.refused(FIRST, "--data=build/tokens.h5", says=["does not exist", os.path.join(self.folder, "build/tokens.h5")])

    def test_7_no_data(self):
        self.refused(FIRST, "--data=/nowhere/tokens.h5", says=["/nowhere/tokens.h5 does not exist", "build/data/prepare"])

    def test_8_a_wrong_model(self):
        self.refused(FIRST, "--model=gpt3", says=["--model=gpt3", "gpt2-medium"])

    def test_9_the_launcher_of_another_library(self):
        """Another library sets its own variables: each process would be a job of one rank."""
        self.refused(DDP, "--steps=1", says=["2 processes were started", "the mpirun of that library"],
                     **{"MPI_LOCALNRANKS": "2", "MPI_LOCALRANKID": "1"})

    def test_10_no_python(self):
        """The script may not install it: no package manager is on the path either."""
        tools = os.path.join(self.folder, "bin")
        os.mkdir(tools)
        left_out = ("python", "apt-get", "dnf", "pacman", "brew")
        for folder in os.environ["PATH"].split(":"):
            for name in os.listdir(folder) if os.path.isdir(folder) else ():
                if not name.startswith(left_out) and not os.path.lexists(os.path.join(tools, name)):
                    os.symlink(os.path.join(folder, name), os.path.join(tools, name))
        done = self.started("bash", os.path.join(ROOT, "scripts/setup.sh"), PATH=tools)
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertIn("error: python3 is not on the path", done.stderr)
        self.assertIn("sudo apt-get install", done.stderr)


if __name__ == "__main__":
    unittest.main()
