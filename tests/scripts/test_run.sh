#!/usr/bin/env bash
# tests/run.sh: a command's status and time limit, and the end of one that takes too long.
set -uo pipefail
run="$(dirname "${BASH_SOURCE[0]}")/../run.sh"
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
wrong=0

complain() {
  echo "FAILED: $1"
  cat "$folder/err"
  wrong=1
}

expect_status() { # STATUS SLOWNESS LIMIT_S COMMAND...
  local wanted=$1 slowness=$2 status=0
  shift 2
  RANKWISE_SLOWNESS=$slowness "$run" "$@" >"$folder/out" 2>"$folder/err" || status=$?
  [ "$status" = "$wanted" ] || complain "status $status instead of $wanted: $*"
}

expect_status 0 1 600 true
expect_status 3 1 600 sh -c 'exit 3'
expect_status 124 1 600 sh -c 'exit 124'  # of the command itself, which was not cut off
grep -q 'cut off' "$folder/err" && complain 'it was not cut off'
expect_status 0 600 1 sleep 2             # it has 600 s here
# shellcheck disable=SC2016
expect_status 0 7 600 sh -c 'test "$RANKWISE_SLOWNESS" = 7'

# What is measured is a number from 1 to 20, and never none.
unset RANKWISE_SLOWNESS
# shellcheck disable=SC2016
measured=$("$run" 600 sh -c 'echo "$RANKWISE_SLOWNESS"')
awk -v measured="$measured" 'BEGIN { exit !(measured >= 1 && measured <= 20) }' || complain "it measured '$measured'"

# Processes in other sessions, that ignore signals, or that are stopped end too. Each writes down who it is.
cat >"$folder/job.sh" <<'JOB'
echo $$ >>"$0.pids"
setsid sh -c 'echo $$ >>"$0.pids"; exec sleep 1000' "$0" &
sh -c 'trap "" TERM; echo $$ >>"$0.pids"; while :; do sleep 1; done' "$0" &
sh -c 'echo $$ >>"$0.pids"; kill -STOP $$' "$0" &
wait
JOB
expect_status 124 1 3 sh "$folder/job.sh"
grep -q 'cut off after 3 s' "$folder/err" || complain 'it does not say that it was cut off'
while read -r process; do
  state=$(sed 's/.*) //; s/ .*//' "/proc/$process/stat" 2>/dev/null)
  [ "${state:-Z}" = Z ] || complain "process $process lives on"
done <"$folder/job.sh.pids"

[ "$wrong" = 0 ] && echo 'time limits hold'
exit "$wrong"
