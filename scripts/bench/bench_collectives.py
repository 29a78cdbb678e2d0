"""From what build/tests/all_reduce measured to figures and tables of all-reduce. Nothing here measures."""

import dataclasses
import statistics

from bench_tables import against, text_table

KIB, MIB = 1 << 10, 1 << 20
# With a warm heap malloc keeps what it was given: else each call of the library asks the system for fresh pages.
WARM = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
LIBRARY, LIMIT = "library", "copy"
ALGORITHMS = ["ring", "halving", "tree", "shared", "shared-other"]  # beside the library, in the order of the tables
SHARING = ["shared", "shared-other", "ring", LIBRARY]
CSV_COLUMNS = ["date", "commit", "ranks", "bytes", "algorithm", "heap", "seconds", "algorithm_GBps", "bus_GBps",
               "ratio"]


@dataclasses.dataclass(frozen=True)
class Run:
    """One start of all_reduce."""

    name: str
    ranks: int
    warm: bool          # heap
    least: int          # bytes of the vectors
    most: int
    factor: int
    total: bool = False  # all runs of this kind have the same ranks times bytes: do they take the same time?
    rounds: int = 7

    @property
    def environment(self):
        """Variables for all ranks."""
        return WARM if self.warm else {}

    @property
    def heap(self):
        """Name of the heap in the CSV file."""
        return "warm" if self.warm else "default"

    def command(self, build, rounds):
        """Command of one run; `rounds` as the user wants, if not None."""
        return ["mpirun", "-np", self.ranks, build / "tests/all_reduce", f"--least-bytes={self.least}",
                f"--most-bytes={self.most}", f"--factor={self.factor}", f"--rounds={rounds or self.rounds}"]


RUNS = [Run(f"all-reduce-{N}-{'warm' if warm else 'default'}", N, warm, 4 * KIB, 256 * MIB, 4)
        for N in (2, 4) for warm in (True, False)]
RUNS += [Run(f"all-reduce-shared-cores-{N}", N, True, MIB // N, 64 * MIB // N, 8, total=True) for N in (2, 4, 8)]


@dataclasses.dataclass(frozen=True)
class Floor:
    """The least ratio to the library's speed for some sizes."""

    algorithm: str
    heap: str
    least: int  # bytes
    most: int
    ratio: float


FLOORS = [
    Floor("shared", "warm", MIB, 256 * MIB, 2.5),
    Floor("shared", "default", MIB, 256 * MIB, 4.0),
    Floor("shared-other", "warm", MIB, 256 * MIB, 1.5),
    Floor("shared", "warm", 4 * KIB, 4 * KIB, 1.0),
    Floor("shared-other", "warm", 4 * KIB, 4 * KIB, 1.0),
    Floor("shared", "default", 4 * KIB, 4 * KIB, 1.0),
    Floor("shared-other", "default", 4 * KIB, 4 * KIB, 1.0),
    Floor("ring", "warm", 16 * MIB, 256 * MIB, 1.0),
]


def floor_of(algorithm, heap, size):
    """The floor of one figure; 0: none."""
    return next((floor.ratio for floor in FLOORS if (floor.algorithm, floor.heap) == (algorithm, heap) and
                 floor.least <= size <= floor.most), 0)


@dataclasses.dataclass(frozen=True)
class Figure:
    """One algorithm at one size: medians over the rounds."""

    ranks: int
    heap: str
    bytes: int
    algorithm: str
    seconds: float
    ratio: float  # of the library's seconds to these, the median of the rounds' own ratios

    @property
    def algorithm_gbps(self):
        """Bytes of the vector a second."""
        return 1e-9 * self.bytes / self.seconds

    @property
    def bus_gbps(self):
        """Bytes a second that each rank sends in reduce-scatter and all-gather: (N-1)/N of the vector in each. Unlike the
        bytes of the vector a second it says how far links are used, whatever N is."""
        return 2 * (self.ranks - 1) / self.ranks * self.algorithm_gbps


def figures_of(run, document):
    """All figures of one run, by (bytes, algorithm)."""
    figures = {}
    for size in document["sizes"]:
        for algorithm in size["rounds"][0]:
            seconds = statistics.median(turn[algorithm] for turn in size["rounds"])
            ratio = statistics.median(turn[LIBRARY] / turn[algorithm] for turn in size["rounds"])
            figures[size["bytes"], algorithm] = Figure(run.ranks, run.heap, size["bytes"], algorithm, seconds, ratio)
    return figures


def size_text(size):
    """A number of bytes in words, as "4 KiB"."""
    for unit, factor in (("MiB", MIB), ("KiB", KIB)):
        if size % factor == 0:
            return f"{size // factor} {unit}"
    return f"{size} B"


def bandwidth_table(run, document):
    """Bus bandwidth by size and algorithm, with the ratio to the library."""
    figures = figures_of(run, document)
    with_floor = {floor.algorithm for floor in FLOORS if floor.heap == run.heap}
    rows = [["vector", LIMIT, LIBRARY], ["", "GB/s", "GB/s"]]
    for algorithm in ALGORITHMS:
        rows[0] += [algorithm, "ratio", *["floor"] * (algorithm in with_floor)]
        rows[1] += ["GB/s", "", *[""] * (algorithm in with_floor)]
    for size in sorted({size for size, _ in figures}):
        row = [size_text(size), *(f"{figures[size, name].bus_gbps:.2f}" for name in (LIMIT, LIBRARY))]
        for algorithm in ALGORITHMS:
            figure = figures[size, algorithm]
            row += [f"{figure.bus_gbps:.2f}", f"{figure.ratio:.2f}"]
            if algorithm in with_floor:
                row.append(against(floor_of(algorithm, run.heap, size), figure.ratio))
        rows.append(row)
    return f"# N = {run.ranks}, {run.heap} heap\n" + text_table(rows)


def sharing_table(measured):
    """Times of the same work by more and more ranks on the same cores; `measured`: (Run, document) pairs of such runs."""
    by_ranks = {run.ranks: figures_of(run, document) for run, document in measured}
    first = min(by_ranks)
    rows = [["ranks x vector", "algorithm", *(f"{N} ranks" for N in by_ranks),
             *(f"{N} to {first}" for N in by_ranks if N != first)],
            ["", "", *("ms" for _ in by_ranks), *("ratio" for N in by_ranks if N != first)]]
    for size in sorted({size for size, _ in by_ranks[first]}):
        for algorithm in SHARING:
            seconds = {N: figures[size * first // N, algorithm].seconds for N, figures in by_ranks.items()}
            rows.append([size_text(size * first), algorithm, *(f"{1e3 * value:.3f}" for value in seconds.values()),
                         *(f"{value / seconds[first]:.2f}" for N, value in seconds.items() if N != first)])
    return text_table(rows, left=2)


def collective_blocks(measured):
    """The tables by the name of their block in the page; `measured`: (Run, document) pairs."""
    return {"all-reduce": "\n".join(bandwidth_table(*pair) for pair in measured if not pair[0].total),
            "more ranks than cores": sharing_table([pair for pair in measured if pair[0].total])}


def csv_rows(measured, date, commit):
    """One row for each figure of the table of bandwidths."""
    for run, document in measured:
        for figure in () if run.total else figures_of(run, document).values():
            yield [date, commit, figure.ranks, figure.bytes, figure.algorithm, figure.heap, f"{figure.seconds:.4g}",
                   f"{figure.algorithm_gbps:.4g}", f"{figure.bus_gbps:.4g}", f"{figure.ratio:.4g}"]
