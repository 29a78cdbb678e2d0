#!/usr/bin/env python3
"""Tries every mesh of N ranks on the virtual clock, and says which is the fastest.

    scripts/bench/try_meshes.py --ranks=8 --link=5us,20GB/s,20us,1GB/s,4 [--lesson=16] [OPTION OF THE LESSON]...

The lesson (10, or 16 with five axes) runs for two steps on each mesh that the model allows; the second one counts. Beside what
the clock shows stand the forecast of --dry-run and the memory of the rank that needs most. Nothing depends on how fast this
machine is.
"""

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "scripts/lib"))
from documents import Refused, option_parser, run_script  # noqa: E402
from with_mpi import report_of  # noqa: E402


LESSONS = {"10": ("10_3d_parallel", ("dp", "tp", "pp")), "16": ("16_five_axes", ("dp", "tp", "pp", "cp", "ep"))}  # and their axes
BETWEEN_PARTS = ("--sequence-parallel", "--regather")  # what one part alone cannot do


def degrees(mesh, form="{}={}"):
    """Degrees of a mesh along all axes of its lesson."""
    return [form.format(axis, mesh[axis]) for axis in LESSONS["16"][1] if axis in mesh]


def measured(program, ranks, mesh, options):
    """Seconds of a step on the virtual clock."""
    options = [option for option in options if mesh["tp"] > 1 or option not in BETWEEN_PARTS]
    return report_of(program, ranks, options, *degrees(mesh, "--{}={}"), "--steps=2")["virtual"][-1]["step_ps"] * 1e-12


def name(mesh):
    return " ".join(degrees(mesh))


def main(arguments):
    parser = option_parser(__file__, "Tries every mesh of N ranks on the virtual clock. All other options go to the lesson.")
    parser.add_argument("--lesson", choices=LESSONS, default="10", help="whose meshes (default: 10)")
    parser.add_argument("--ranks", type=int, default=8, help="N (default: 8)")
    parser.add_argument("--link", required=True, help="of the virtual clock, as 5us,10GB/s")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build", help="the folder of the build (default: build)")
    known, options = parser.parse_known_args(arguments)
    options.append(f"--link={known.link}")
    lesson, axes = LESSONS[known.lesson]
    program = known.build / "lessons" / lesson
    if known.ranks < 1:  # mpirun -np 0 would start one for each core
        raise Refused(f"--ranks={known.ranks} is not a number of ranks.\n       Use a whole number, 1 or more: --ranks=4")
    if fixed := [option for option in options if option.split("=")[0][2:] in (*axes, "steps")]:
        raise Refused(f"{fixed[0]} cannot be given: all meshes are tried, for two steps each.\n       Leave it out.")
    meshes = report_of(program, known.ranks, options, "--dry-run")["meshes"]
    wide = max(len(name(mesh)) for mesh in meshes) + 1
    print(f"{'mesh':{wide}}  {'clock':>10}  {'forecast':>10}  {'memory':>12}\n{'':{wide}}  {'ms':>10}  {'ms':>10}  {'bytes':>12}")
    for mesh in meshes:
        mesh["clock_s"] = measured(program, known.ranks, mesh, options)
        print(f"{name(mesh):{wide}}  {1e3 * mesh['clock_s']:10.3f}  {1e3 * mesh['step_s']:10.3f}  {mesh['bytes']:12,}", flush=True)
    by_clock, by_forecast = (name(min(meshes, key=lambda mesh, key=key: mesh[key])) for key in ("clock_s", "step_s"))
    print(f"fastest: {by_clock}; by the forecast: {by_forecast}")


if __name__ == "__main__":
    run_script(main)
