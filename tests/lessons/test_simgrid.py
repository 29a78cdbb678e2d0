"""A second witness for the time of a step: SimGrid replays what a dry run has written down, within 2 % of the virtual clock.

Skipped where SimGrid is not installed (libsimgrid-dev and simgrid in Debian).
"""

import json
import os
import sys
import unittest

import simgrid
from program_case import ProgramCase

FAR, NEAR = (5e-6, 1e9, "100GFLOP/s"), (1e-6, 10e9, "1TFLOP/s")
LESSONS = [("03_ddp", []), ("03_ddp", ["--bucket=50kB"]), ("06_zero3", []), ("06_zero3", ["--prefetch=0"]),
           ("08_tensor_parallel", ["--heads=16"]), ("08_tensor_parallel", ["--heads=16", "--sequence-parallel"]),
           ("09_pipeline_parallel", ["--layers=16"]), ("10_3d_parallel", ["--layers=8"])]


class SimGrid(ProgramCase):
    def script_of(self, lesson, ranks, link, *options):
        """Script of a dry run, and its time of a step."""
        latency_s, bandwidth, flops = link
        self.program = "lessons/" + lesson
        path = os.path.join(self.folder, "script.jsonl")
        report = self.report("--dry-run", f"--ranks={ranks}", f"--link={latency_s * 1e6:g}us,{bandwidth / 1e9:g}GB/s",
                             f"--flops={flops}", f"--script={path}", *options)
        return path, max(step["step_ps"] for step in report["rehearsed"]) * 1e-12

    def check(self, lesson, ranks, link, *options, within=0.02):
        with self.subTest(lesson=lesson, ranks=ranks, options=options):
            script, expected = self.script_of(lesson, ranks, link, *options)
            self.assertAlmostEqual(simgrid.step_seconds(script, *link[:2]) / expected, 1, delta=within)

    def written(self, *by_rank):
        """A script of these lines of each rank's computation, in a step."""
        path = os.path.join(self.folder, "script.jsonl")
        with open(path, "w", encoding="utf-8") as file:
            for rank, lines in enumerate(by_rank):
                for line in [{"do": "step"}, *lines, {"do": "step"}]:
                    file.write(json.dumps(line | {"rank": rank, "lane": "compute"}) + "\n")
        return path

    def test_one_message(self):
        def ends(**peer):
            return [{"do": "start", "number": 0, "messages": [peer | {"bytes": 1000000, "group": "world"}]},
                    {"do": "finish", "number": 0}]
        script = self.written([{"do": "compute", "ps": 3 * 10**9}, *ends(to=1)], ends(**{"from": 0}))
        self.assertAlmostEqual(simgrid.end_of(script, 5e-6, 1e9, 1), 3e-3 + 5e-6 + 1e-3, delta=2e-6)

    def test_one_ring(self):
        # One bucket, so one all-reduce of all gradients by ring, exposed.
        for ranks in (2, 5):
            self.check("03_ddp", ranks, FAR, "--bucket=1GB", f"--global-batch={ranks}", within=0.01)

    def test_one_pipeline(self):
        self.check("09_pipeline_parallel", 4, FAR, within=0.01)

    def test_whole_steps(self):
        for lesson, options in LESSONS:
            for ranks in (2, 4, 8, 16):
                for link in (FAR, NEAR):
                    self.check(lesson, ranks, link, *options)

    def test_many_ranks(self):
        self.check("03_ddp", 64, FAR, "--global-batch=64")
        self.check("06_zero3", 64, FAR, "--global-batch=64")
        self.check("08_tensor_parallel", 32, FAR, "--heads=32", "--channels=128")
        self.check("09_pipeline_parallel", 256, FAR, "--layers=256", "--global-batch=256", "--micro-batch=1")
        self.check("10_3d_parallel", 128, FAR, "--layers=8", "--dp=32", "--tp=2", "--pp=2", "--global-batch=128")

    def test_two_lanes_share_a_link_there(self):
        # On the virtual clock the queue and the computation have a link each; SimGrid's hosts have one for both. Only lesson
        # 13 sends on both at once, along its two axes.
        script, expected = self.script_of("13_mesh_zero3", 8, NEAR, "--tp=2")
        self.assertGreater(simgrid.step_seconds(script, *NEAR[:2]) / expected, 1.05)


if __name__ == "__main__":
    if not simgrid.installed():
        print("SimGrid is not installed: apt-get install libsimgrid-dev simgrid")
        sys.exit(77)
    unittest.main()
