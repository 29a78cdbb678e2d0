#!/usr/bin/env python3
"""Makes the film of a training step: one page that shows on all ranks who computes, sends, waits and holds what.

    mpirun -np 4 build/lessons/06_zero3 --steps=3 --link=20us,500MB/s --report=run.json --trace=run.trace.json
    scripts/film/film.py run.json run.trace.json --output=film.html [--step=K]

The page needs no network. It has the wall clock, and with --link the virtual clock too. Without --step it shows the last step.
Sums are those of the ledgers: where the report has other ones, no page is made.
"""

import argparse
import json
import pathlib
import sys

from quiz import questions
from step import NotThere, Step

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CLOCKS = ["wall clock", "virtual clock"]


class Words:
    """Texts that are used often, by number."""

    def __init__(self):
        self.numbers = {}

    def __call__(self, text):
        return self.numbers.setdefault(text, len(self.numbers))


def clocks_of(step):
    """Numbers of the clocks on which the step takes time."""
    return [clock for clock in range(2) if step.length[clock] > 0]


def sources(step):
    """{path: lines} of the lessons' files in which something happens."""
    places = {span["where"].rpartition(":")[0] for pieces in step.pieces for span in pieces}
    paths = sorted(path for path in places if path.startswith("lessons/") and (ROOT / path).is_file())
    return {path: (ROOT / path).read_text(encoding="utf-8").splitlines() for path in paths}


def title(report):
    """The first line of the lesson's program, as "Lesson 06: sharded parameters (ZeRO-3, FSDP)"."""
    name = report["lesson"]
    program = ROOT / "lessons" / name / f"{name}.cpp"
    return program.read_text(encoding="utf-8").split("\n", 1)[0].strip("/ ") if program.is_file() else f"Lesson {name}"


def data_of(step):
    """All that the page shows, as JSON has it."""
    report, words = step.report, Words()
    ranks = []
    for rank, tiers in zip(step.ranks, report["memory_ranks"]):
        held, changes = step.memory[rank]
        ranks.append({
            "spans": [[words(s["name"]), words(s["kind"]), words(s["where"]), s["lane"], *s["begin"], *s["end"]]
                      for s in step.pieces[rank]],
            "held": held, "changes": [[*time, words(category), change] for time, category, change in changes],
            "formula": {category: tiers["device"][category] for category in held}})
    return {
        "title": title(report), "about": f"{report['model']['name']}, {report['ranks']} ranks, step {step.number + 1} of {step.made}",
        "clocks": [[clock, CLOCKS[clock], step.length[clock]] for clock in clocks_of(step)],
        "ranks": ranks, "traffic": step.traffic(),
        "messages": [[words(m["collective"]), words(m["purpose"]), words(m["group"]), words(m["where"]), m["lane"], m["from"], m["to"],
                      m["bytes"], m["counted"], *m["begin"], *m["end"]] for m in step.messages],
        "tensors": [{**row, "ranks": [[[*time, words(state)] for time, state in states] for states in row["ranks"]]}
                    for row in step.tensors()],
        "quiz": {clock: questions(step, clock) for clock in clocks_of(step)},
        "files": sources(step), "words": list(words.numbers)}


def page(data):
    """The page: template, style, script and data in one text."""
    text = (HERE / "film.html").read_text(encoding="utf-8")
    embedded = json.dumps(data, separators=(",", ":"), ensure_ascii=False).replace("</", "<\\/")
    for name, content in (("film.css", (HERE / "film.css").read_text(encoding="utf-8")),
                          ("film.js", (HERE / "film.js").read_text(encoding="utf-8")), ("film.json", embedded)):
        text = text.replace(f"[[{name}]]", content, 1)
    return text


def read(path):
    """A JSON document.
    @throws NotThere  with its name, if it is none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise NotThere(f"{path} cannot be read: {error}") from error


def options_of(arguments):
    parser = argparse.ArgumentParser(prog="scripts/film/film.py", allow_abbrev=False,
                                     description="Makes the film of a training step, one page for a browser.")
    parser.add_argument("report", type=pathlib.Path, metavar="REPORT.json", help="a document of --report")
    parser.add_argument("trace", type=pathlib.Path, metavar="TRACE.json", help="the document of --trace of the same run")
    parser.add_argument("--step", type=int, help="which of the trace's steps, from 0; else the last")
    parser.add_argument("--output", type=pathlib.Path, required=True, help="a file for the page, as HTML")
    return parser.parse_args(arguments)


def main(arguments):
    options = options_of(arguments)
    try:
        report, trace = read(options.report), read(options.trace)
        try:
            step = Step(report, trace, options.step)
            data = data_of(step)
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            raise NotThere(f"{options.report} and {options.trace} are not a report and a trace of a lesson ({error!r})") from error
        options.output.write_text(page(data), encoding="utf-8")
    except (NotThere, OSError) as error:
        print(f"error: {error}.\n       A lesson writes both with --report=FILE.json --trace=FILE.json.", file=sys.stderr)
        return 2
    print(f"{options.output}: {options.output.stat().st_size:,} bytes, {len(step.ranks)} ranks, {len(step.messages)} messages, "
          f"{sum(m['bytes'] for m in step.messages):,} bytes sent")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
