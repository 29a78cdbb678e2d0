#!/usr/bin/env python3
"""Runs a program and adds a line to a file, the most memory that it had resident, in bytes:  max_resident.py FILE PROGRAM..."""

import resource
import subprocess
import sys

done = subprocess.run(sys.argv[2:], check=False)
with open(sys.argv[1], "a", encoding="ascii") as file:
    file.write(f"{1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss}\n")
sys.exit(done.returncode)
