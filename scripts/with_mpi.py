"""Commands in the environment that scripts/mpi_environment.sh makes."""

import pathlib

ENVIRONMENT = pathlib.Path(__file__).resolve().with_name("mpi_environment.sh")


def with_mpi(*command):
    """The words that run a command there, wherever the clone is. It reads nothing: mpirun would take a loop's standard input."""
    return ["bash", "-c", 'source "$0"; exec "$@" </dev/null', str(ENVIRONMENT), *map(str, command)]
