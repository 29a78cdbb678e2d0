#!/usr/bin/env python3
"""First difference of the record of a wrong program from that of the right one: all wrong solutions of exercises and all broken
lessons (tests/mutants), each planted in a lesson that trains a small model for three steps in exact arithmetic; and whether the broken
function makes that tensor, or is the first to feed it.

    scripts/museum/locate_mutants.py run [01 03.2 ...]      plants all (or those whose names begin so), and writes tests/mutants/located.json
    scripts/museum/locate_mutants.py check [01 03.2 ...]    plants them, and fails if one is no longer located that the file has as located
    scripts/museum/locate_mutants.py judge                  judges what the file has once more, after a change of MADE_BY in this script
    scripts/museum/locate_mutants.py table                  prints the table of docs/records.md, for scripts/check/update_output.py

The right programs are built first, in build/planted: some minutes. A mutant takes some 5 seconds on an idle machine.

Exit status: 0; 1 if one is no longer located; 2 asked for something impossible.
"""

import collections
import json
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts/course"))

from exercise_tree import Refused, all_regions, read_tree, write_whole  # noqa: E402
from documents import run_script  # noqa: E402
from includes import lesson_files, reached  # noqa: E402
from museum import NO_PROGRESS, Bench, main  # noqa: E402
from mutants import all_entries, plant  # noqa: E402

LOCATED = ROOT / "tests/mutants/located.json"
ENDS = ("ends with an error", "stands still", "does not compile")
MODEL = ("--steps=3", "--channels=32", "--heads=4", "--context=32", "--global-batch=8", "--dropout=0.1")
TIME_LIMIT_S, PROGRESS_S = "120", 15  # of a run; without progress, until the watchdog ends it
# The runs that a mutant of a lesson is planted in: program, ranks, options. Together they use what the lesson has.
RUNS = {
    "01": [("01_single_device", 1, "--arithmetic=plain --micro-batch=2")],
    "02": [("03_ddp", 4, "--arithmetic=fast --collectives=ring"), ("03_ddp", 4, "--arithmetic=fast --collectives=tree"),
           ("15_experts", 4, "")],
    "03": [("03_ddp", 4, "--micro-batch=1 --bucket=20kB"), ("03_ddp", 3, "--strategy=per-tensor"),
           ("03_ddp", 4, "--strategy=bucketed --bucket=20kB")],
    "04": [("04_zero1", 4, "--micro-batch=1 --bucket=20kB"), ("04_zero1", 3, "")],
    "05": [("05_zero2", 4, "--micro-batch=1 --bucket=20kB"), ("05_zero2", 3, "")],
    "06": [("06_zero3", 4, ""), ("06_zero3", 3, "--unit=branch --prefetch=2 --persist=100 --micro-batch=1"),
           ("06_zero3", 2, "--unit=model --prefetch=0 --reshard=after-backward")],
    "07": [("07_offload", 2, "--micro-batch=2 --precision=bf16"), ("07_offload", 3, "--offload=optimizer --tier=disk:{work}"),
           ("07_offload", 2, "--offload=gradients --persist=100 --prefetch=2")],
    "08": [("08_tensor_parallel", 4, "--sequence-parallel"), ("08_tensor_parallel", 2, "--micro-batch=2"),
           ("08_tensor_parallel", 4, "--tp=2 --dp=2 --sequence-parallel --regather")],
    "09": [("09_pipeline_parallel", 2, "--micro-batch=2"), ("09_pipeline_parallel", 3, "--micro-batch=1 --schedule=gpipe"),
           ("09_pipeline_parallel", 2, "--micro-batch=2 --schedule=interleaved")],
    "10": [("10_3d_parallel", 4, "--tp=2 --pp=2 --micro-batch=2"), ("10_3d_parallel", 4, "--dp=2 --pp=2 --micro-batch=2"),
           ("10_3d_parallel", 4, "--dp=2 --tp=2 --sequence-parallel")],
    "11": [("11_zero_bubble", 2, "--micro-batch=1"), ("11_zero_bubble", 4, "--micro-batch=2")],
    "12": [("12_bert", 2, "--micro-batch=2"), ("12_bert", 4, "--zero=1 --bucket=20kB"), ("12_bert", 4, "--zero=0 --bucket=20kB --micro-batch=1")],
    "13": [("13_mesh_zero3", 4, "--tp=2"), ("13_mesh_zero3", 4, "--tp=1 --shard-ranks=2 --micro-batch=1"),
           ("13_mesh_zero3", 4, "--tp=2 --zero=2 --sequence-parallel")],
    "14": [("14_context_parallel", 2, "--micro-batch=1"), ("14_context_parallel", 4, "--attention=all-to-all"),
           ("14_context_parallel", 4, "--cp=2 --order=contiguous"), ("14_context_parallel", 4, "--arithmetic=fast")],
    "15": [("15_experts", 4, ""), ("15_experts", 2, "--experts-per-token=2 --capacity-factor=1"),
           ("15_experts", 4, "--ep=2 --experts-per-token=2 --micro-batch=1")],
    "16": [("16_five_axes", 4, "--dp=2 --ep=2 --cp=2 --tp=1 --pp=1 --capacity-factor=1"),
           ("16_five_axes", 4, "--dp=2 --ep=2 --tp=2 --cp=1 --pp=1 --experts-per-token=2 --capacity-factor=1"),
           ("16_five_axes", 4, "--cp=2 --pp=2 --dp=1 --tp=1 --micro-batch=1"),
           ("16_five_axes", 4, "--dp=2 --ep=2 --tp=1 --cp=1 --pp=2 --micro-batch=1")],
}
LAYERS = {"09": 4, "10": 4, "11": 4, "16": 4}  # others have 2
NOT_TRAINED = ("lessons/00_mpi/", "lessons/02_collectives/")  # programs without a model

# ---- What makes which tensor: results of the functions that tests/mutants breaks, the tensors in which a record can part first if one of
# them is wrong, by exercise, or by the name of a broken lesson. Each is a pattern of a sentence of compare_records, "step 0, forward:
# h.0.attn.heads". A wrong number is located if its sentence begins so: the function makes the tensor, or is the last before it that
# notes its result.

ROWS = r"step \d+, forward: "
SUMS = r"step \d+, gradients summed: "
NORM = r"step \d+, loss and norm: gradient norm"
LOSS = r"step \d+, loss and norm: loss"
UPDATE = r"step \d+, update: "
STREAM = r"step \d+, backward: gradient of "
OWN_SEQUENCES = r"step \d+, (forward: no rank computes|forward: embedding|backward: gradient of logits)"
NEXT_STEP = r"step [1-9]\d*, forward: "  # with parameters that the update before it has left
ANY = r"step \d+, "
SUMS_OF_EXPERTS = SUMS + r"summed gradient of h\.\d+\.mlp\.experts"
EXPERTS = r"step \d+, (forward: h\.\d+\.mlp\b|backward: gradient of h\.\d+\.ln_2|gradients summed: summed gradient of h\.\d+\.mlp)"

MADE_BY = {
    # Kernels of the backward pass and of the optimizer.
    "01.1": STREAM + r"(ln_f\.|h\.\d+\.(ln_\d\.|\w+\.stream)|embedding)",
    "01.2": STREAM + r"h\.\d+\.attn\.q_k_v",
    "01.3": UPDATE,
    # Collectives, where training uses them: sums of gradients, rows of experts.
    "02.1": SUMS, "02.2": SUMS,
    "02.8": ROWS + r"h\.\d+\.mlp\b", "02.9": ROWS + r"h\.\d+\.mlp\b",
    # Sums of gradients over ranks, and their buckets.
    "03.1": SUMS, "03.2": SUMS, "03.3": f"({SUMS}|{STREAM})", "03_no_wait": SUMS, "03_subtrees_one_by_one": SUMS,
    "04.1": f"({ROWS}|{SUMS}|{UPDATE})",
    "04.2": NORM,
    "04.3": f"({NORM}|{LOSS}|{UPDATE}|{NEXT_STEP})",
    "05.1": f"({SUMS}|{STREAM})", "05.2": f"({SUMS}|{OWN_SEQUENCES})", "05_ranks_from_the_last": SUMS,
    "05.3": f"({SUMS}|{STREAM})",
    # Parameters that are gathered: the layer that reads them first.
    "06.1": f"({ROWS}|{STREAM})", "06.2": f"({ROWS}|{STREAM})", "06.4": f"({ROWS}|{STREAM})",
    "06.3": f"({SUMS}|{NORM}|{UPDATE}|{ROWS})",
    "06_updates_forgotten": UPDATE,
    "07.1": f"({SUMS}|{UPDATE})", "07.3": UPDATE, "07_moments_swapped_on_read": UPDATE, "07_updated_in_the_first_pass": UPDATE,
    "07_sums_not_begun_anew": f"({SUMS}|{NORM})", "07_early_sums_without_the_tied": f"({SUMS}|{NORM})",
    "07_divided_by_own_tokens": f"({SUMS}|{NORM}|{STREAM})",
    "07_overtakes": f"({UPDATE}|{NEXT_STEP})",
    # Layers that are divided.
    "08.1": ROWS + r"h\.\d+\.",
    "08.2": ROWS + r"(embedding|h\.\d+\.)",
    "08.4": f"({LOSS}|{STREAM}logits)",
    "08_backward_sum_missing": STREAM + r"h\.\d+\.(ln_\d|\w+\.stream)",
    "08_bias_on_every_rank": ROWS + r"h\.\d+\.(attn|mlp)\b",
    "08_dropout_keyed_by_rank": ROWS + r"(embedding|h\.\d+\.\w+\.(stream|heads))",
    "08_rows_by_sequence": ROWS + r"(embedding|h\.\d+\.\w+\.(stream|heads))",
    "08_heads_keyed_by_place": ROWS + r"h\.\d+\.attn\.heads",
    "08_norm_counts_what_all_have": NORM,
    "08_row_gradients_not_begun_anew": SUMS, "08_row_gradients_not_summed": SUMS,
    # Pipelines: order of micro-batches, what is kept for them, rows between stages.
    "09.1": f"({SUMS}|{STREAM}|{ROWS})", "09.2": f"({STREAM}|{ROWS})", "09.3": ANY, "11.1": f"({SUMS}|{STREAM}|{ROWS})",
    "09_buffer_given_back_too_early": f"({ROWS}|{STREAM})", "09_buffer_not_waited_for": f"({ROWS}|{STREAM})",
    "09_copy_counts_in_the_norm": NORM, "11_copy_counts_in_the_norm": NORM,
    "09_gradients_of_stages_mixed": f"({SUMS}|{STREAM})",
    "09_tied_embedding_not_summed": SUMS, "09_tied_embedding_summed_twice": SUMS,
    "11_norm_gradients_not_zeroed": f"({STREAM}|{SUMS})", "11_weights_of_another_block": f"({STREAM}|{SUMS})",
    # Meshes: who computes what, who sums with whom.
    "10.1": ANY, "10.2": ANY, "10.3": NORM, "10_norm_counts_replicas": NORM,
    "10_divided_by_micro_batches": f"({STREAM}logits|{SUMS}|{NORM}|{LOSS})",
    "10_divided_by_tokens_of_a_replica": f"({STREAM}logits|{SUMS}|{NORM}|{LOSS})",
    "10_parameters_not_gathered": f"({UPDATE}|{NEXT_STEP})", "13_parameters_stay_old": f"({UPDATE}|{NEXT_STEP})",
    "10_parts_outermost": ANY, "10_replicas_are_neighbours": ANY,
    "10_replicas_with_the_same_sequences": OWN_SEQUENCES, "13.1": OWN_SEQUENCES,
    "10_tied_added_up_before_replicas": SUMS, "10_tied_after_the_update": f"({SUMS}|{NORM})",
    "13.2": NORM, "13_norm_counts_tensor_parallel_ranks_once": NORM,
    "13_replicas_not_summed": SUMS, "13_rows_not_summed": SUMS,
    # The two losses of BERT.
    "12.1": SUMS, "12.2": f"({LOSS}|{STREAM}|{SUMS}|{NORM})",
    "12_freed_too_early": f"({ROWS}|{STREAM})", "12_pooler_of_the_wrong_row": f"({LOSS}|{STREAM})",
    # Attention over sequences that are divided.
    "14.1": ROWS + r"h\.\d+\.attn\.heads", "14.2": f"({ROWS}|{STREAM})" + r"h\.\d+\.attn\.(heads|q_k_v)",
    "14_gradients_replace_those_before": STREAM + r"h\.\d+\.attn\.q_k_v",
    "14_queries_in_order_of_ranks": STREAM + r"h\.\d+\.attn\.q_k_v",
    "14_zigzag_is_contiguous": ROWS + r"(embedding|h\.\d+\.attn\.heads)",
    # Experts: of their insides nothing is noted between the input's norm and the MLP's output.
    "15.1": EXPERTS, "16.2": EXPERTS, "16.3": EXPERTS, "16.1": f"({SUMS}|{ROWS})",
    "15_experts_summed_over_all": SUMS_OF_EXPERTS, "15_sums_in_order_of_ranks": SUMS_OF_EXPERTS,
    "16_experts_not_summed": SUMS_OF_EXPERTS,
    "15_norm_of_own_experts": NORM, "16_norm_of_own_experts": NORM, "16_norm_of_own_shards_along_cp": NORM,
    "15_returned_by_the_wrong_counts": ROWS + r"h\.\d+\.mlp\b",
    "16_bias_of_each_part": ROWS + r"h\.\d+\.mlp\b",
    "16_input_gradients_of_one_part": STREAM + r"h\.\d+\.ln_2",
    "16_losses_of_own_tokens": LOSS,
    "16_pull_of_the_run": f"({LOSS}|{STREAM}" + r"h\.\d+\.ln_2|" + STREAM + r"h\.\d+\.mlp\.router)",
    "16_rows_of_the_first_run": f"({STREAM}|{SUMS})", "16_rows_of_the_other_run": f"({STREAM}|{SUMS}|{ROWS})",
}


# ---- Looking --------------------------------------------------------------------------------------------------------

def all_mutants(tree, only=()):
    """All wrong solutions and broken lessons, or those whose names begin so."""
    regions = all_regions(tree)
    return [plant(tree, regions, entry) for entry in all_entries(tree)
            if entry.kind != "RIGHT" and (not only or entry.name.startswith(tuple(only)))]


def made_by(name, broken, first):
    """True if the broken function makes the tensor that a sentence names, or if it is the first tensor made of its result."""
    return re.match(MADE_BY.get(name, MADE_BY.get(broken, "nothing")), first) is not None


def changed_sources(tree, changed, lesson):
    """The .cpp files to compile anew: those changed, and those of the lesson that include a changed header."""
    files = reached(lesson_files(tree, lesson), lambda path: tree[path].decode() if path in tree else None)
    of_lesson = [path for path in files if path.endswith(".cpp")]
    return {*(path for path in changed if path.endswith(".cpp")),
            *(path for path in of_lesson for header in changed if f'"{header}"'.encode() in tree[path])}


class Locator:
    """Plants mutants, and compares the records of their runs with those of the right programs."""

    def __init__(self, bench):
        self.bench, self.tree = bench, read_tree(ROOT)
        self.right = {}  # run -> record of the right program

    def compile(self, mutant):
        """The object files of what a mutant changes, by source."""
        output, objects = self.bench.work / mutant.name, {}
        for path, content in mutant.changed.items():
            (output / path).parent.mkdir(parents=True, exist_ok=True)
            (output / path).write_bytes(content)
        for path in changed_sources(self.tree, mutant.changed, mutant.broken[:2]):
            source = output / path if path in mutant.changed else ROOT / path
            objects[path] = (output / path).with_suffix(".o")
            if error := self.bench.compile(path, source, objects[path], "-Wno-error", headers=output):
                return None, error
        return objects, ""

    def run(self, program, lesson, run, record):
        """The exit status of a run that leaves its record."""
        record.unlink(missing_ok=True)
        _, ranks, options = run
        timeout = [f"--timeout={PROGRESS_S}"] if ranks > 1 else []
        arithmetic = [] if "--arithmetic" in options else ["--arithmetic=exact"]
        command = [ROOT / "tests/run.sh", TIME_LIMIT_S, "mpirun", "-np", ranks, program, *MODEL, f"--layers={LAYERS.get(lesson, 2)}",
                   f"--record={record}", *timeout, *arithmetic, *options.format(work=self.bench.work).split()]
        return subprocess.run([str(word) for word in command], cwd=ROOT, capture_output=True, check=False).returncode

    def right_record(self, lesson, run):
        if run not in self.right:
            record = self.bench.work / f"right{len(self.right)}.h5"
            status = self.run(self.bench.path(run[0]), lesson, run, record)
            if status != 0:
                raise RuntimeError(f"the right program ends with status {status}: {run}")
            self.right[run] = record
        return self.right[run]

    def first_difference(self, lesson, run, record):
        """The first difference that compare_records finds; empty if there is none."""
        done = subprocess.run([self.bench.folder / "data/compare_records", self.right_record(lesson, run), record],
                              capture_output=True, text=True, check=False)
        return "".join(re.findall("First difference: (.*)", done.stdout))

    def look_at(self, mutant):
        """Returns the outcome of a mutant, and removes what was built for it."""
        try:
            return self.outcome(mutant)
        finally:
            shutil.rmtree(self.bench.work / mutant.name, ignore_errors=True)

    def outcome(self, mutant):
        """The outcome of a mutant: a dictionary with "outcome", and with "run" and "first" where a number changes."""
        if all(path.startswith(NOT_TRAINED) for path in mutant.changed):
            return {"outcome": "no model is trained with it"}
        objects, error = self.compile(mutant)
        if error:
            return {"outcome": "does not compile"}
        found, record, programs = {"outcome": "no number changes"}, self.bench.work / "wrong.h5", {}
        for run in RUNS[mutant.broken[:2]]:
            if run[0] not in programs:
                programs[run[0]] = self.bench.link(run[0], objects, self.bench.work / mutant.name / run[0])
            status = self.run(programs[run[0]], mutant.broken[:2], run, record)
            first = self.first_difference(mutant.broken[:2], run, record) if record.exists() else ""
            if first:
                return {"outcome": "changes a number", "run": f"{run[0]} -np {run[1]} {run[2]}".strip(), "first": first,
                        "located": made_by(mutant.name, mutant.broken, first)}
            if status == NO_PROGRESS:
                return {"outcome": "stands still"}
            if not record.exists():
                found = {"outcome": "ends with an error"}
        return found


def read_located():
    return json.loads(LOCATED.read_text(encoding="utf-8")) if LOCATED.exists() else {}


def write_located(known):
    write_whole(LOCATED, json.dumps(dict(sorted(known.items())), indent=1) + "\n")


def look_at_all(command, names, build):
    """Looks at mutants, and writes what becomes of them, or compares it with what is known."""
    work, known, mutants, status = build / "located", read_located(), all_mutants(read_tree(ROOT), names), 0
    if not mutants:
        raise Refused(f"the name of no mutant begins with {' or '.join(names)}. scripts/museum/locate_mutants.py table shows the lessons")
    work.mkdir(parents=True, exist_ok=True)
    locator = Locator(Bench(build, work))
    for mutant in mutants:
        found, before = locator.look_at(mutant), known.get(mutant.name, {})
        if command == "run":
            known[mutant.name] = found
            write_located(known)
        lost = before.get("located", False) and not found.get("located", False)
        status |= lost
        print(f"{'FAIL' if lost else 'PASS'}  {mutant.name}: {found}", flush=True)
    return status


def judge():
    """Judges anew whether the sentences of the file name what the broken function makes."""
    known = read_located()
    for mutant in all_mutants(read_tree(ROOT)):
        found = known.get(mutant.name, {})
        if "first" in found:
            found["located"] = made_by(mutant.name, mutant.broken, found["first"])
    write_located(known)


def table():
    """A row for each lesson, and their sum in a sentence."""
    rows = collections.defaultdict(collections.Counter)
    for name, found in read_located().items():
        of = rows[name[:2]]
        of["all"] += 1
        of[found["outcome"]] += 1
        of["ends"] += found["outcome"] in ENDS
        of["located"] += found.get("located", False)
    columns = ("all", "no model is trained with it", "ends", "no number changes", "changes a number", "located")
    print("\n| lesson | mutants | no model is trained with them | end with an error | no number changes | a number changes | located |\n"
          + "|---:|" + "---:|" * len(columns))
    for lesson, of in sorted(rows.items()):
        print(f"| {lesson} | " + " | ".join(str(of[name]) for name in columns) + " |")
    total = sum(rows.values(), collections.Counter())
    print("| all | " + " | ".join(str(total[name]) for name in columns) + " |")
    share = 100 * total["located"] / max(total["changes a number"], 1)
    print(f"\nOf {total['changes a number']} that change a number, {total['located']} are located, {share:.1f} %.\n")


if __name__ == "__main__":
    run_script(lambda words: main(words, __doc__, "beginnings of names, as 01 or 03.2", look_at_all, {"judge": judge, "table": table}))
