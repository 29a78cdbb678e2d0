"""Runs lessons on GPUs, over MPI and over NCCL.

RANKWISE_GPU says whether GPUs are emulated (8 a machine, or as many as the variables EMULATED_CUDA_... say) or on, real.
With RANKWISE_ALL every layout is tried over both transports; else over one after the other in turn.
"""

import itertools
import os
import subprocess
import tempfile

from program_case import ALL, BUILD, TIME_LIMIT_S, ProgramCase

EMULATED = os.environ["RANKWISE_GPU"] == "emulated"
HALVES = ["--sequence-parallel"]  # of the parts' sums
SMALL = ["--layers=1", "--channels=16", "--heads=2", "--context=16"]
LESSONS = {"01": "lessons/01_single_device", "02": "lessons/02_collectives", "03": "lessons/03_ddp",
           "04": "lessons/04_zero1", "05": "lessons/05_zero2", "06": "lessons/06_zero3",
           "07": "lessons/07_offload", "08": "lessons/08_tensor_parallel",
           "09": "lessons/09_pipeline_parallel", "10": "lessons/10_3d_parallel",
           "11": "lessons/11_zero_bubble", "12": "lessons/12_bert", "13": "lessons/13_mesh_zero3",
           "14": "lessons/14_context_parallel", "15": "lessons/15_experts", "16": "lessons/16_five_axes"}


def number_of_gpus():
    if EMULATED:
        return 8
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout
    return len(listed.splitlines())


GPUS = number_of_gpus()
TURNS = itertools.cycle(["nccl", "mpi"])


class GpuCase(ProgramCase):
    @classmethod
    def setUpClass(cls):
        """A short text, since all of its validation split is validated."""
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        text = os.path.join(folder.name, "text.txt")
        with open(text, "w", encoding="ascii") as file:
            file.writelines(f"{i} times {i + 3} is {i * (i + 3)}\n" for i in range(100))
        data = os.path.join(folder.name, "text.h5")
        subprocess.run([os.path.join(BUILD, "data/prepare"), text, data], check=True, capture_output=True)
        cls.small = [*SMALL, f"--data={data}"]

    def options(self, *more):
        """Options of a small model, unless the given options replace them."""
        said = {option.split("=")[0] for option in more}
        return [o for o in (*self.small, "--steps=2", "--global-batch=4") if o.split("=")[0] not in said] + list(more)

    def report_of(self, lesson, *options, ranks=None, device="cuda"):
        """The report of a run. Ranks that wait for each other in vain are named before the test's time is over."""
        self.program = LESSONS[lesson]
        watched = [] if lesson in ("01", "02") else [f"--timeout={TIME_LIMIT_S / 2:.0f}"]
        return self.report(f"--device={device}", *watched, *options, ranks=ranks)

    def environment(self, **variables):
        """Sets variables of the environment until the test ends."""
        for name, value in variables.items():
            before = os.environ.get(name)
            os.environ[name] = str(value)
            self.addCleanup(os.environ.__setitem__ if before is not None else os.environ.pop,
                            *((name, before) if before is not None else (name,)))

    def off(self, what, tier):
        """Lesson 07's options that offload `what` to the host or to the disk."""
        return [f"--offload={what}", "--tier=" + (tier if tier == "host" else f"disk:{self.folder}")]

    def transports(self, ranks):
        """The transports to test with this number of ranks: both, or alternately one of them."""
        if ranks > GPUS:
            return ["mpi"]
        return ["mpi", "nccl"] if ALL else [next(TURNS)]
