"""The measured rows that the planner is held against, and how it is started for them.

They are not part of the project: they lie in the folder RANKWISE_PLANNER, or in ../shared/planner beside the project.
"""

import json
import os
import pathlib
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
ROWS = pathlib.Path(os.environ.get("RANKWISE_PLANNER", ROOT.parent / "shared/planner"))
MACHINES = ROOT / "lessons/17_choose_a_layout/machines"

# Name, file, machine, options, and what the mean and the 90th percentile of the errors must not exceed, in percent.
SOURCES = [
    ("vTrain, one node", "vtrain_single_node.csv", "a100-40gb-sxm", ["--measured-with=none"], 8, 18),
    ("vTrain, 8 to 64 nodes", "vtrain_multi_node.csv", "a100-40gb-sxm", ["--measured-with=full"], 9, 18),
    ("BigScience", "seeds_bigscience.csv", "v100-32gb-sxm", ["--skip=BATCH_MISMATCH,cpu,offload"], 6, None),
    ("Narayanan et al. 2021", "megatron_sc21.csv", "a100-80gb-sxm", ["--only=SC21", "--rows=6"], 5, None),
    ("Korthikanti et al. 2022", "megatron_sc21.csv", "a100-80gb-sxm", ["--only=Korthikanti", "--rows=4"], 5, None),
]


def plan(program, machine, *options):
    """The report of a run of the planner.
    @throws RuntimeError  with what it printed, if it failed."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "report.json"
        command = [program, f"--machine={MACHINES / machine}.conf", "--system=megatron", f"--report={path}", *options]
        done = subprocess.run(command, text=True, capture_output=True, timeout=100, check=False)
        if done.returncode != 0:
            raise RuntimeError(done.stdout + done.stderr)
        return json.loads(path.read_text(encoding="utf-8"))


def errors(report, of):
    """Predicted over measured time, less 1, of the rows with this title."""
    return [row["predicted_s"] / row["measured_s"] - 1 for row in report["rows"] if row["of"] == of]
