"""One training step of a run, from what a lesson writes with --report and --trace: who computes, sends, waits and holds what.

All times are pairs of whole nanoseconds since the step began, [wall clock, virtual clock]. On each clock a step begins when
its first rank begins and ends when its last rank ends.
"""

import collections
import re

from documents import NotThere

STEP = "training step"
LANES = ["program", "hidden", "fetching", "storing"]  # of a rank: its main thread, then what runs beside it
REDUCED = {"reduce-scatter": "sharded", "all-reduce": "whole", "reduce": "whole"}
Call = collections.namedtuple("Call", "begin end collective purpose bytes receives where")


class Step:
    """The events of one step.
    @param number  which step of the trace, from 0; None for the last one, whose traffic the report has."""

    def __init__(self, report, trace, number=None):
        self.report, self.events = report, trace["traceEvents"]
        self.ranks = sorted({event["pid"] for event in self.events})
        if len(self.ranks) < 2:
            raise NotThere("the trace has one rank only, so nothing is sent. Start the lesson with mpirun -np 2 or more")
        if not any(event["ph"] == "s" for event in self.events):
            raise NotThere("the trace has no messages. Train with a build that records them, and with --collectives=ring: the "
                           "library's own collectives and shared memory have none")
        steps = [[event for event in self.events_of(rank, "X") if event["name"] == STEP] for rank in self.ranks]
        self.made = min(map(len, steps))
        self.number = self.made - 1 if number is None else number
        if not 0 <= self.number < self.made:
            raise NotThere(f"the trace has the steps 0 to {self.made - 1}, and not {self.number}")
        self.check_report()
        self.own = [of_rank[self.number] for of_rank in steps]
        self.origin = [0, 0]
        begins, ends = zip(*map(self.times, self.own))
        self.origin = [min(clock) for clock in zip(*begins)]
        self.length = [max(clock) - first for clock, first in zip(zip(*ends), self.origin)]
        self.pieces = [self.spans_of(rank) for rank in self.ranks]
        self.memory = [self.memory_of(rank) for rank in self.ranks]
        self.messages = self.all_messages()
        self.check_traffic()
        self.calls = [self.calls_of(rank) for rank in self.ranks]
        for spans, calls in zip(self.pieces, self.calls):
            spans += map(bare, [call for call in calls if not call.purpose])
            spans.sort(key=outer_first)

    def events_of(self, rank, phase):
        return [event for event in self.events if event["pid"] == rank and event["ph"] == phase]

    def check_report(self):
        """The report is of the same run: as many ranks and steps, and each rank ends with the same bytes."""
        last = {event["pid"]: event["args"] for event in self.events if event["ph"] == "C"}
        held = [{category: of["current"] for category, of in tiers["device"].items() if of["current"]}
                for tiers in self.report["memory_ranks"]]
        traced = [{category: count for category, count in last.get(rank, {}).items() if count} for rank in self.ranks]
        if held != traced or len(self.report["loss"]) != self.made:
            raise NotThere("the report and the trace are of different runs. Write both in one run")

    def times(self, event):
        """Begin and end of an event, each a pair of nanoseconds since the step began."""
        begin = [round(1e3 * event["ts"]) - self.origin[0], event["ps"] // 1000 - self.origin[1]]
        return begin, [begin[0] + round(1e3 * event.get("dur", 0)), begin[1] + event.get("dur_ps", 0) // 1000]

    def in_step(self, event):
        """True if an event of a rank is of this step."""
        (begin, _), (first, last) = self.times(event), self.times(self.own[event["pid"]])
        return first[0] <= begin[0] <= last[0]

    def spans_of(self, rank):
        """Spans of a rank, the outer ones before the inner ones."""
        found = []
        for event in filter(self.in_step, self.events_of(rank, "X")):
            begin, end = self.times(event)
            kind = event["cat"]
            if kind == "compute":
                kind = next((pass_ for pass_ in ("forward", "backward") if pass_ in event["name"]), "other")
            found.append({"name": event["name"], "kind": kind, "lane": lane_of(kind), "where": event["args"]["where"],
                          "begin": begin, "end": end})
        return sorted(found, key=outer_first)

    # ---- Messages ----------------------------------------------------------------------------------------------------

    def all_messages(self):
        """Each message from the moment its sender starts it until its receiver has it."""
        kinds = {event["tid"]: event["args"]["name"] for event in self.events if event["name"] == "thread_name"}
        arrivals = {event["id"]: event for event in self.events if event["ph"] == "f"}
        messages = []
        for event in self.events:
            if event["ph"] != "s" or not self.in_step(event):
                continue
            arrived = arrivals.get(event["id"])
            if arrived is None:
                raise NotThere(f"a message from rank {event['args']['from']} never arrives: ranks are missing in the trace")
            args, begin = event["args"], self.times(event)[0]
            end = [max(pair) for pair in zip(begin, self.times(arrived)[0])]
            purpose = args["purpose"] if args["call"] else arrived["args"]["purpose"]
            messages.append({**args, "collective": event["name"], "begin": begin, "end": end,
                             "purpose": "" if purpose == STEP else purpose, "lane": lane_of(kinds[event["tid"]])})
        return sorted(messages, key=lambda message: message["begin"][0])

    def calls_of(self, rank):
        """The collectives of a rank, and its messages outside of any, each from its first to its last message."""
        by_call = collections.defaultdict(list)
        for number, message in enumerate(self.messages):
            if rank in (message["from"], message["to"]):
                by_call[message["group"], message["call"] or -number].append(message)
        calls = []
        for own in by_call.values():
            begins = [m["begin"] for m in own if m["from"] == rank or not m["call"]] or [own[0]["begin"]]
            ends = [m["end"] for m in own if m["to"] == rank or not m["call"]] or [own[-1]["end"]]
            calls.append(Call([min(clock) for clock in zip(*begins)], [max(clock) for clock in zip(*ends)],
                              own[0]["collective"], own[0]["purpose"], own[0]["all_bytes"],
                              any(m["to"] == rank for m in own), own[0]["where"]))
        return sorted(calls)

    def traffic(self):
        """{axis: bytes} of rank 0 that the formulas are about."""
        return {axis: sum(m["bytes"] for m in self.messages
                          if m["from"] == 0 and m["counted"] and (m["group"] + " ").startswith(axis + " "))
                for axis in self.report["traffic"]}

    def check_traffic(self):
        """The report has the bytes that the messages have."""
        for axis, here in self.traffic().items():
            there = self.report["traffic"][axis]["bytes"]
            if here != there:
                raise NotThere(f"rank 0 sends {here:,} bytes along {axis} in messages of the trace and {there:,} in the "
                               "report. Write both in one run, with --collectives=ring")

    # ---- Memory ------------------------------------------------------------------------------------------------------

    def memory_of(self, rank):
        """Bytes by category when the step begins, and the changes: [time, category, bytes more or less]."""
        held, changes, last = {}, [], None
        for event in self.events_of(rank, "C"):
            now = event["args"]
            if event["ts"] < self.own[rank]["ts"]:
                held = last = now
            elif self.in_step(event):
                if last is None:
                    raise NotThere(f"the trace does not say what memory rank {rank} has before its step")
                changes += [[self.times(event)[0], category, now[category] - last[category]]
                            for category in now if now[category] != last[category]]
                last = now
        return held, changes

    def freed(self, rank, call):
        """Moment at which the buffer of a gather is freed; None if it is kept. Of units of one size the first to be gathered
        is the first to be freed."""
        alike = [other for other in self.calls[rank] if (other.collective, other.bytes) == (call.collective, call.bytes)]
        frees = [time for time, category, change in self.memory[rank][1] if (category, change) == ("parameters", -call.bytes)]
        return frees[alike.index(call)] if len(frees) == len(alike) else None

    # ---- Tensors -----------------------------------------------------------------------------------------------------

    def tensors(self):
        """States of the tensors that messages are about: [{name, passing, places, ranks: [[time, state] ...] of each}].

        A gather makes a tensor whole that was sharded, until its buffer is freed. A reduction makes partial sums, which
        the backward pass has added up, whole or sharded. What is sent outside of a collective is passing: it is used and
        gone. Before the first state nothing is known. A rank has a place among those that share the tensor: [index, of]."""
        names = {}
        for rank in self.ranks:
            for call in self.calls[rank]:
                if call.purpose:
                    states = names.setdefault((call.collective, call.purpose), [[] for _ in self.ranks])
                    states[rank] += self.states_of(rank, call)
        rows = [{"name": tensor_name(*key), "passing": key[0] == "send", "places": self.places(*key),
                 "ranks": [sorted(of, key=lambda s: s[0][0]) for of in ranks]} for key, ranks in names.items()]
        return sorted(rows, key=tensor_order)

    def places(self, collective, purpose):
        """[index, of] of each rank among the ranks that messages about a tensor connect."""
        group = {rank: {rank} for rank in self.ranks}
        for message in self.messages:
            if (message["collective"], message["purpose"]) == (collective, purpose):
                together = group[message["from"]] | group[message["to"]]
                group.update({rank: together for rank in together})
        return [[sorted(group[rank]).index(rank), len(group[rank])] for rank in self.ranks]

    def states_of(self, rank, call):
        """The states of a call's tensor: before, on its way, after."""
        states = [[call.begin, "on its way"]]
        if call.collective in REDUCED:
            states.append([call.end, REDUCED[call.collective]])
            for since in self.partial_since(rank, call):
                states += [[[-1, -1], "nothing"], [since, "partial"]]
        elif call.collective == "all-gather":
            freed = self.freed(rank, call)
            states.append([call.end, "whole"])
            if freed:
                states += [[[-1, -1], "sharded"], [freed, "sharded"]]
        else:
            used = [span["end"] for span in self.pieces[rank] if span["name"] == call.purpose and span["kind"] != "waiting"]
            states += [[call.end, "whole" if call.receives else "nothing"]] + [[end, "nothing"] for end in used]
        return states

    def partial_since(self, rank, call):
        """Moment at which the backward pass began to add to the operand of a reduction, as a list of at most one moment. A
        bucket with the name of a unit has also the units above it, up to the next one with a bucket of its own."""
        own = unit_of(call.purpose)
        if own is None:
            passes = [span["begin"] for span in self.pieces[rank] if span["kind"] == "backward"]
            return passes[:1] if "gradient" in call.purpose else []
        done = [(unit_of(span["name"]), span["begin"]) for span in self.pieces[rank]
                if span["name"].startswith("backward pass of unit") and span["end"][0] <= call.begin[0]]
        others = {unit_of(other.purpose) for other in self.calls[rank] if other.collective in REDUCED} - {own}
        since = []
        for unit, begin in reversed(done):
            if since and (unit in others or unit <= own):
                break
            if since or unit == own:
                since = [begin]
        return since


def outer_first(span):
    """The order of spans: by time, the outer before the inner ones."""
    return span["begin"][0], -span["end"][0]


def bare(call):
    """The span of a collective that the step calls itself, outside of any span: it is communication, too."""
    return {"name": call.collective, "kind": "exposed", "lane": 0, "where": call.where, "begin": call.begin, "end": call.end}


def lane_of(kind):
    """The lane of a kind of work."""
    return LANES.index(kind) if kind in LANES else 0


def unit_of(words):
    """The number of the unit that a text speaks of; None without one."""
    found = re.search(r"unit (\d+)", words)
    return int(found[1]) if found else None


def tensor_name(collective, purpose):
    """The tensor that a collective is about, in words."""
    known = re.fullmatch(r"(gathering|bucket of) unit (\d+)", purpose)
    if known:
        return f"unit {known[2]}, {'parameters' if known[1] == 'gathering' else 'gradients'}"
    return purpose if collective == "send" else f"{purpose}: {collective}"


def tensor_order(row):
    """Units in order, parameters before gradients; then what has no unit, in the order of time."""
    unit = unit_of(row["name"])
    return unit is None, row["name"].endswith("gradients"), unit or 0, min(states[0][0] for states in row["ranks"] if states)
