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

from compare_runs import NotThere, filled, option_parser, read, refusing, run_script, write_whole  # noqa: E402
from step import Step  # noqa: E402

CLOCKS = ["wall clock", "virtual clock"]
STATES = ["whole", "sharded", "partial", "on its way"]  # of a tensor


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


# ---- Questions: each answer is computed from the recorded events, so it is right for this run --------------------------------

def questions(step, clock):
    """The questions on one clock (0 wall, 1 virtual) in order: {at, rank, question, choices, answer, why}, with the moment
    in nanoseconds and the number of the right choice."""
    found = [make(step, clock) for make in (bytes_to_come, state_of_a_tensor, category_at_its_peak, longest_wait)]
    return sorted((question for question in found if question), key=lambda question: question["at"])


def ask(at, rank, question, choices, right, why):
    """A question. Choices are numbers or names, without repetition."""
    choices = list(dict.fromkeys(choices))
    words = [f"{choice:,} bytes" if isinstance(choice, int) else choice for choice in choices]
    return {"at": at, "rank": rank, "question": question, "choices": words, "answer": choices.index(right), "why": why}


def bytes_to_come(step, clock):
    """Bytes that the last rank still has to send, in the middle of its messages."""
    rank = step.ranks[-1]
    sent = sorted((m["begin"][clock], m["bytes"], m["collective"]) for m in step.messages if m["from"] == rank)
    if len(sent) < 2:
        return None
    at = sent[len(sent) // 2][0] - 1
    to_come = [message for message in sent if message[0] > at]
    right, total = (sum(message[1] for message in some) for some in (to_come, sent))
    others = [number for number in (total, total - right, 2 * right, right // 2, total + right) if number not in (0, right)]
    kinds = {kind: [m[1] for m in to_come if m[2] == kind] for kind in sorted({m[2] for m in to_come})}
    why = "; ".join(f"{kind}: {sum(some):,} bytes in {len(some)} message{'s' * (len(some) > 1)}"
                    for kind, some in kinds.items())
    return ask(at, rank, f"How many bytes will rank {rank} send from here to the end of the step?",
               sorted({right, *list(dict.fromkeys(others))[:3]}), right, why + ".")


def levels(step, rank, clock):
    """Memory of a rank as [begin, end, {category: bytes}], without moments that take no time."""
    held, changes = step.memory[rank]
    now, since, found = dict(held), 0, []
    for time, category, change in sorted(changes, key=lambda change: change[0][clock]) + [[step.length, None, 0]]:
        if time[clock] > since:
            found.append((since, time[clock], dict(now)))
            since = time[clock]
        if category:
            now[category] += change
    return found


def category_at_its_peak(step, clock):
    """One of the categories that vary, at the longest time at which it alone is at its peak; else the largest category."""
    rank = step.ranks[0]
    held = levels(step, rank, clock)
    most = {category: max(bytes_[category] for _, _, bytes_ in held) for category in held[0][2]}
    varying = [category for category in most if any(bytes_[category] != most[category] for _, _, bytes_ in held)]
    alone = [(end - begin, begin, [c for c in varying if bytes_[c] == most[c]]) for begin, end, bytes_ in held]
    alone = [(length, begin, names[0]) for length, begin, names in alone if len(names) == 1]
    if len(varying) > 1 and alone:
        length, begin, right = max(alone)
        why = f"{right} has {most[right]:,} bytes, its most in this step; the others that change had or will have more."
        question = f"Which category of rank {rank}'s memory is at its peak here?"
        return ask(begin + length // 2, rank, question, varying, right, why)
    right = max(most, key=most.get)
    return ask(step.length[clock] // 2, rank, f"Which category of rank {rank}'s memory is the largest?",
               sorted(most, key=most.get, reverse=True)[:4], right, f"{right} has {most[right]:,} bytes.")


def state_of_a_tensor(step, clock):
    """A tensor in the state that lasts longest of those that are not there from the beginning to the end."""
    found = []
    for row in step.tensors():
        for rank, states in enumerate(row["ranks"]):
            ordered = sorted(states, key=lambda state: state[0][clock]) + [[step.length, ""]]
            for (begin, state), (end, _) in zip(ordered, ordered[1:]):
                lasts = end[clock] - begin[clock]
                if state in STATES and begin[clock] > 0 and lasts > 0:
                    found.append((state in ("partial", "sharded"), lasts, begin[clock], rank, row["name"], state))
    if not found:
        return None
    _, length, begin, rank, name, right = max(found)
    return ask(begin + length // 2, rank, f"“{name}”: what does rank {rank} hold at this moment?", STATES, right,
               f"It is {right} since {begin / 1e6:.3f} ms.")


def longest_wait(step, clock):
    """The rank whose program waits longest for messages."""
    waits = {}
    for rank in step.ranks:
        until = 0
        waits[rank] = 0
        for span in sorted(step.pieces[rank], key=lambda span: span["begin"][clock]):
            if span["lane"] == 0 and span["kind"] in ("exposed", "waiting"):
                waits[rank] += max(0, span["end"][clock] - max(until, span["begin"][clock]))
                until = max(until, span["end"][clock])
    ranked = sorted(waits, key=waits.get, reverse=True)
    if waits[ranked[0]] == waits[ranked[1]]:
        return None
    why = ", ".join(f"rank {rank}: {waits[rank] / 1e6:.3f} ms" for rank in step.ranks) + "."
    return ask(step.length[clock] - 1, ranked[0], "Whose program spent most of this step waiting for messages?",
               [f"rank {rank}" for rank in sorted(ranked[:4])], f"rank {ranked[0]}", why)


# ---- The page -----------------------------------------------------------------------------------------------------------

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
