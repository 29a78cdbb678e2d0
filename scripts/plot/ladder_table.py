#!/usr/bin/env python3
"""Prints one table of all lessons from the reports in a folder, and says whether all is well.

    scripts/plot/ladder_table.py build/ladder          fits 120 columns: memory is a rank's total
    scripts/plot/ladder_table.py build/ladder --wide   with both deviations, speed and each category of memory

A lesson on R ranks has two reports there, as written by --report: NN_name.npR.fast.json (loss, deviation, time, memory,
traffic, checks; of a pipeline also its schedule, and the bubble is the share of the ranks' time that is planned idle) and
NN_name.npR.exact.json (digest and checks). A lesson that trains nothing has one, NN_name.npR.messages.json (traffic and
checks). Beside each there is NN_name.npR.KIND.status, the exit status of the run. The status is 1 if a check failed, a run broke,
no lesson was run, or two digests of the same model differ.
"""

import collections
import os
import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
from documents import option_parser, read_json, run_script, shown, text_table  # noqa: E402

# Where a rank's memory goes, in the order of the ledger. A category that no lesson uses gets no column.
CATEGORIES = ["parameters", "gradients", "optimizer", "activations", "communication", "workspace", "staging",
              "exact"]
# How far a run is from a single device in exact arithmetic, by column. Without --compare there is no such column.
DEVIATIONS = {"of loss": "loss", "of parameters": "parameters"}
DIGEST_SHOWN = 12  # hexadecimal digits: enough to see that two differ


def failed_checks(report):
    return [check for check in report["checks"] if not check["pass"]]


def read(path):
    """The report of a run with this status; None of one that broke: it left none, or ended otherwise than its checks say."""
    try:
        report = read_json(path.with_suffix(".json"))
        return report if int(path.read_text(encoding="ascii")) == bool(failed_checks(report)) else None
    except (KeyError, OSError, TypeError, ValueError):
        return None


def row_of(name, reports):
    """The cells of one row, NN_name.npR, as text by column; from its reports by kind."""
    lesson, ranks = name.split(".np")
    row = {"lesson": lesson, "ranks": ranks}
    fast, exact = reports.get("fast"), reports.get("exact")
    if main := fast or reports.get("messages"):
        failed = failed_checks(main)
        if traffic := main.get("traffic"):  # lesson 00 counts none
            row["sent"] = f"{sum(group['bytes'] for group in traffic.values()):,}"
        row["checks"] = f"{len(failed)} FAIL" if failed else f"{len(main['checks'])} PASS"
    else:
        row["checks"] = "broke"
    if fast:
        row["first loss"] = f"{fast['loss'][0]:.4f}"
        row["last loss"] = f"{fast['loss'][-1]:.4f}"
        for column, what in DEVIATIONS.items():
            deviation = fast.get("deviation", {}).get(what)  # null is what JSON has for NaN
            if deviation is not None:
                row[column] = f"{deviation:.1e}"
        row["step"] = f"{1000 * fast['time']['step_s']:.1f}"
        row["speed"] = f"{fast['time']['tokens_per_s']:,.0f}"
        if schedule := fast.get("schedule"):
            row["bubble"] = f"{100 * schedule['idle']['planned']:.1f}"
        for category, bytes_of in fast["memory"].items():
            row[category] = f"{bytes_of['peak']:,}"
        row["memory"] = f"{fast['memory_peak']:,}"
    if "exact" in reports:
        row["digest"] = exact["digest"][:DIGEST_SHOWN] if exact else "broke"
    return row


def title_of(report):
    model = report["model"]
    return (f"# model {model['name']}, {model['parameters']:,} parameters; {len(report['loss'])} steps on the embedded data; "
            "memory of the largest rank")


def failures_of(name, report):
    return [f"{name}: {c['name']}: expected {c['expected']}, measured {c['measured']}" for c in failed_checks(report)]


def model_of(report):
    """Reports of the same model have the same digest."""
    return report["model"]["architecture"], report["model"].get("parameters")


def whole(name, kind, report):
    """A report that has all that is shown of it; None instead of another one."""
    try:
        row_of(name, {kind: report}), failures_of(name, report)
        if kind == "fast":
            title_of(report)
        if kind == "exact":
            hash((model_of(report), report["digest"]))
        return report
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return None


def print_row(line):
    """With PASS and FAIL in green and red, where somebody reads on a terminal and has not asked for NO_COLOR."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        print(line)
    else:  # past the stream that shows control characters
        print(shown(line).replace("PASS", "\033[32mPASS\033[0m").replace("FAIL", "\033[31mFAIL\033[0m"), file=sys.__stdout__, flush=True)


def print_table(rows, wide):
    units = {"first loss": "nats", "last loss": "nats", "step": "ms", "speed": "tokens/s", "bubble": "% planned",
             "memory": "peak bytes", "sent": "bytes"}
    units.update({category: "peak bytes" for category in CATEGORIES}, **{column: column for column in DEVIATIONS})
    compared = [c for c in DEVIATIONS if any(c in row for row in rows)]
    used = [c for c in CATEGORIES if any(row.get(c, "0") != "0" for row in rows)]
    bubble = [c for c in ["bubble"] if any(c in row for row in rows)]
    columns = ["lesson", "ranks", "first loss", "last loss", *compared, "step", "speed", *bubble, *used, "sent", "checks",
               "digest"]
    if not wide:
        columns = ["lesson", "ranks", "last loss", *compared[:1], "step", *bubble, "memory", "sent", "checks", "digest"]
    titles = {c: "deviation" if c in DEVIATIONS else c for c in columns}
    for line in text_table([[line.get(c, "") for c in columns] for line in (titles, units, *rows)]).splitlines():
        print_row(line)


def reports_in(folder):
    """{NN_name.npR: {kind of run: its report}}, in order of their names."""
    lessons = collections.defaultdict(dict)
    for path in sorted(folder.glob("*.status")):
        name, kind = path.stem.rsplit(".", 1)
        lessons[name][kind] = read(path)
    return lessons


def main(arguments):
    parser = option_parser(__file__, "One table of all lessons.")
    parser.add_argument("folder", type=pathlib.Path, help="with reports, as scripts/ladder.sh leaves them")
    parser.add_argument("--wide", action="store_true", help="with all columns")
    options = parser.parse_args(arguments)
    lessons = {name: {kind: whole(name, kind, report) for kind, report in reports.items()}
               for name, reports in reports_in(options.folder).items()}
    first = next((reports["fast"] for reports in lessons.values() if reports.get("fast")), None)
    if first:
        print(title_of(first))
    print_table([row_of(name, reports) for name, reports in lessons.items()], options.wide)

    bad = [] if lessons else ["no lesson was run"]
    bad += [f"{name}: a run broke" for name, reports in lessons.items() if None in reports.values()]
    for name, reports in lessons.items():
        for report in filter(None, reports.values()):
            bad += failures_of(name, report)
    digests = collections.defaultdict(set)
    for report in (reports["exact"] for reports in lessons.values() if reports.get("exact")):
        digests[model_of(report)].add(report["digest"])
    for (model, _), of_model in digests.items():
        if len(of_model) > 1:
            bad.append(f"the digests of {model} differ: in exact arithmetic all layouts must end with the same parameters")
    of_each = " of each model" if len(digests) > 1 else ""
    for line in bad or [f"All checks hold, and all digests{of_each} are the same."]:
        print(line)
    return 1 if bad else 0


if __name__ == "__main__":
    run_script(main)
