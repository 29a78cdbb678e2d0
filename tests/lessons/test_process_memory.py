"""The most that a rank's process has resident is what its ledger counts, and a constant for what no lesson allocates."""

import json
import os
import sys
import unittest

from program_case import ALL, BUILD, ShortTextCase, run_to_its_end

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../scripts"))
from compare_with_pytorch import RESIDENT  # noqa: E402

SIZES = ("--steps=1", "--layers=8", "--channels=384", "--heads=4", "--context=128", "--vocabulary=8192", "--global-batch=4",
         "--micro-batch=1")
LESSONS = ("01_single_device", "03_ddp", "04_zero1", "05_zero2", "06_zero3", "07_offload", "08_tensor_parallel", "09_pipeline_parallel",
           "10_3d_parallel", "11_zero_bubble", "12_bert", "13_mesh_zero3", "14_context_parallel", "15_experts", "16_five_axes")
RANKS = {"01_single_device": 1, "10_3d_parallel": 4, "13_mesh_zero3": 4}  # of the others: 2
CHOSEN = ("01_single_device", "03_ddp", "07_offload")
WITHIN = 1.05
PROCESS_BYTES = 40 << 20  # beside what a dry run has, the program, its libraries and MPI: MPI's buffers, tokens, HDF5
# Buffers of 2 MiB and more end on a large page. These lessons have one for the shard of each bucket: of the sums, the moments.
ROUNDED_BYTES = dict.fromkeys(("04_zero1", "05_zero2", "06_zero3", "12_bert"), 48 << 20)


def counted(report):
    """What the ledgers of the largest rank count, the host's blocks of lesson 07 among it."""
    of_rank = max(sum(category["peak"] for device in rank.values() for category in device.values())
                  for rank in report["memory_ranks"])
    return of_rank + report.get("tiers", {"host": {"peak": 0}})["host"]["peak"]


class ProcessMemory(ShortTextCase):
    def resident(self, lesson, option):
        """The most bytes that a rank had resident."""
        most = os.path.join(self.folder, f"{lesson}{option.split('=')[0]}.txt")
        program = os.path.join(BUILD, "lessons", lesson)
        done = run_to_its_end(["mpirun", "-np", str(RANKS.get(lesson, 2)), sys.executable, "-c", RESIDENT, most, program, self.data,
                               *SIZES, option])
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        with open(most, encoding="ascii") as file:
            return 1024 * max(int(line) for line in file)

    def test_it_is_what_the_ledger_counts(self):
        constant = self.resident("03_ddp", "--dry-run") + PROCESS_BYTES  # CUDA's libraries alone have 200 MB, even unused
        for lesson in LESSONS if ALL else CHOSEN:
            with self.subTest(lesson=lesson):
                report = os.path.join(self.folder, f"{lesson}.json")
                resident = self.resident(lesson, f"--report={report}")
                with open(report, encoding="utf-8") as file:
                    of_ledger = counted(json.load(file))
                self.assertLess(resident, WITHIN * of_ledger + constant + ROUNDED_BYTES.get(lesson, 0))


if __name__ == "__main__":
    unittest.main()
