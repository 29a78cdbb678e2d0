#!/usr/bin/env python3
"""Measures this machine, and writes a machine file for lesson 17: each processor core plays a GPU of one node.

    scripts/planner/measure_machine.py FILE [--name=NAME] [--build=build]
    build/lessons/17_choose_a_layout --machine=FILE --precision=f32 --model=nano --gpus=CORES

All cores work at once, as they do in a training step: matrix products in lesson 03, messages in lesson 02, copies of memory in
processes of their own. The disk is the one that FILE is on. It takes some seconds; other programs that run meanwhile make the
numbers worse. What is not measured is taken from machines/a100-80gb-sxm.conf of lesson 17 and marked so, to be fitted with
--calibrate. An older FILE is replaced.
"""

import datetime
import json
import multiprocessing
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "scripts/lib"))
import host_memory  # noqa: E402
from documents import Refused, option_parser, refusing, run_script  # noqa: E402
from whole_file import write_whole  # noqa: E402
from with_mpi import with_mpi  # noqa: E402

TEMPLATE = ROOT / "lessons/17_choose_a_layout/machines/a100-80gb-sxm.conf"
PRODUCTS, MESSAGES = "lessons/03_ddp", "lessons/02_collectives"
COPIED, LEAST_COPIED, COPIES = 512 << 20, 64 << 20, 5  # bytes that all cores copy at once; of one core at least; how often
WRITTEN, BLOCK = 256 << 20, 8 << 20                    # bytes of the file that is written, and of one call
SMALL, LARGE = 1 << 10, 4 << 20                        # elements of all-reduces: as good as none, and 16 MiB
PATIENCE_S = 120                                       # until copies must have ended
# What lesson 17 accepts. Written without a prefix, the bounds are read as exactly these numbers.
BOUNDS = {"node-rate": (1e9, 1e12), "meeting": (1e-6, 600e-6)}
PREFIXES = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""), (1e-3, "m"), (1e-6, "u"), (1e-9, "n")]


def quantity(value, unit):
    """A value with its unit, as machine files have it."""
    size, prefix = next((pair for pair in PREFIXES if value >= pair[0]), PREFIXES[-1])
    return f"{value / size:.4g} {prefix}{unit}"


# ---- Measurements ----------------------------------------------------------------------------------------------------

def core_count():
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def report(build, ranks, program, *options):
    """The report of one run of a lesson."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "report.json"
        command = ["mpirun", "-np", str(ranks), str(build / program), *options]
        done = subprocess.run(with_mpi(*command, f"--report={path}"), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            lines = done.stderr.split("\n---")[0].strip().splitlines() or ["it said nothing"]  # what mpirun adds comes after a ruler
            why = next((line[len("error: "):] for line in lines if line.startswith("error: ")), lines[-1])
            raise Refused(f"{program} on {ranks} ranks ended with status {done.returncode}: {why}\n"
                          f"       Try it: {shlex.join(command)}")
        return json.loads(path.read_text(encoding="utf-8"))


def product_rate(build, cores, precision):
    """Operations per second of the fastest matrix product on one core."""
    run = report(build, cores, PRODUCTS, "--steps=1", f"--global-batch={cores}", "--threads=1", "--peak=measured",
                 f"--precision={precision}")
    return run["utilisation"]["peak_flops_per_s"] / cores


def all_reduce(build, ranks, count):
    """The report of an all-reduce, by the algorithm that the lessons take."""
    return report(build, ranks, MESSAGES, "--collective=all-reduce", "--collectives=auto", f"--count={count}", "--repeats=51")


def begin_together(barrier):
    """Gives a process what it needs to begin when the others do."""
    copy_rate.barrier = barrier


def copy_rate(size):
    """Bytes that this process reads and writes per second while all of them copy."""
    source, target = memoryview(bytearray(os.urandom(1 << 20) * (size >> 20))), memoryview(bytearray(size))
    target[:] = source
    copy_rate.barrier.wait(PATIENCE_S)
    begin = time.perf_counter()
    for _ in range(COPIES):
        target[:] = source
    return 2 * size * COPIES / (time.perf_counter() - begin)


def memory_rate(cores):
    """Bytes that a core reads and writes per second while all of them copy."""
    size = max(COPIED // cores >> 20 << 20, LEAST_COPIED)
    with multiprocessing.Pool(cores, begin_together, [multiprocessing.Barrier(cores)]) as pool:
        try:
            rates = pool.map_async(copy_rate, [size] * cores, chunksize=1).get(PATIENCE_S)
        except (MemoryError, multiprocessing.TimeoutError, RuntimeError) as error:
            raise Refused(f"{cores} processes cannot copy {quantity(size, 'B')} each ({type(error).__name__}).\n"
                          "       End what else runs here, and start again.") from error
    return sum(rates) / cores


def write_rate(folder):
    """Bytes per second of a file that is written and has arrived on the disk."""
    block = os.urandom(BLOCK)
    with tempfile.NamedTemporaryFile(dir=folder, prefix="measure_machine.") as file:
        begin = time.perf_counter()
        for _ in range(WRITTEN // BLOCK):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        return WRITTEN / (time.perf_counter() - begin)


# ---- The machine file ------------------------------------------------------------------------------------------------

def within(name, value, unit, what):
    """A constant that was measured, or the nearest that lesson 17 accepts: value and comment."""
    least, most = BOUNDS[name]
    if least <= value <= most:
        return quantity(value, unit), what
    nearest = min(max(value, least), most)
    return f"{nearest:g} {unit}", f"the {'least' if value < least else 'most'} that lesson 17 accepts; measured: {quantity(value, unit)}"


def measured(build, folder, cores):
    """Values of the machine file with their comments."""
    ranks = max(cores, 2)
    small, large = (all_reduce(build, ranks, count) for count in (SMALL, LARGE))
    fit, meetings = large["fit"], (ranks - 1).bit_length()
    each, owner, shared = min((most // cores if shared else most, owner, shared)
                              for most, owner, shared in host_memory.limits(used=False))
    copies = memory_rate(cores)
    return {
        "memory": (quantity(each, "B"), f"{quantity(each * cores, 'B')} of {owner}, divided among the cores" if shared
                   else f"{owner} of each process"),
        "half": (quantity(product_rate(build, cores, "bf16"), "FLOP/s"), "the fastest bf16 matrix product"),
        "single": (quantity(product_rate(build, cores, "f32"), "FLOP/s"), "the fastest f32 matrix product"),
        "memory-rate": (quantity(copies, "B/s"), "of a copy, bytes read and written"),
        "network": (quantity(cores / fit["beta_s_per_byte"], "B/s"), "messages between processes of this machine, all cores at once"),
        "network-latency": (quantity(fit["alpha_s"], "s"), "of such a message"),
        "host-memory": (quantity(each * cores, "B"), "the same memory as above"),
        "host-memory-rate": (quantity(copies * cores, "B/s"), "copies on all cores"),
        "host-rate": (quantity(copies / 2, "B/s"), "a copy on one of them"),
        "disk-rate": (quantity(write_rate(folder), "B/s"), f"a file of {quantity(WRITTEN, 'B')}, until it is on the disk"),
        "node-rate": within("node-rate", large["collectives"][0]["bus_GBps"] * 1e9, "B/s",
                            f"an all-reduce of {quantity(4 * LARGE, 'B')} on {ranks} ranks"),
        "meeting": within("meeting", small["collectives"][0]["time_s"] / meetings, "s",
                          f"an all-reduce of {quantity(4 * SMALL, 'B')} on {ranks} ranks, divided by {meetings}"),
        "product-share": ("0.95", "the most that lesson 17 accepts: the peak is measured"),
        "memory-share": ("1", "of a rate that is measured"),
        "network-share": ("1", "of a rate that is measured"),
        "host": ("1e-05 s", "the least that lesson 17 accepts: no kernel is started on another device"),
        "gather-share": ("0.8", "the most that lesson 17 accepts: messages do not leave the machine"),
        "gather": ("0.0001 s", "the least that lesson 17 accepts: messages do not leave the machine"),
    }


def values_of(path):
    """Names and values of a machine file, in its order."""
    lines = [line.split("#")[0].partition("=") for line in path.read_text(encoding="utf-8").splitlines()]
    return {name.strip(): value.strip() for name, equals, value in lines if equals}


def text_of(name, cores, found):
    """The machine file."""
    values = {"name": (name, ""), "device": ("cpu", ""), "gpus-per-node": (str(cores), "processor cores"), **found}
    rows = [(f"{key} = {values[key][0]}", values[key][1]) if key in values else (f"{key} = {value}", f"not measured: of {TEMPLATE.name}")
            for key, value in values_of(TEMPLATE).items()]
    wide = max(len(row) for row, _ in rows)
    return "\n".join([f"# This machine: each of its {cores} processor cores plays a GPU. Written by scripts/planner/measure_machine.py on "
                      f"{datetime.date.today()}.", *(f"{row:<{wide}}  # {why}" if why else row for row, why in rows)]) + "\n"


def check(build, path, name):
    """Refuses what cannot be measured, before anything is."""
    if not name.strip() or set(name) & set("#\n"):
        raise Refused(f"--name={name!r} cannot stand in a machine file.\n       Use a name without # and line ends.")
    if path.is_dir() or not path.parent.is_dir():
        raise Refused(f"{path} cannot be written: {'it' if path.is_dir() else path.parent} is "
                      f"{'a folder' if path.is_dir() else 'no folder'}.\n       Name a file in a folder that is there.")
    for program in (PRODUCTS, MESSAGES):
        if not (build / program).is_file():
            raise Refused(f"{build / program} is not there, with which this machine is measured.\n"
                          "       Build it with scripts/build.sh release, or name the folder of the build with --build.")


def main(arguments):
    parser = option_parser(__file__, "Measures this machine, and writes a machine file for lesson 17.")
    parser.add_argument("file", type=pathlib.Path, metavar="FILE", help="the machine file, as this-machine.conf")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build", help="the folder of the build (default: build)")
    parser.add_argument("--name", default="processor core", help="what the machine file calls a core (default: processor core)")
    options = parser.parse_args(arguments)
    cores = core_count()
    with refusing("this machine cannot be measured", "Name a file in a folder that you can write to, on a disk with 300 MB free."):
        check(options.build, options.file, options.name)
        text = text_of(options.name, cores, measured(options.build, options.file.absolute().parent, cores))
        write_whole(options.file, text)
    print(text, end="")


if __name__ == "__main__":
    run_script(main)
