"""From what was measured of the start of lesson 01 to a table: the seconds from its launch to its first step, beside those of a
program that only starts MPI. Nothing here measures."""

import statistics

from bench_tables import text_table

LAUNCHES = {"no launcher": [], "mpirun -np 1": ["mpirun", "-np", 1]}
FIRST_LINE = r"started"
FIRST_STEP = r" +0 .* ([\d.]+)$"  # the line of the first step ends with its milliseconds
MOST_MORE_S = 0.05
ROUNDS = 15


def commands(build, text):
    """Commands by launch: a program that only starts MPI, and lesson 01."""
    return {launch: ([*words, build / "tests/empty_program"], [*words, build / "lessons/01_single_device", "--steps=1", f"--data={text}"])
            for launch, words in LAUNCHES.items()}


def startup_table(turns):
    """The medians of (seconds of the empty program, seconds to the first step of lesson 01) by launch over the rounds."""
    rows = [["launch", "empty program", "lesson 01", "more", "limit"], ["", "s", "s to its first step", "s", "s"]]
    for launch in LAUNCHES:
        empty, lesson = (statistics.median(seconds) for seconds in zip(*(turn[launch] for turn in turns)))
        more = statistics.median(turn[launch][1] - turn[launch][0] for turn in turns)
        rows.append([launch, f"{empty:.3f}", f"{lesson:.3f}", f"{more:.3f}", f"{MOST_MORE_S} {'met' if more <= MOST_MORE_S else 'above'}"])
    return text_table(rows)
