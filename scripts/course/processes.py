"""State of the processes of a job, as the kernel tells in /proc. Without /proc they seem idle."""

import os
import re
import time

STATUS = re.compile(rb"^State:\s+(.)(?s:.*)^voluntary_ctxt_switches:\s+(\d+)\nnonvoluntary_ctxt_switches:\s+(\d+)", re.MULTILINE)
TICKS = os.sysconf("SC_CLK_TCK")


def _read(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:  # it has just ended
        return b""


def family_of(process_ids):
    """The threads of processes and of their descendants: (process, names of its threads)."""
    todo = [str(process) for process in process_ids]
    while todo:
        process = todo.pop()
        try:
            threads = os.listdir(f"/proc/{process}/task")
        except OSError:
            continue
        yield process, threads
        for thread in threads:
            todo += _read(f"/proc/{process}/task/{thread}/children").decode().split()


def sleep_of(process_ids, awake=b"RD"):
    """Numbers of times that each thread has fallen asleep so far; None while one is in one of the states `awake`: it runs,
    or would if a processor were free (R), or waits for a disk or as if for one (D)."""
    counts = {}
    for process, threads in family_of(process_ids):
        for thread in threads:
            status = STATUS.search(_read(f"/proc/{process}/task/{thread}/status"))
            if status and status[1] in awake:
                return None
            counts[process, thread] = status and status.groups()
    return counts


class Stillness:
    """True once no thread of a job has run for a while. A thread that has no processor only because others have it is awake."""

    def __init__(self, process_ids, seconds, awake=b"RD"):
        self.process_ids, self.seconds, self.awake = list(process_ids), seconds, awake
        self._sleep, self._since, self._looked = None, 0.0, 0.0

    def interrupt(self):
        """Forgets the observations so far."""
        self._sleep, self._since = None, time.monotonic()

    def lasts(self):
        """Looks, though not at each call."""
        now = time.monotonic()
        if now - self._looked > self.seconds / 5:
            self._looked, before, self._sleep = now, self._sleep, sleep_of(self.process_ids, self.awake)
            if self._sleep is None or self._sleep != before:
                self._since = now
        return self._looked - self._since > self.seconds


def processor_s(process_id):
    """Processor seconds of a process and its descendants, and of those that have ended if somebody has waited for them."""
    stats = [_read(f"/proc/{process}/stat").rpartition(b")")[2].split() for process, _ in family_of([process_id])]
    return sum(int(field) for stat in stats for field in stat[11:15]) / TICKS


def machine_s():
    """Seconds that the processors of the machine have worked, or were taken from it."""
    fields = _read("/proc/stat").split(b"\n")[0].split()[1:9]
    return sum(int(field) for number, field in enumerate(fields) if number not in (3, 4)) / TICKS  # but idle, and idle for a disk
