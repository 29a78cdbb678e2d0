"""Time limits of commands: seconds of an idle machine, more while others keep it busy, but not these commands."""

import os
import threading
import time

from processes import machine_s

SLOWEST = 20.0  # times as long as on an idle machine, at most


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
