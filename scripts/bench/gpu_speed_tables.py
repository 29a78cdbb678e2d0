"""From what build-gpu/tests/gpu_speed measured to figures, and from figures to tables. Nothing here measures."""

import statistics

from bench_tables import against, below, by_time, roofline_table, text_table

FLOPS_FLOOR, FLOPS_GOAL = 0.40, 0.55          # model FLOP/s of a step, over the matrix product's
LLMC_GOAL = 1.1                               # tokens a second here, over llm.c's
ATTENTION_FLOOR, ATTENTION_GOAL = 0.30, 0.50  # attention forwards, over PyTorch's flash attention
KERNEL_FLOOR = 0.80                           # bytes a second of a kernel that memory bounds, over copying
MEMORY_CEILING = 1.05                         # bytes in use, over those that the ledger counts
NO_TORCH = "PyTorch is not here"


def median(rounds, figure):
    """The median of a figure over the rounds; `figure` is a function of one of them."""
    return statistics.median(figure(turn) for turn in rounds)


def product_name(document):
    """Under which name the rate of the step's own matrix products is kept."""
    return document["precision"]


def flops_ratio(document):
    """Model FLOP/s of the step over those of the matrix product, the median of the rounds' own ratios."""
    training = document["training"]
    model, name = training["flops"]["model"], product_name(document)
    return median(training["rounds"], lambda turn: model / turn["step_s"] / turn["matmul_flops"][name])


def rates(document):
    """FLOP/s of the step's matrix product and bytes a second of copying: the two roofs."""
    rounds, name = document["training"]["rounds"], product_name(document)
    return (median(rounds, lambda turn: turn["matmul_flops"][name]),
            median(rounds, lambda turn: turn["copy_bytes_per_s"]))


def yardstick_rows(document):
    """Best rates of the GPU."""
    rounds, size = document["training"]["rounds"], document["gemm_size"]
    rows = []
    for name in sorted(rounds[0]["matmul_flops"]):
        rate = median(rounds, lambda turn, name=name: turn["matmul_flops"][name])
        rows.append([f"matrix product {size}, {name}", f"{1e-12 * rate:.1f}", "TFLOP/s", "", "", ""])
    rows.append([f"copy, {document['copy_bytes']:,} bytes", f"{1e-9 * rates(document)[1]:.1f}", "GB/s", "", "", ""])
    return rows


def step_rows(document):
    """The step with the largest micro-batch."""
    training, precision = document["training"], document["precision"]
    step_s = median(training["rounds"], lambda turn: turn["step_s"])
    tokens, ratio = training["micro_batch"] * document["sequence"], flops_ratio(document)
    return [[f"step, {precision}, B={training['micro_batch']} T={document['sequence']}", f"{1e3 * step_s:.1f}", "ms",
             "", "", ""],
            ["", f"{tokens / step_s:,.0f}", "tokens/s", "", "", ""],
            ["  over matrix product", f"{1e-12 * training['flops']['model'] / step_s:.1f}", "TFLOP/s", f"{ratio:.3f}",
             against(FLOPS_FLOOR, ratio), against(FLOPS_GOAL, ratio)],
            ["  without what is masked", f"{1e-12 * training['flops']['causal'] / step_s:.1f}", "TFLOP/s", "", "", ""]]


def peer_step_rows(document):
    """Steps of PyTorch and llm.c beside this one. A ratio is how many times as many tokens a second are trained here."""
    training, torch = document["training"], document.get("torch", {}).get("step")
    own = training["micro_batch"] * document["sequence"] / median(training["rounds"], lambda turn: turn["step_s"])
    rows = []
    for name, theirs, goal in ((f"{torch['name']}, compiled" if torch else "", torch, None),
                               ("llm.c", document.get("llmc"), LLMC_GOAL)):
        if theirs:
            rate = theirs["micro_batch"] * document["sequence"] / statistics.median(theirs["rounds"])
            rows.append([f"step of {name}, B={theirs['micro_batch']}", f"{rate:,.0f}", "tokens/s", f"{own / rate:.3f}", "",
                         against(goal, own / rate) if goal else ""])
    return rows


def precision_rows(document):
    """Steps of other precisions at a common micro-batch, how many times as fast as f32."""
    precisions = document["precisions"]
    if not precisions:
        return []
    rounds, B = precisions["rounds"], precisions["micro_batch"]
    rows = []
    for name in ("f32", "tf32", "bf16"):
        if name in rounds[0]:
            ratio = median(rounds, lambda turn, name=name: turn["f32"] / turn[name])
            rows.append([f"step, {name}, B={B}, beside f32",
                         f"{1e3 * median(rounds, lambda turn, name=name: turn[name]):.1f}", "ms", f"{ratio:.2f}", "",
                         ""])
    return rows


def memory_rows(document):
    """Memory in use beside what the ledger counts."""
    memory = document["training"]["memory"]
    ratio = memory["in_use_bytes"] / memory["ledger_bytes"]
    return [["memory in the ledger", f"{memory['ledger_bytes']:,}", "bytes", "", "", ""],
            ["memory in use, over ledger", f"{memory['in_use_bytes']:,}", "bytes", f"{ratio:.3f}",
             below(MEMORY_CEILING, ratio), ""]]


def attention_rows(document):
    """Attention alone, beside PyTorch's where it was there. A ratio is how many times as fast."""
    attention, rows = document["attention"], []
    shape = f"B={attention['B']} H={attention['H']} T={attention['T']} D={attention['D']}"
    turns = document.get("torch", {}).get("turns", [])
    for way in ("forward", "backward"):
        rounds = [turn["own"] for turn in turns] or attention["rounds"]
        seconds = median(rounds, lambda turn, way=way: turn[f"{way}_s"])
        cells = ["", "", ""]
        if turns:
            ratio = median(turns, lambda turn, way=way: turn["torch"][f"{way}_s"] / turn["own"][f"{way}_s"])
            cells = [f"{ratio:.3f}"] + ([against(ATTENTION_FLOOR, ratio), against(ATTENTION_GOAL, ratio)]
                                        if way == "forward" else ["", ""])
        rows.append([f"attention {way}, {shape}", f"{1e-12 * attention['flops'][way] / seconds:.1f}", "TFLOP/s",
                     *cells])
    of = document["torch"]["name"] if turns else NO_TORCH
    return [*rows, [f"  over flash attention of {of}" if turns else f"  {NO_TORCH}", "", "", "", "", ""]]


def speed_table(document):
    """The yardsticks and what stands beside them, each figure with its floor and its goal."""
    rows = [["what", "figure", "", "ratio", "floor", "goal"]]
    if "training" in document:
        for part in (yardstick_rows, step_rows, peer_step_rows, precision_rows, memory_rows):
            rows += part(document)
    return text_table(rows + attention_rows(document))


def kernels_table(document):
    """The kernels that memory bounds, each beside copying in the same round."""
    kernels = document["training"]["kernels"]
    rows = [["kernel", "least traffic", "time", "traffic", "of copy", "floor"], ["", "MB", "ms", "GB/s", "ratio", ""]]
    for name, size in ((case["name"], case["bytes"]) for case in kernels["cases"]):
        seconds = median(kernels["rounds"], lambda turn, name=name: turn["seconds"][name])
        ratio = median(kernels["rounds"], lambda turn, name=name, size=size:
                       size / turn["seconds"][name] / turn["copy_bytes_per_s"])
        rows.append([name, f"{1e-6 * size:,.1f}", f"{1e3 * seconds:.3f}", f"{1e-9 * size / seconds:,.1f}",
                     f"{ratio:.3f}", against(KERNEL_FLOOR, ratio)])
    return text_table(rows)


def where_table(document):
    """Time of each group of kernels in a step, under the two roofs."""
    flops_per_s, bytes_per_s = rates(document)
    where = document["training"]["where"]
    step_s = median(document["training"]["rounds"], lambda turn: turn["step_s"])
    queued_s = sum(group["queued_s"] for group in by_time(where))
    calls = sum(group["calls"] for group in where["groups"])
    return (f"# {1e-12 * flops_per_s:.1f} TFLOP/s and {1e-9 * bytes_per_s:.1f} GB/s meet at "
            f"{flops_per_s / bytes_per_s:.1f} FLOP/byte\n" + roofline_table(where, flops_per_s, bytes_per_s) +
            f"# {calls} calls; the host takes {1e3 * queued_s:.2f} ms to ask for them, waiting for numbers included. "
            f"Without\n# waiting for each the step takes {1e3 * step_s:.2f} ms.\n")


def gpu_blocks(document):
    """All tables by the name of their block in docs/performance.md."""
    machine = {**document.get("machine", {}), "GPU": document["gpu"]["name"],
               "memory": f"{document['gpu']['memory_bytes']:,} bytes"}
    blocks = {"machine of the GPU": "".join(f"{name:<11}{value}\n" for name, value in machine.items()),
              "GPU": speed_table(document)}
    if "training" in document:
        blocks["kernels of the GPU"] = kernels_table(document)
        blocks["where the time of a GPU goes"] = where_table(document)
    return blocks
