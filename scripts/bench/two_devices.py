#!/usr/bin/env python3
"""A published table of sharded training on one and two devices, and the same from this project beside it.

    scripts/bench/two_devices.py [--steps=4] [--flops=6.7TFLOP/s] [--link=10us,10GB/s] [OPTION OF LESSON 06]...

Trains the model of 27 million parameters with lesson 06 on one rank and on two: on this machine, one thread a rank, and on a
virtual clock with the speed of the published devices. Memory is what the ledger counts on the rank that needs most.
"""

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "scripts/lib"))
from documents import Refused, option_parser, run_script  # noqa: E402
from with_mpi import report_of  # noqa: E402

EPOCH = 1000  # sequences; the speed-up does not depend on it
# A custom FSDP over MPI, 27.32 M parameters, two RTX 2080 Ti: 55.7 and 31.2 s for 10 epochs, 44 % less memory a device.
PUBLISHED = {"seconds": (5.57, 3.12), "less": 0.44}


def bytes_of(run):
    """Bytes of the rank that needs most, at its peak."""
    return sum(category["peak"] for category in run["memory"].values())


def row(name, seconds, memory=None, less=None):
    """A line of the table; of a published memory only the ratio is known."""
    one, two = seconds
    if memory:
        less = 1 - memory[1] / memory[0]
    columns = "".join(f"  {bytes / 1e6:9.1f}" for bytes in memory) if memory else f"  {'-':>9}  {'-':>9}"
    return f"{name:14}  {one:9.2f}  {two:9.2f}  {one / two:8.3f}  {one / two / 2:10.3f}{columns}  {100 * less:4.0f} %"


def main(arguments):
    parser = option_parser(__file__, "One and two devices, beside a published table. All other options go to lesson 06.")
    parser.add_argument("--steps", type=int, default=4, help="steps of each run; the first is not counted (default: 4)")
    parser.add_argument("--flops", default="6.7TFLOP/s", help="of a rank on the virtual clock (default: half of a 2080 Ti's f32 peak)")
    parser.add_argument("--link", default="10us,10GB/s", help="between them (default: PCI Express 3, 16 lanes)")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build", help="the folder of the build (default: build)")
    known, options = parser.parse_known_args(arguments)
    if known.steps < 2:
        raise Refused(f"--steps={known.steps} is too small: the first step is not counted.\n       Use 2 or more.")
    model = f"--config={ROOT}/lessons/06_zero3/27m.conf"
    wall, virtual = ([report_of(known.build / "lessons/06_zero3", ranks, options, model, *own) for ranks in (1, 2)]
                     for own in ([f"--steps={known.steps}"], ["--steps=2", f"--link={known.link}", f"--flops={known.flops}"]))
    steps = EPOCH / wall[0]["options"]["global-batch"]
    memory = [bytes_of(run) for run in wall]
    print(f"{'':14}  {f'{EPOCH:,} sequences, s':>20}  {'speed-up':>8}  {'efficiency':>10}  {'memory a device, MB':>20}  {'less':>6}")
    print(f"{'devices':14}  {1:9}  {2:9}  {'':8}  {'':10}  {1:9}  {2:9}")
    print(row("published", PUBLISHED["seconds"], less=PUBLISHED["less"]))
    print(row("this machine", [run["time"]["step_s"] * steps for run in wall], memory))
    print(row("virtual clock", [run["virtual"][-1]["step_ps"] * 1e-12 * steps for run in virtual], memory))


if __name__ == "__main__":
    run_script(main)
