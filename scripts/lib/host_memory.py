#!/usr/bin/env python3
"""The memory of this machine that processes may take: of the machine, of the control groups around them, of ulimit.

    scripts/lib/host_memory.py          prints the MiB that are left, and what limits them

common/memory/host_memory.cpp looks at the same when a lesson starts.
"""

import os
import pathlib
import re
import resource

from documents import plain_words, run_script

# Root of the control groups of a version, limit, usage, and what the pages of files are called in memory.stat.
VERSIONS = {1: ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
            2: ("/sys/fs/cgroup", "memory.max", "memory.current", "")}


def number_in(path, word=""):
    """The number after a word that begins a line; None without one."""
    try:
        found = re.search(rf"^{word}\s*(\d+)", pathlib.Path(path).read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) if found else None


def groups():
    """Folder and version of each control group that this process may be limited by."""
    try:
        lines = pathlib.Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        version = 1 if "memory" in controllers.split(",") else 2 if not controllers else None
        if version:
            root = pathlib.Path(VERSIONS[version][0])
            folder = root / group.lstrip("/")
            yield from ((above, version) for above in [folder, *folder.parents] if above.is_relative_to(root))


def limits(used):
    """Bytes, what limits them, and whether all processes share them: all that there are, or less what is `used`."""
    memory = number_in("/proc/meminfo", "MemAvailable:" if used else "MemTotal:")
    every = [(1024 * memory if memory else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), "this machine", True)]
    for folder, version in groups():
        _, limit, usage, pages = VERSIONS[version]
        most, taken = number_in(folder / limit), number_in(folder / usage)
        if most is None or taken is None:
            continue
        files = sum(number_in(folder / "memory.stat", f"{pages}{kind}_file ") or 0 for kind in ("inactive", "active"))
        every.append((max(most - max(taken - files, 0), 0) if used else most, f"the control group {folder}", True))
    for name, kind in (("ulimit -v", resource.RLIMIT_AS), ("ulimit -d", resource.RLIMIT_DATA)):
        if (most := resource.getrlimit(kind)[0]) != resource.RLIM_INFINITY:
            every.append((most, name, False))
    return every


def main(words):
    plain_words(__doc__, words)
    least, owner, _ = min(limits(used=True))
    print(least >> 20, owner)


if __name__ == "__main__":
    run_script(main)
