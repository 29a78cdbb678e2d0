"""The most that a rank's process has resident is what its ledger counts, and a constant for what no lesson allocates."""

import json
import os
import re
import shutil
import subprocess
import sys
import unittest

from program_case import ALL, BUILD, ShortTextCase, run_to_its_end

SCRIPTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../scripts")
sys.path.insert(0, os.path.join(SCRIPTS, "pytorch"))
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
    """Bytes in the ledgers of the largest rank, the host's blocks of lesson 07 among them."""
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


class Limits(ShortTextCase):
    """The limit on the memory of a process is found before the run takes it."""

    def refused(self, *command):
        done = run_to_its_end([*command, os.path.join(BUILD, "lessons/03_ddp"), self.data, "--model=gpt2-xl", "--vocabulary=256"])
        return self.assert_is_refusal(done, ["this run needs ", "optimizer"]).stderr

    def test_ulimit(self):
        for letter in "vd":
            limited = ["bash", "-c", f'ulimit -{letter} 3000000 && exec "$@"', "bash"]
            if subprocess.run([*limited, os.path.join(BUILD, "lessons/03_ddp"), "--help"], capture_output=True, check=False).returncode != 0:
                self.skipTest("libraries, as of a sanitizer, take more than that")
            left = self.refused(*limited)
            found = re.search(rf"; ulimit -{letter} leaves ([\d,]+) bytes to one rank\.", left)
            self.assertGreater(int(found[1].replace(",", "")), 0, left)
            self.assertLess(int(found[1].replace(",", "")), 3000000 << 10, left)
            limited[2] = limited[2].replace("3000000", "1500000")
            done = run_to_its_end([*limited, os.path.join(BUILD, "lessons/00_mpi"), "--show=sum", "--count=67108864"])
            self.assert_is_refusal(done, ["this run needs 1,610,612,736 bytes a rank", f"ulimit -{letter}", "Use a smaller --count"])

    @unittest.skipUnless(os.path.exists("/proc/self/cgroup") and shutil.which("unshare"), "there are no control groups here")
    def test_a_control_group_of_each_version(self):
        as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        with open("/proc/self/cgroup", encoding="ascii") as file:
            versions = {1 if "memory" in line.split(":")[1].split(",") else 2 if "::" in line else 0 for line in file} - {0}
        self.assertTrue(versions)
        for version in versions:
            with self.subTest(version=version):
                root = os.path.join(self.folder, str(version))
                group = os.path.join(root, "memory") if version == 1 else root
                os.makedirs(group)
                names = ("limit_in_bytes", "usage_in_bytes", "total_") if version == 1 else ("max", "current", "")
                for name, content in ((names[0], "800000000"), (names[1], "300000000"),
                                      ("stat", f"{names[2]}inactive_file 60000000\n{names[2]}active_file 40000000")):
                    with open(os.path.join(group, f"memory.{name}"), "w", encoding="ascii") as file:
                        file.write(content + "\n")
                inside = ["unshare", *as_root, "--mount", "sh", "-c", f'mount --bind {root} /sys/fs/cgroup && exec "$@"', "sh"]
                if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode != 0:
                    self.skipTest("namespaces are not to be had")
                seen = os.path.join("/sys/fs/cgroup", os.path.relpath(group, root)).removesuffix("/.")
                self.assertIn(f"; the control group {seen} leaves 262,500,000 bytes to each of 2 ranks.",
                              self.refused(*inside, "mpirun", "-np", "2"))
                script = os.path.join(SCRIPTS, "lib/host_memory.py")
                self.assertEqual(subprocess.check_output([*inside, sys.executable, script], text=True),
                                 f"{600_000_000 >> 20} the control group {seen}\n")


if __name__ == "__main__":
    unittest.main()
