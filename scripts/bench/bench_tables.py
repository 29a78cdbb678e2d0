"""From what build/tests/training_step measured to figures, and from figures to tables. Nothing here measures."""

import csv
import dataclasses
import pathlib
import re
import statistics
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
from documents import text_table  # noqa: E402  for all of the bench
from whole_file import write_whole  # noqa: E402

CSV_COLUMNS = ["date", "commit", "case", "round", "gemm_gflops_per_s", "read_GBps", "triad_GBps", "update_GBps",
               "step_1_s", "step_2_s"]


@dataclasses.dataclass(frozen=True)
class Case:
    """One model and batch, and what its steps are held to."""

    name: str
    title: str
    options: list
    rounds: int                # turns of each measurement, unless the user says otherwise
    floor: float = 0           # least model FLOP/s at one thread, over the best GEMM rate; 0: none
    speed_up_floor: float = 0  # least of two threads; 0: none
    pytorch: float = 0         # what others reach, on a 2-core Zen 5; 0: not known
    llm_c: float = 0


@dataclasses.dataclass
class Figures:
    """The figures of one case: medians over its rounds."""

    gemm: dict            # GFLOP/s by (library, size), in the precision of the steps
    bandwidth: dict       # GB/s by kind: read, triad, update
    step_s: list          # at one thread and, where there are two cores, at two
    speed_up: float       # the median of the rounds' ratios; 0 with one core
    tokens_per_s: float
    model_gflops: float   # per second, T x T counted whole
    causal_gflops: float  # per second, what a causal mask hides left out

    @property
    def best_gemm(self):
        """GFLOP/s of the fastest library and size."""
        return max(self.gemm.values())

    @property
    def best_bandwidth(self):
        """GB/s of the fastest way to move bytes."""
        return max(self.bandwidth.values())


def products_of(turn, document):
    """The matrix products of a round in the precision of the document's steps."""
    return [product for product in turn["gemm"] if product["precision"] == document["precision"]]


def figures_of(document):
    """Medians over the rounds of one document of training_step."""
    rounds = document["rounds"]
    rates = {}
    for turn in rounds:
        for product in products_of(turn, document):
            rates.setdefault((product["library"], product["size"]), []).append(product["gflops_per_s"])
    kinds = ("read", "triad", "update")
    step_s = [statistics.median(times) for times in zip(*(turn["step_s"] for turn in rounds))]
    ratios = [turn["step_s"][0] / turn["step_s"][1] for turn in rounds if len(turn["step_s"]) > 1]
    return Figures(gemm={key: statistics.median(values) for key, values in rates.items()},
                   bandwidth={kind: statistics.median(turn[f"{kind}_GBps"] for turn in rounds) for kind in kinds},
                   step_s=step_s,
                   speed_up=statistics.median(ratios) if ratios else 0,
                   tokens_per_s=document["batch"] * document["sequence"] / step_s[0],
                   model_gflops=1e-9 * document["flops"]["model"] / step_s[0],
                   causal_gflops=1e-9 * document["flops"]["causal"] / step_s[0])


def ratios_of(document):
    """The ratios of one document that a change must not lower, by name."""
    figures = figures_of(document)
    ratios = {"model FLOP/s over the best product": figures.model_gflops / figures.best_gemm}
    if figures.speed_up:
        ratios["two threads over one"] = figures.speed_up
    if "f32_step_s" in document["rounds"][0]:
        ratios["bf16 over f32"] = statistics.median(turn["f32_step_s"][0] / turn["step_s"][0] for turn in document["rounds"])
    return {name: round(value, 3) for name, value in ratios.items()}


def torch_config(model):
    """The config.json of a model that a bench prints."""
    return {"vocab_size": model["vocabulary"], "n_positions": model["context"], "n_embd": model["channels"],
            "n_layer": model["layers"], "n_head": model["heads"], "layer_norm_epsilon": 1e-5}


def speed(report):
    """Tokens a second of a lesson's run."""
    return report["time"]["tokens_per_s"]


def speed_cells(reports):
    """Milliseconds of a step and tokens a second, medians of several runs."""
    return [f"{1e3 * statistics.median(report['time']['step_s'] for report in reports):.1f}", f"{statistics.median(map(speed, reports)):,.0f}"]


def against(floor, value):
    """A floor and whether the value reaches it."""
    return f"{floor:.2f} {'met' if value >= floor else 'below'}" if floor else "-"


def below(ceiling, value):
    """A ceiling and whether the value stays under it."""
    return f"{ceiling:.2f} {'met' if value <= ceiling else 'above'}"


def known(value):
    """A figure of others."""
    return f"{value:.2f}" if value else "-"


def training_steps_table(measured):
    """The table of whole steps. `measured`: (Case, document) pairs."""
    rows = [["case", "best GEMM", "step", "speed", "model", "of GEMM", "floor", "causal", "of GEMM", "2 threads",
             "speed-up", "floor", "PyTorch", "llm.c"],
            ["", "GFLOP/s", "ms", "tokens/s", "GFLOP/s", "ratio", "", "GFLOP/s", "ratio", "ms", "ratio", "", "of GEMM",
             "of GEMM"]]
    for case, document in measured:
        figures = figures_of(document)
        ratio = figures.model_gflops / figures.best_gemm
        two = [f"{1e3 * figures.step_s[1]:.1f}", f"{figures.speed_up:.3f}",
               against(case.speed_up_floor, figures.speed_up)] if figures.speed_up else ["-", "-", "-"]
        rows.append([case.title, f"{figures.best_gemm:.1f}", f"{1e3 * figures.step_s[0]:.1f}",
                     f"{figures.tokens_per_s:,.0f}", f"{figures.model_gflops:.1f}", f"{ratio:.3f}",
                     against(case.floor, ratio), f"{figures.causal_gflops:.1f}",
                     f"{figures.causal_gflops / figures.best_gemm:.3f}", *two, known(case.pytorch), known(case.llm_c)])
    return text_table(rows)


def machine_rates_table(measured):
    """Best rates of the machine while each case was measured."""
    columns = sorted({key for _, document in measured for key in figures_of(document).gemm})
    rows = [["case", *(library for library, _ in columns), "read", "triad", "update"],
            ["", *(str(size) for _, size in columns), "", "", ""],
            ["", *("GFLOP/s" for _ in columns), "GB/s", "GB/s", "GB/s"]]
    for case, document in measured:
        figures = figures_of(document)
        rates = [f"{figures.gemm[key]:.1f}" if key in figures.gemm else "-" for key in columns]
        rows.append([case.title, *rates, *(f"{rate:.1f}" for rate in figures.bandwidth.values())])
    return text_table(rows)


def memory_table(measured):
    """Peak memory beside what storing T x T would take, and what one step allocates."""
    rows = [["case", "ledger", "process", "T x T stored", "malloc", "malloc", "operator new", "ledger"],
            ["", "peak bytes", "peak bytes", "bytes on top", "1 thread", "2 threads", "calls a step", "growth, bytes"]]
    for case, document in measured:
        memory, steps = document["memory"], document["allocations"]
        calls = [f"{step['malloc']:,}" if step["malloc"] >= 0 else "-" for step in steps]
        growth = max(step["ledger_growth_bytes"] + step["ledger_peak_growth_bytes"] for step in steps)
        rows.append([case.title, f"{memory['ledger_peak_bytes']:,}", f"{memory['max_resident_bytes']:,}",
                     f"{memory['stored_attention_bytes']:,}", *[*calls, "-"][:2],
                     f"{max(step['operator_new'] for step in steps):,}", f"{growth:,}"])
    return text_table(rows)


def group_row(group, step_s, flops_per_s, bytes_per_s):
    """One group of kernels under the two roofs."""
    arithmetic_s = group["flops"] / flops_per_s
    memory_s = group["bytes"] / bytes_per_s
    bound_s = max(arithmetic_s, memory_s)
    seconds = group["seconds"]
    return [group["name"], str(group["calls"]), f"{1e3 * seconds:.2f}", f"{100 * seconds / step_s:.1f}",
            f"{1e-9 * group['flops'] / seconds:.1f}", f"{1e-9 * group['bytes'] / seconds:.1f}",
            f"{group['flops'] / group['bytes']:.1f}", f"{1e3 * bound_s:.2f}",
            "arithmetic" if arithmetic_s > memory_s else "memory", f"{100 * bound_s / seconds:.0f}"]


def by_time(where):
    """The groups that have calls, the longest first."""
    return sorted((g for g in where["groups"] if g["calls"] > 0), key=lambda g: -g["seconds"])


def roofline_table(where, flops_per_s, bytes_per_s):
    """Time of each group of kernels in one step, under the two roofs."""
    step_s = where["step_s"]
    groups = by_time(where)
    rest_s = step_s - sum(group["seconds"] for group in groups)
    rows = [["group", "calls", "time", "share", "rate", "traffic", "intensity", "bound", "bound by", "reached"],
            ["", "", "ms", "%", "GFLOP/s", "GB/s", "FLOP/byte", "ms", "", "%"],
            *(group_row(group, step_s, flops_per_s, bytes_per_s) for group in groups),
            ["between kernels", "", f"{1e3 * rest_s:.2f}", f"{100 * rest_s / step_s:.1f}", *[""] * 6],
            ["step", "", f"{1e3 * step_s:.2f}", "100.0", *[""] * 6]]
    return text_table(rows)


def where_table(case, document):
    """Time of each group of kernels in one step of one case, at one thread."""
    figures = figures_of(document)
    ridge = figures.best_gemm / figures.best_bandwidth
    return (f"# {case.title}: {figures.best_gemm:.1f} GFLOP/s and {figures.best_bandwidth:.1f} GB/s meet at "
            f"{ridge:.1f} FLOP/byte\n" +
            roofline_table(document["where"], 1e9 * figures.best_gemm, 1e9 * figures.best_bandwidth))


BF16_FLOOR = 1.6        # tokens/s in bf16 over tokens/s in f32, where the processor multiplies bf16
BF16_FLOPS_FLOOR = 0.5  # model FLOP/s of a step in bf16 over the best product of bf16, there too


def bf16_tables(measured, has_bf16):
    """Steps in bf16 beside steps in f32, and where both spend their time. `measured`: (Case, document) pairs with f32 beside.

    `has_bf16`: whether the processor has instructions that multiply bf16; else there is no floor.
    """
    rows = [["case", "threads", "f32", "bf16", "f32", "bf16", "ratio", "floor"],
            ["", "", "ms", "ms", "tokens/s", "tokens/s", "", ""]]
    tables = []
    for case, document in measured:
        tokens = document["batch"] * document["sequence"]
        for i, threads in enumerate(document["threads"]):
            pairs = [(turn["f32_step_s"][i], turn["step_s"][i]) for turn in document["rounds"]]
            f32_s, bf16_s = (statistics.median(times) for times in zip(*pairs))
            ratio = statistics.median(f32 / bf16 for f32, bf16 in pairs)
            rows.append([case.title, str(threads), f"{1e3 * f32_s:.1f}", f"{1e3 * bf16_s:.1f}",
                         f"{tokens / f32_s:,.0f}", f"{tokens / bf16_s:,.0f}", f"{ratio:.2f}",
                         against(BF16_FLOOR if has_bf16 else 0, ratio)])
        tables.append(f"\n# {case.title}, one thread\n" + bf16_products_table(document, has_bf16) + "\n" +
                      bf16_where_table(document))
    return text_table(rows) + "".join(tables)


def bf16_products_table(document, has_bf16):
    """The best product of bf16 of each library, and the model FLOP/s of a step over the best of all."""
    figures = figures_of(document)
    rows = [["bf16 product", "size", "rate", "model", "of it", "floor"], ["", "", "GFLOP/s", "GFLOP/s", "ratio", ""]]
    for library in sorted({library for library, _ in figures.gemm}):
        rate, size = max((rate, size) for (name, size), rate in figures.gemm.items() if name == library)
        ratio = figures.model_gflops / rate
        rows.append([library, str(size), f"{rate:.1f}", f"{figures.model_gflops:.1f}", f"{ratio:.3f}",
                     against(BF16_FLOPS_FLOOR if has_bf16 and rate == figures.best_gemm else 0, ratio)])
    return text_table(rows)


def bf16_where_table(document):
    """The groups of kernels of a step in bf16 beside those of a step in f32."""
    f32_s = {group["name"]: group["seconds"] for group in document["where_f32"]["groups"]}
    total_s = document["where"]["step_s"]
    rows = [["group", "f32", "bf16", "share", "ratio"], ["", "ms", "ms", "%", ""]]
    for group in by_time(document["where"]):
        seconds = group["seconds"]
        rows.append([group["name"], f"{1e3 * f32_s[group['name']]:.2f}", f"{1e3 * seconds:.2f}",
                     f"{100 * seconds / total_s:.1f}", f"{f32_s[group['name']] / seconds:.2f}"])
    all_f32_s = document["where_f32"]["step_s"]
    rows.append(["step", f"{1e3 * all_f32_s:.2f}", f"{1e3 * total_s:.2f}", "100.0", f"{all_f32_s / total_s:.2f}"])
    return text_table(rows)


def ways_table(turns):
    """Lesson 01 in several ways; `turns` has (step seconds, TFLOP/s) by way for each round, the first way first."""
    first = next(iter(turns[0]))
    rows = [["way", "step", "", "time"], ["", "ms", "GFLOP/s", "ratio"]]
    for way in turns[0]:
        step_s, tflops = (statistics.median(turn[way][i] for turn in turns) for i in (0, 1))
        ratio = statistics.median(turn[way][0] / turn[first][0] for turn in turns)
        rows.append([way, f"{1e3 * step_s:.1f}", f"{1e3 * tflops:.1f}", f"{ratio:.2f}"])
    return text_table(rows)


def replace_block(text, name, content):
    """`text` with new content in the block that this line begins:  <!-- bench: NAME -->"""
    block = re.compile(rf"(<!-- bench: {re.escape(name)} -->\n```\n).*?(```\n)", re.DOTALL)
    if len(block.findall(text)) != 1:
        raise ValueError(f"there is not one block '<!-- bench: {name} -->'")
    return block.sub(lambda found: found[1] + content + found[2], text)


def write_page(page, blocks):
    """Puts the tables, by the name of their block, where the page has their marks."""
    text = page.read_text(encoding="utf-8")
    for name, content in blocks.items():
        text = replace_block(text, name, content)
    write_whole(page, text)


def csv_rows(case, document, date, commit):
    """One row a round; what was not measured stays empty."""
    for number, turn in enumerate(document["rounds"]):
        best = max(product["gflops_per_s"] for product in products_of(turn, document))
        step_s = [*turn["step_s"], ""][:2]
        yield [date, commit, case.name, number, best, turn["read_GBps"], turn["triad_GBps"], turn["update_GBps"],
               *step_s]


def append_csv(path, rows, columns=None):
    """Adds rows to a table, which gets its header first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    begins = not path.exists() or path.stat().st_size == 0
    with open(path, "a", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if begins:
            writer.writerow(columns or CSV_COLUMNS)
        writer.writerows(rows)
