"""Compares what the student's program answered with what the reference answered, and says it in words."""

import collections
import math
import re

# What Open MPI or MPICH, behind the MPI of the judge, say of a call that this has not.
ABSENT = re.compile(r"(?:MPI_|internal_)(\w+)\(?\) (?:function was called )?before (?:MPI_INIT|initializing)")
AT_MOST = ("bytes of scratch",)  # what a right solution may take less of than the reference
MISSING = re.compile(r"exercise (\d\d\.\d+) is not implemented")


def are_near(one, other, bound):
    """True if two numbers are equal up to a bound."""
    try:
        return one == other or (math.isfinite(one) and math.isfinite(other) and abs(one - other) <= bound)
    except OverflowError:  # a whole number that is larger than any other
        return False


def first_difference(expected, got, near, place=""):
    """First difference of two answers, (place, expected, got); None if there is none."""
    if isinstance(expected, dict) and isinstance(got, dict):
        for key in sorted(expected, key=lambda name: name.startswith("digest")):  # which says nothing to people: last
            if key not in got:
                return f"{place} {key}".strip(), expected[key], "nothing"
            if key in AT_MOST and type(got[key]) is int and 0 <= got[key] <= expected[key]:
                continue
            if found := first_difference(expected[key], got[key], near, f"{place} {key}".strip()):
                return found
        return None
    if isinstance(expected, list) and isinstance(got, list):
        if len(expected) != len(got):
            return f"{place}: the number of elements", len(expected), len(got)
        numbers = [abs(value) for value in expected if isinstance(value, float)]
        bound = near.get(place.split("[")[0], near.get("", 0)) * max(numbers, default=0)
        for i, (one, other) in enumerate(zip(expected, got)):
            if isinstance(one, (int, float)) and isinstance(other, (int, float)) and not isinstance(one, bool):
                if not are_near(one, other, bound):
                    return f"{place}[{i}]", one, other
            elif found := first_difference(one, other, near, f"{place}[{i}]"):
                return found
        return None
    if isinstance(expected, float) and isinstance(got, (int, float)):
        return None if are_near(expected, got, near.get(place, near.get("", 0)) * abs(expected)) else (place, expected, got)
    return None if expected == got and isinstance(expected, bool) == isinstance(got, bool) else (place, expected, got)


def sum_of_traffic(messages):
    return [sum(count[i] for count in messages.values()) for i in range(2)]


def most_of_a_rank(messages):
    """The bytes of the rank that sent most."""
    sent = collections.Counter()
    for (sender, _), (_, size) in messages.items():
        sent[sender] += size
    return max(sent.values(), default=0)


def sums_difference(expected, got):
    """Difference of the traffic where another order of messages is right too: over all ranks."""
    wanted, sent = sum_of_traffic(expected), sum_of_traffic(got)
    if wanted[1] != sent[1] or wanted[0] < sent[0]:
        return f"all ranks sent {sent[0]:,} messages with {sent[1]:,} bytes; {wanted[0]:,} messages with {wanted[1]:,} bytes are needed"
    most, allowed = most_of_a_rank(got), most_of_a_rank(expected)
    if most > 1.25 * allowed:  # which rank sends a remainder may differ
        return f"one rank sent {most:,} bytes; no rank needs to send more than about {allowed:,}"
    return ""


def pairs_difference(expected, got):
    """The first pair of ranks between which something else was sent, as a sentence; empty if there is none."""
    for pair in sorted(set(expected) | set(got)):
        wanted, sent = expected.get(pair, [0, 0]), got.get(pair, [0, 0])
        if wanted != sent:
            return (f"rank {pair[0]} sent {sent[0]:,} messages with {sent[1]:,} bytes to rank {pair[1]}; "
                    f"{wanted[0]:,} messages with {wanted[1]:,} bytes are needed")
    return ""


def steps_difference(judged, cases, expected, got):
    """The first case in which more messages came one after the other than its page allows, or than with the reference."""
    for case, most, steps in zip(cases, expected.steps, got.steps):
        if steps > (allowed := max(most, judged.steps(case.ranks))):
            return (f"{case.text}\n{steps} messages are sent one after the other; {allowed} steps are enough, "
                    "if in each of them every rank sends one and receives one")
    late = len(cases)  # barriers may have been moved to the front
    return "messages are sent when all cases have ended" if sum(got.steps[late:]) > sum(expected.steps[late:]) else ""


def without_answers(text):
    """The last lines that a program printed for people."""
    lines = [line for line in text.split("\n") if line.strip() and not line.startswith(("ANSWER ", "REPORT ", "# --"))]
    return "\n".join(lines[-8:])[-1500:]


def compare(judged, cases, expected, got):
    """(verdict, detail) of the answers of one job."""
    missing = [str(one[-1]["not implemented"]) for one in got.outputs if one and "not implemented" in one[-1]]
    missing = set(MISSING.findall("\n".join(missing) + got.text))
    if judged.number in missing:
        return "not implemented", ""
    if missing:
        return "failed", f"needs exercise {min(missing)} first"
    if absent := ABSENT.search(got.text):
        return "failed", f"the MPI in which exercises are judged has no MPI_{absent[1]}(). Write this with other calls"
    where = cases[0].text if len(cases) == 1 else f"one of {len(cases)} cases: {cases[0].text}"
    if got.reason in ("timed out", "too much processor time"):
        return "timed out", f"{where}: the time was over"
    if got.reason == "deadlock":
        return "failed", f"{where}: all ranks wait for ever\n{got.outcome.detail}"
    if got.reason == "aborted":
        return "failed", f"{where}: {got.outcome.detail}\n{without_answers(got.text)}"
    how = "" if got.reason == "ended" else f" ({got.reason})"
    if got.report is not None or expected.report is not None:
        answer = {name: (got.report or {}).get(name) for name in judged.fields}
        wanted = {name: expected.report.get(name) for name in judged.fields}
        if got.report is None:
            return "failed", f"{where}: the program ended without a report{how}\n{without_answers(got.text)}"
        if found := first_difference(wanted, answer, judged.near):
            first = got.report.get("first_difference")
            text = f"\nthe first tensor that differs from a run on one device: {str(first)[:500]}" if first else ""
            return "failed", f"{where}\n{said(judged, cases[0], 0, found)}{text}"
    for c, case in enumerate(cases if not cases[0].options else []):
        for rank, answers in enumerate(got.outputs):
            rank_text = f"rank {rank}: " if len(got.outputs) > 1 else ""
            if len(answers) <= c or "error" in answers[c]:
                ended = f"the program ended before it answered{how}\n{without_answers(got.text)}"
                why = answers[c]["error"] if len(answers) > c else ended
                return "failed", f"{case.text}\n{rank_text}{str(why)[:2000]}"
            if "outputs" not in answers[c]:
                return "failed", f"{case.text}\n{rank_text}the program gave no outputs"
            wanted = expected.outputs[rank][c]["outputs"]
            if found := first_difference(wanted, answers[c]["outputs"], judged.near):
                return "failed", f"{case.text}\n{rank_text}{said(judged, case, rank, found)}"
    if got.outcome is not None:
        if got.outcome.unreceived:
            sender, receiver, size = got.outcome.unreceived[0]
            return "failed", f"{where}: no rank received a message of {size:,} bytes from rank {sender} to rank {receiver}"
        difference = pairs_difference if judged.traffic == "pairs" else sums_difference
        if found := difference(expected.outcome.messages, got.outcome.messages):
            return "failed", f"{where}\n{found}"
        if more := dict(got.outcome.collectives - expected.outcome.collectives):
            return "failed", f"{where}\nthe ranks called {', '.join(more)}, which this exercise writes by hand"
        if not cases[0].options and (more := dict(got.outcome.given - expected.outcome.given)):
            return "failed", f"{where}\nthe ranks gave more bytes than are needed to {', '.join(more)}"
        if judged.steps and (found := steps_difference(judged, cases, expected.outcome, got.outcome)):
            return "failed", found
        if cases[0].hides and 2 * got.outcome.hidden < expected.outcome.hidden:  # on a busy machine one may be missed
            return "failed", (f"{where}\n{got.outcome.hidden} messages travel while their sender computes; {expected.outcome.hidden} can, "
                              "if it continues before they have arrived")
    return ("passed", "") if got.reason == "ended" else ("failed", f"{where}: {got.reason}")


def brief(value):
    """One number or word of an answer; of more only what it is, so that no report has a whole answer."""
    if isinstance(value, (list, dict)):
        return f"{'a list' if isinstance(value, list) else 'names'} with {len(value)} elements"
    return str(value)[:60]


def said(judged, case, rank, found):
    """A difference in words, with the exercise's own explanation where it has one, and its hint."""
    place, expected, got = found
    text = f"{place}: got {brief(got)}, expected {brief(expected)}"
    usual = not isinstance(got, float) or math.isfinite(got)
    own = judged.explain(case, rank, place, expected, got) if judged.explain and usual else None
    return "\n".join(line for line in (text, own, judged.hint and f"hint: {judged.hint}") if line)
