"""How long commands may take: seconds of an idle machine, more where others keep it busy, and no more where they do so themselves."""

import os
import time

from processes import machine_s

SLOWEST = 20.0  # times as long as on an idle machine, at most


def slowness():
    """How many times longer than on the machine whose seconds are meant a processor takes here, from 1 to 20; or what
    tests/run.sh has measured of the whole machine."""
    if "RANKWISE_SLOWNESS" in os.environ:
        return float(os.environ["RANKWISE_SLOWNESS"])
    began_s = time.process_time()
    for _ in range(800000):  # 30 ms there
        pass
    return min(SLOWEST, max(1.0, (time.process_time() - began_s) / 0.03))


class Deadline:
    """One wall limit over several commands, in seconds of an idle machine; it counts from now on. What others than these
    commands use of the processors meanwhile is added, as far as /proc/stat tells."""

    def __init__(self, limit_s):
        self.idle_s, self._slowness = limit_s, slowness()
        self._began, self._busy_s, self._own_s = time.monotonic(), machine_s(), {}

    def count(self, command, processor_s):
        """Takes note of what a command of these has used so far."""
        self._own_s[command] = processor_s

    def used_s(self):
        """Processor seconds of all commands so far."""
        return sum(self._own_s.values())

    def left_s(self):
        """Seconds of the clock until the end; 0 or less after it."""
        passed_s, limit_s = time.monotonic() - self._began, self.idle_s * self._slowness
        if passed_s > limit_s:
            others_s = (machine_s() - self._busy_s - self.used_s()) / (os.cpu_count() or 1)
            limit_s = min(self.idle_s * SLOWEST, limit_s + max(0, others_s))
        return limit_s - passed_s
