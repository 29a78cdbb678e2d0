#!/usr/bin/env python3
"""Makes the film of a training step: one page that shows on all ranks who computes, sends, waits and holds what.

    mpirun -np 4 build/lessons/06_zero3 --steps=3 --link=20us,500MB/s --report=run.json --trace=run.trace.json
    scripts/film/film.py run.json run.trace.json --output=film.html [--step=K]

The page needs no network. It has the wall clock, and with --link the virtual clock too. Without --step it shows the last step.
Sums are those of the ledgers: where the report has other ones, no page is made.
"""

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts/page"))

from pages import NotThere, filled, option_parser, read, refusing, run_script, write_whole  # noqa: E402
from quiz import questions  # noqa: E402
from step import Step  # noqa: E402

CLOCKS = ["wall clock", "virtual clock"]


def source(name):
    """The lines of a file of the lessons' code, [] if there is none of that name: a report or a trace from somebody else may name any file."""
    path = (ROOT / name).resolve()
    code = path.is_relative_to(ROOT / "lessons") and path.suffix in (".cpp", ".hpp")
    return path.read_text(encoding="utf-8").splitlines() if code and path.is_file() else []


def sources(step):
    """{path: lines} of the lessons' files in which something happens."""
    places = sorted({span["where"].rpartition(":")[0] for pieces in step.pieces for span in pieces})
    return {path: lines for path in places if (lines := source(path))}


def title(report):
    """The first line of the lesson's program, as "Lesson 06: sharded parameters (ZeRO-3, FSDP)"."""
    name = report["lesson"]
    return next(iter(source(f"lessons/{name}/{name}.cpp")), f"Lesson {name}").strip("/ ")


def data_of(step):
    """All that the page shows, as JSON has it. Texts that are used often are numbers of `words`."""
    report, words = step.report, {}
    clocks = [clock for clock in range(2) if step.length[clock] > 0]

    def word(text):
        return words.setdefault(text, len(words))

    def values(event, texts, others):
        return [word(event[name]) for name in texts.split()] + [event[name] for name in others.split()]

    ranks = [{
        "spans": [values(span, "name kind where", "lane begin end") for span in step.pieces[rank]],
        "held": held, "changes": [[*time, word(category), change] for time, category, change in changes],
        "formula": {category: tiers["device"][category] for category in held}}
        for rank, tiers, (held, changes) in zip(step.ranks, report["memory_ranks"], step.memory)]
    return {
        "title": title(report),
        "about": f"{report['model']['name']}, {report['ranks']} ranks, step {step.number + 1} of {step.made}",
        "clocks": [[clock, CLOCKS[clock], step.length[clock]] for clock in clocks],
        "ranks": ranks, "traffic": step.traffic(),
        "messages": [values(message, "collective purpose group where", "lane from to bytes counted begin end")
                     for message in step.messages],
        "tensors": [{**row, "ranks": [[[*time, word(state)] for time, state in states] for states in row["ranks"]]}
                    for row in step.tensors()],
        "quiz": {clock: questions(step, clock) for clock in clocks}, "files": sources(step), "words": list(words)}


def step_of(options):
    """The step that is filmed, and its page."""
    report, trace = read(options.report), read(options.trace)
    try:
        step = Step(report, trace, options.step)
        return step, filled("film/film", data_of(step))
    except (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise NotThere(f"{options.report} and {options.trace} are not a report and a trace of a lesson") from error


def main(arguments):
    parser = option_parser(__file__, "Makes the film of a training step, one page for a browser.")
    parser.add_argument("report", type=pathlib.Path, metavar="REPORT.json", help="a document of --report")
    parser.add_argument("trace", type=pathlib.Path, metavar="TRACE.json", help="the document of --trace of the same run")
    parser.add_argument("--step", type=int, help="which of the trace's steps, from 0; else the last")
    parser.add_argument("--output", type=pathlib.Path, required=True, help="a file for the page, as HTML")
    options = parser.parse_args(arguments)
    with refusing("", "A lesson writes both with --report=FILE.json --trace=FILE.json.", NotThere):
        step, page = step_of(options)
        write_whole(options.output, page)
    print(f"{options.output}: {options.output.stat().st_size:,} bytes, {len(step.ranks)} ranks, {len(step.messages)} messages, "
          f"{sum(m['bytes'] for m in step.messages):,} bytes sent")


if __name__ == "__main__":
    run_script(main)
