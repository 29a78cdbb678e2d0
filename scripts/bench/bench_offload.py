"""From what the reports of lessons 06 and 07 say of their time to a table: the price of a model state that lies elsewhere.
Nothing here measures."""

import statistics

from bench_tables import against, text_table

SEQUENCES = [1, 4, 16]  # a rank; of 64 tokens
PLACES = ["ZeRO-3", "host", "disk", "clipping"]  # the last one: on disk, where the update waits for the gradients' norm
FLOOR = 0.90   # least tokens/s with everything on the host, over those of lesson 06
LIMIT = 1.25   # longest step with everything on disk and --clip=0, over the longer of its arithmetic and its transfers
ROUNDS = 3


def commands(build, text, folder):
    """Commands by (sequences, place): 2 ranks, four steps."""
    disk = f"--tier=disk:{folder}"
    offloaded = {"ZeRO-3": ["06_zero3", "--clip=0"], "host": ["07_offload", "--tier=host", "--clip=0"],
                 "disk": ["07_offload", disk, "--clip=0"], "clipping": ["07_offload", disk]}
    return {(sequences, place): ["mpirun", "-np", 2, build / "lessons" / offloaded[place][0], "--model=gpt2",
                                 f"--global-batch={2 * sequences}", "--sequence=64", "--steps=4", f"--data={text}",
                                 *offloaded[place][1:]]
            for sequences in SEQUENCES for place in PLACES}


def transfer_s(report):
    """Seconds that the disk by itself, reading and writing at the same time, would need for the bytes of a step."""
    links = report["links"]
    return 1e-9 * (links["disk to host"]["bytes"] + links["host to disk"]["bytes"]) / links["disk"]["GBps"]


def step_s(report):
    return report["time"]["step_s"]


def to_bound(turn, sequences, place):
    """A step on disk over the longer of arithmetic and transfers: a step on the host, and the disk by itself."""
    report = turn[sequences, place]
    return step_s(report) / max(step_s(turn[sequences, "host"]), transfer_s(report))


def offload_table(turns):
    """Steps of each place, for each batch; `turns` has the reports by (sequences, place) for each round."""
    def median_ms(of):
        return f"{1e3 * statistics.median(of(turn) for turn in turns):.0f}"

    rows = [["sequences", "ZeRO-3", "host", "to ZeRO-3", "floor", "disk", "disk alone", "to the longer", "limit", "clipping",
             "disk alone", "to the longer"],
            ["a rank", "ms", "ms", "speed", "", "ms", "ms", "time", "", "ms", "ms", "time"]]
    for n in SEQUENCES:
        speed = statistics.median(step_s(turn[n, "ZeRO-3"]) / step_s(turn[n, "host"]) for turn in turns)
        time, clipping = (statistics.median(to_bound(turn, n, place) for turn in turns) for place in ("disk", "clipping"))
        rows.append([str(n), median_ms(lambda turn, n=n: step_s(turn[n, "ZeRO-3"])),
                     median_ms(lambda turn, n=n: step_s(turn[n, "host"])), f"{speed:.3f}", against(FLOOR, speed),
                     median_ms(lambda turn, n=n: step_s(turn[n, "disk"])),
                     median_ms(lambda turn, n=n: transfer_s(turn[n, "disk"])), f"{time:.2f}",
                     f"{LIMIT:.2f} {'met' if time <= LIMIT else 'above'}",
                     median_ms(lambda turn, n=n: step_s(turn[n, "clipping"])),
                     median_ms(lambda turn, n=n: transfer_s(turn[n, "clipping"])), f"{clipping:.2f}"])
    return text_table(rows)
