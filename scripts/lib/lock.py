"""Locks what a descriptor of the shell is open on:  python3 scripts/lib/lock.py DESCRIPTOR [wait]

Status 1: another process has the lock. Where the file system has no locks, a warning says so.
"""

import fcntl
import sys

try:
    fcntl.flock(int(sys.argv[1]), fcntl.LOCK_EX | (0 if "wait" in sys.argv else fcntl.LOCK_NB))
except BlockingIOError:
    sys.exit(1)
except OSError as error:
    print(f"warning: nothing keeps a second one away: {error}", file=sys.stderr)
