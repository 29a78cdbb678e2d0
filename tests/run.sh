#!/usr/bin/env bash
# Runs one command of a test in the environment that MPI wants, and ends it with all its processes if it takes too long:
#
#   tests/run.sh LIMIT_S mpirun -np 3 PROGRAM
#
# With RANKWISE_TEST=NAME the seconds that it took (elapsed, user's and kernel's) are left in RANKWISE_BUILD/times/NAME.
#
# The limit is for an idle machine. Here it is RANKWISE_SLOWNESS times as long, which is measured before the command starts,
# and which the command finds in its environment for time limits of its own. The exit status is 124 if it was cut off.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/mpi_environment.sh"
limit_s=$1
shift

# For the sanitize build. What Open MPI leaves behind at the end, in plug-ins that are already unloaded, cannot be told
# from leaks of ours; that our buffers are all given back is what the memory ledger is there to say.
export ASAN_OPTIONS=detect_leaks=0
# For the threads build: what MPI's own libraries do among themselves is not ours to judge.
TSAN_OPTIONS="suppressions=$(dirname "${BASH_SOURCE[0]}")/thread_sanitizer.supp ${TSAN_OPTIONS:-}"
export TSAN_OPTIONS

# How many times longer than on an idle machine things take: by how long a short loop takes now, which 30 ms are normal for,
# and by the processes that shared a core during the last minute. From 1 to 20.
slowness() {
  local LC_ALL=C TIMEFORMAT='%R %U' load=0 cores
  cores=$(getconf _NPROCESSORS_ONLN)
  if [ -r /proc/loadavg ]; then read -r load _ </proc/loadavg; fi
  { time for ((i = 0; i < 20000; ++i)); do :; done; } 2>&1 | awk -v load="$load" -v cores="$cores" '{
    slowness = $1 / 0.03; shared = $2 / 0.03 * load / cores
    if (slowness < shared) slowness = shared
    print (slowness < 1 ? 1 : slowness > 20 ? 20 : slowness) }'
}
export RANKWISE_SLOWNESS="${RANKWISE_SLOWNESS:-$(slowness)}"
limit_s=$(awk -v limit="$limit_s" -v slowness="$RANKWISE_SLOWNESS" 'BEGIN { printf "%.0f", limit * slowness }')

if ! command -v timeout >/dev/null; then exec "$@"; fi

# All processes of a command have its mark in their environment, wherever they are and whoever started them.
mark="run-$$-$RANDOM"
status=0
times=/dev/null
if [ -n "${RANKWISE_TEST:-}" ]; then times=$RANKWISE_BUILD/times/$RANKWISE_TEST; mkdir -p "${times%/*}"; fi
TIMEFORMAT='%R %U %S'
exec 3>&2
{ time RANKWISE_RUNS="${RANKWISE_RUNS:-} $mark" RANKWISE_TEST='' timeout --foreground --kill-after=5 "$limit_s" "$@" 2>&3; } \
  2>"$times" || status=$?
if [ "$SECONDS" -lt "$limit_s" ]; then exit "$status"; fi
for signal in TERM KILL; do
  grep -lsF -- "$mark" /proc/[0-9]*/environ | cut -d/ -f3 |
    while read -r process; do kill -s "$signal" "$process" 2>/dev/null || true; done || true
  sleep 1
done
echo "tests/run.sh: cut off after $limit_s s, on a machine that takes $RANKWISE_SLOWNESS times as long as an idle one" >&2
exit 124
