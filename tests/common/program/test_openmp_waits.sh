#!/usr/bin/env bash
# Threads of OpenMP spin as briefly as the program wants, whatever its environment says when it is launched; and of that the
# program is as it was: its name, its arguments, its status.
#
#   tests/common/program/test_openmp_waits.sh PROGRAM     (a lesson, built)
set -uo pipefail
program=$1
wrong=0
complain() { echo "FAILED: $1"; wrong=1; }

# As libgomp itself tells what it has read, once a process.
spins() { env "$@" OMP_DISPLAY_ENV=verbose "$program" --help 2>&1 >/dev/null | sed -n "s/^ *\(\[host\] \)\?GOMP_SPINCOUNT = '\(.*\)'$/\2/p"; }
brief=$(sed -n 's/.*"GOMP_SPINCOUNT=\([0-9]*\)", blocks_brief.*/\1/p' "$(dirname "$0")/../../../common/program/wait.cpp")
[[ $brief =~ ^[0-9]+$ ]] || complain "common/program/wait.cpp does not say for how long threads spin"

# expect SPINS VARIABLE=VALUE...: what libgomp read when the program was launched with these.
expect() {
  local wanted=$1 read
  shift
  read=$(spins "$@")
  [[ $read == "$wanted" ]] || complain "launched with $*, libgomp read a spin count of '$read', not $wanted"
}

unset OMP_WAIT_POLICY GOMP_SPINCOUNT KMP_BLOCKTIME RANKWISE_WAITS
if [[ $(ldd "$program") == *libgomp* ]]; then
  expect "$brief" NOTHING=
  expect "$brief" OMP_WAIT_POLICY=active
  expect "$brief" OMP_WAIT_POLICY=passive
  expect "$brief" GOMP_SPINCOUNT=infinite
  expect "$brief" OMP_WAIT_POLICY=active GOMP_SPINCOUNT="$brief"
  expect "$brief" OMP_WAIT_POLICY=passive GOMP_SPINCOUNT=12 KMP_BLOCKTIME=200
  expect "$brief" RANKWISE_WAITS=brief GOMP_SPINCOUNT=infinite
  expect 18446744073709551615 RANKWISE_WAITS=active
  expect 0 RANKWISE_WAITS=passive OMP_WAIT_POLICY=active
  read=$(OMP_WAIT_POLICY=active OMP_DISPLAY_ENV=verbose mpirun -np 2 "$program" --help 2>&1 | grep -c "GOMP_SPINCOUNT = '$brief'")
  [[ $read == 2 ]] || complain "$read of 2 ranks spin briefly"
fi

# What an OpenMP library loaded, and what the user sees of the process, in a run that has to be started anew.
started() {
  local name=$1
  shift
  (exec -a "$name" "$@" --steps=1000000 >/dev/null 2>&1) &
  local process=$! i
  for ((i = 0; i < 500; ++i)); do
    if tr '\0' '\n' <"/proc/$process/environ" 2>/dev/null | grep -q "^GOMP_SPINCOUNT=$brief$"; then break; fi
    sleep 0.02
  done
  printf '%s|%s|%s\n' "$(tr '\0' '\n' <"/proc/$process/environ" | grep -c '^\(GOMP_SPINCOUNT\|OMP_WAIT_POLICY\)=')" \
    "$(cat "/proc/$process/comm")" "$(tr '\0' ' ' <"/proc/$process/cmdline")"
  kill "$process"
  wait "$process" 2>/dev/null
}
if [[ -r /proc/self/environ ]]; then
  name=$(basename "$program")
  is=$(GOMP_SPINCOUNT=7 OMP_WAIT_POLICY=active started "a name" "$program")
  [[ $is == "1|${name:0:15}|a name --steps=1000000 " ]] || complain "variables, name and arguments of the process: $is"
fi

# The dynamic loader as the program that is launched: it cannot be started anew, and runs all the same.
loader=$(ldd "$program" | sed -n 's:^[[:space:]]*\(/[^ ]*/ld-linux[^ ]*\) .*:\1:p')
if [[ -n $loader ]]; then
  OMP_WAIT_POLICY=active "$loader" "$program" --help >/dev/null || complain "it does not run by $loader"
fi

says=$(RANKWISE_WAITS=patient "$program" --steps=1 2>&1)
status=$?
[[ $status == 2 && $says == *"RANKWISE_WAITS is patient."* ]] || complain "status $status for RANKWISE_WAITS=patient: $says"
exit $wrong
