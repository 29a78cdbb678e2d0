"""Replays what a dry run wrote with --script on SimGrid, whose model of a network is not ours: flows that share links.

Each rank is two processes of SimGrid on one host, one that computes and one for its queue, which tell each other by messages
without cost that a collective is handed over or has ended. Messages are eager, as on the virtual clock: they leave when they are
sent, whether or not they are asked for.
"""

import collections
import json
import os
import re
import shutil
import subprocess
import tempfile

LANES = ["compute", "communication"]
HANDED_OVER, ENDED = 1000000, 2000000  # tags between the two processes of a rank, plus the number of the collective
ALL_EAGER = 2000000000  # bytes
CONFIGURATION = {"smpi/host-speed": "1e12f", "smpi/bw-factor": "0:1", "smpi/lat-factor": "0:1", "network/TCP-gamma": 0,
                 "network/crosstraffic": 0, "network/weight-S": 0, "smpi/async-small-thresh": ALL_EAGER,
                 "smpi/send-is-detached-thresh": ALL_EAGER}  # no overheads of an MPI library, no congestion control


def installed():
    return shutil.which("smpirun") is not None


def read_script(path, steps):
    """The lines of each rank and lane, to the end of so many steps."""
    lines = collections.defaultdict(list)
    with open(path, encoding="utf-8") as file:
        for line in map(json.loads, file):
            lines[line["rank"], line["lane"]].append(line)
    for rank in {rank for rank, _ in lines}:
        computed = lines[rank, "compute"]
        marks = [i for i, line in enumerate(computed) if line["do"] == "step"]  # the beginning and the end of each step
        computed = lines[rank, "compute"] = computed[:marks[2 * steps - 1]]
        handed_over = {line["number"] for line in computed if line["do"] == "hand over"}
        queue = lines[rank, "communication"]
        ends = [i for i, line in enumerate(queue) if line["do"] == "end" and line["number"] in handed_over]
        lines[rank, "communication"] = queue[:ends[-1] + 1] if ends else []
    return lines


def process_of(rank, lane):
    return 2 * rank + LANES.index(lane)


def join_messages(lines):
    """Sets the `key` of each message, on both sides: sending process, receiving process, and a tag that no other has."""
    sent, received = collections.defaultdict(list), collections.defaultdict(list)
    for (rank, lane), own in lines.items():
        for line in own:
            for message in line.get("messages", []):
                end = (line["number"], process_of(rank, lane), message)
                if "to" in message:
                    sent[rank, message["to"], message["group"]].append(end)
                else:
                    received[message["from"], rank, message["group"]].append(end)
    tags = collections.Counter()
    for channel, out in sent.items():
        for (_, source, going), (_, target, coming) in zip(sorted(out, key=lambda end: end[0]),
                                                           sorted(received[channel], key=lambda end: end[0]), strict=True):
            tags[source, target] += 1
            going["key"] = coming["key"] = (source, target, tags[source, target])


def trace_of(rank, lane, lines):
    """The lines of one process in the language of smpirun -replay."""
    me, transfers = process_of(rank, lane), {}
    other = me ^ 1
    trace = ["init"]
    for line in lines:
        number = line.get("number")
        if line["do"] == "compute":
            trace.append(f"compute {line['ps']}")
        elif line["do"] == "start":
            transfers[number] = line.get("messages", [])
            for message in transfers[number]:
                source, target, tag = message["key"]
                trace.append(f"isend {target} {tag} {message['bytes']}" if "to" in message
                             else f"irecv {source} {tag} {message['bytes']}")
        elif line["do"] == "finish":
            trace += ["wait {} {} {}".format(*message["key"]) for message in transfers.pop(number) if "from" in message]
        elif line["do"] in ("hand over", "end"):
            trace.append(f"isend {other} {(HANDED_OVER if line['do'] == 'hand over' else ENDED) + number} 1")
        elif line["do"] in ("begin", "wait"):
            trace.append(f"recv {other} {(HANDED_OVER if line['do'] == 'begin' else ENDED) + number} 1")
    return "".join(f"{me} {action}\n" for action in trace + ["waitall", "finalize"])


def platform(ranks, latency_s, bandwidth):
    """Hosts of two processors of 1 FLOP a picosecond, each with a link of its own to all others."""
    return f"""<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
  <cluster id="job" prefix="h" suffix="" radical="0-{ranks - 1}" speed="1e12f" core="2" bw="{bandwidth}Bps" lat="{latency_s / 2}s"
           sharing_policy="SPLITDUPLEX" loopback_bw="1e18Bps" loopback_lat="0s"/>
</platform>"""


def end_of(script, latency_s, bandwidth, steps):
    """Simulated seconds from the start to the end of so many steps of the slowest rank."""
    lines = read_script(script, steps)
    join_messages(lines)
    ranks = 1 + max(rank for rank, _ in lines)
    with tempfile.TemporaryDirectory() as folder:
        def write(name, text):
            path = os.path.join(folder, name)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            return path

        traces = [write(f"trace{process_of(rank, lane)}", trace_of(rank, lane, lines[rank, lane]))
                  for rank in range(ranks) for lane in LANES]
        command = ["smpirun", "-np", str(2 * ranks), "-replay", write("traces", "\n".join(traces) + "\n"),
                   "-platform", write("platform.xml", platform(ranks, latency_s, bandwidth)),
                   "-hostfile", write("hosts", "".join(f"h{rank}\nh{rank}\n" for rank in range(ranks)))]
        done = subprocess.run(command + [f"--cfg={name}:{value}" for name, value in CONFIGURATION.items()],
                              capture_output=True, text=True, check=False)
    time = re.search(r"Simulation time ([\d.e+-]+)", done.stdout + done.stderr)
    if done.returncode != 0 or not time:
        raise AssertionError(f"smpirun failed:\n{done.stdout}{done.stderr}"[-4000:])
    return float(time[1])


def step_seconds(script, latency_s, bandwidth):
    """Simulated seconds of the second step."""
    return end_of(script, latency_s, bandwidth, 2) - end_of(script, latency_s, bandwidth, 1)
