"""State of the processes of a job, as the kernel tells in /proc, and time limits: seconds of an idle machine, more while others keep it
busy, but not these commands. Without /proc processes seem idle."""

import os
import re
import threading
import time

STATUS = re.compile(rb"^State:\s+(.)(?s:.*)^voluntary_ctxt_switches:\s+(\d+)\nnonvoluntary_ctxt_switches:\s+(\d+)", re.MULTILINE)
TICKS = os.sysconf("SC_CLK_TCK")
SLOWEST = 20.0  # times as long as on an idle machine, at most


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


def slowness():
    """Time of a processor here over its time on the machine whose seconds are meant, from 1 to 20; or the slowness of the
    whole machine that tests/run.sh has measured."""
    if "RANKWISE_SLOWNESS" in os.environ:
        return float(os.environ["RANKWISE_SLOWNESS"])
    began_s = time.process_time()
    for _ in range(800000):  # 30 ms there
        pass
    return min(SLOWEST, max(1.0, (time.process_time() - began_s) / 0.03))


class Deadline:
    """One wall limit over several commands, in seconds of an idle machine; it counts from now on. What others than these
    commands use of the processors is added, as far as /proc/stat tells, but not while these commands sleep."""

    def __init__(self, limit_s):
        self.idle_s, self._slowness, self._began = limit_s, slowness(), time.monotonic()
        self._machine_s, self._busy_s = machine_s(), 0.0  # when it was last asked, and what was used while these were awake
        self._own_s, self._asleep, self._lock = {}, {}, threading.Lock()

    def count(self, command, processor_s, asleep):
        """Takes note of what a command has used so far, and of whether it sleeps."""
        with self._lock:
            self._ask()
            self._own_s[command], self._asleep[command] = processor_s, asleep

    def end(self, command, processor_s=None):
        """count() for a command that has ended, where more is known than before."""
        with self._lock:
            self._ask()
            self._asleep.pop(command, None)
            self._own_s[command] = processor_s or self._own_s.get(command, 0)

    def used_s(self):
        """Processor seconds of all commands so far."""
        with self._lock:
            return sum(self._own_s.values())

    def left_s(self):
        """Seconds of the clock until the end; 0 or less after it."""
        passed_s, limit_s = time.monotonic() - self._began, self.idle_s * self._slowness
        if passed_s > limit_s:
            with self._lock:
                self._ask()
                others_s = (self._busy_s - sum(self._own_s.values())) / (os.cpu_count() or 1)
            limit_s = min(self.idle_s * SLOWEST, limit_s + max(0, others_s))
        return limit_s - passed_s

    def _ask(self):
        before, self._machine_s = self._machine_s, machine_s()
        if not self._asleep or not all(self._asleep.values()):
            self._busy_s += self._machine_s - before
