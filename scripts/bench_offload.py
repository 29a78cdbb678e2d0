"""From what the reports of lessons 06 and 07 say of their time to a table: the price of a model state that lies elsewhere.
Nothing here measures."""

import statistics

from bench_tables import against, text_table

SEQUENCES = [1, 4, 16]  # a rank; of 64 tokens
PLACES = ["ZeRO-3", "host", "disk"]
FLOOR = 0.90   # least tokens/s with everything on the host, over those of lesson 06
LIMIT = 1.25   # longest step with everything on disk, over the longer of its arithmetic and its transfers
ROUNDS = 3


def commands(build, text, folder):
    """What to start, by (sequences, place): 2 ranks, four steps."""
    offloaded = {"ZeRO-3": ["06_zero3"], "host": ["07_offload", "--tier=host"],
                 "disk": ["07_offload", f"--tier=disk:{folder}"]}
    return {(sequences, place): ["mpirun", "-np", 2, build / "lessons" / offloaded[place][0], "--model=gpt2",
                                 f"--global-batch={2 * sequences}", "--sequence=64", "--steps=4", f"--data={text}",
                                 *offloaded[place][1:]]
            for sequences in SEQUENCES for place in PLACES}


def transfer_s(report):
    """What the disk by itself would need for the bytes of a step."""
    links, disk = report["links"], report["links"]["disk"]
    return 1e-9 * (links["disk to host"]["bytes"] / disk["read_GBps"] + links["host to disk"]["bytes"] / disk["write_GBps"])


def step_s(report):
    return report["time"]["step_s"]


def bound(turn, sequences):
    """The longer of arithmetic and transfers: a step with everything on the host, and the disk by itself."""
    return max(step_s(turn[sequences, "host"]), transfer_s(turn[sequences, "disk"]))


def offload_table(turns):
    """Steps of each place, for each batch; `turns` has the reports by (sequences, place) for each round."""
    def median_ms(of):
        return f"{1e3 * statistics.median(of(turn) for turn in turns):.0f}"

    rows = [["sequences", "ZeRO-3", "host", "to ZeRO-3", "floor", "disk", "disk alone", "to the longer", "limit"],
            ["a rank", "ms", "ms", "speed", "", "ms", "ms", "time", ""]]
    for n in SEQUENCES:
        speed = statistics.median(step_s(turn[n, "ZeRO-3"]) / step_s(turn[n, "host"]) for turn in turns)
        time = statistics.median(step_s(turn[n, "disk"]) / bound(turn, n) for turn in turns)
        rows.append([str(n), median_ms(lambda turn, n=n: step_s(turn[n, "ZeRO-3"])),
                     median_ms(lambda turn, n=n: step_s(turn[n, "host"])), f"{speed:.3f}", against(FLOOR, speed),
                     median_ms(lambda turn, n=n: step_s(turn[n, "disk"])),
                     median_ms(lambda turn, n=n: transfer_s(turn[n, "disk"])), f"{time:.2f}",
                     f"{LIMIT:.2f} {'met' if time <= LIMIT else 'above'}"])
    return text_table(rows)
