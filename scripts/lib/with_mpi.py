"""Commands in the environment that scripts/mpi_environment.sh makes."""

import pathlib
import subprocess
import tempfile

from documents import Refused, read_json

ENVIRONMENT = pathlib.Path(__file__).resolve().parents[1] / "mpi_environment.sh"


def with_mpi(*command):
    """The words that run a command there, wherever the clone is. It reads nothing: mpirun would take a loop's standard input."""
    return ["bash", "-c", 'source "$0"; exec "$@" </dev/null', str(ENVIRONMENT), *map(str, command)]


def report_of(program, ranks, given, *own):
    """The report of one run of a lesson, with the options that the user has given and the script's own; Refused with what the lesson said."""
    with tempfile.TemporaryDirectory() as folder:
        own += (f"--report={folder}/report.json",)
        for option in given:
            if option.split("=")[0] in {mine.split("=")[0] for mine in own}:
                raise Refused(f"{option} cannot be given: this script sets it itself.\n       Leave it out.")
        done = subprocess.run(with_mpi("mpirun", "-np", ranks, program, *given, *own), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Refused(done.stderr.split("\n---")[0].strip().removeprefix("error: "))  # what mpirun says of it comes behind a ruler
        return read_json(f"{folder}/report.json")
