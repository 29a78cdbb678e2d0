#!/usr/bin/env bash
# Runs one command of a test in the environment that MPI wants: tests/run.sh mpirun -np 3 PROGRAM
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/mpi_environment.sh"

# For the sanitize build. What Open MPI leaves behind at the end, in plug-ins that are already unloaded, cannot be told
# from leaks of ours; that our buffers are all given back is what the memory ledger is there to say.
export ASAN_OPTIONS=detect_leaks=0
# For the threads build: what MPI's own libraries do among themselves is not ours to judge.
TSAN_OPTIONS="suppressions=$(dirname "${BASH_SOURCE[0]}")/thread_sanitizer.supp ${TSAN_OPTIONS:-}"
export TSAN_OPTIONS
exec "$@"
