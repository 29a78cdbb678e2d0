#!/usr/bin/env bash
# How a job of N ranks ends when something goes wrong: with the right status, with one message, and soon.
#
#   tests/common/messages/test_program.sh N FAIL FAILING_CASES [sanitized]   (tests/programs/fail.cpp and failing_cases.cpp, built)
set -uo pipefail
ranks=$1 fail=$2 failing_cases=$3 sanitized=${4:-}
last=$((ranks - 1))
output=$(mktemp -d)
trap 'rm -r "$output"' EXIT
wrong=0

# A job that ends with an error status is cleared away at once; Open MPI 4 would wait some seconds.
export OMPI_MCA_odls_base_sigkill_timeout=0
launcher=(mpirun -np "$ranks")
if [ "$ranks" = 1 ]; then launcher=(); fi

# Runs a command on all ranks, a single one without a launcher; leaves its status in $status, its streams in $output.
# A job that hangs has status 124.
limit_s=$(awk -v slowness="${RANKWISE_SLOWNESS:-1}" 'BEGIN { print 30 * slowness }')
run() {
  timeout "$limit_s" "${launcher[@]}" "$@" >"$output/out" 2>"$output/err"
  status=$?
  ran="$*"
}

complain() {
  echo "FAILED: np $ranks, $ran: $1"
  sed 's/^/    out: /' "$output/out"
  sed 's/^/    err: /' "$output/err"
  wrong=1
}

expect_status() { [ "$status" = "$1" ] || complain "status $status instead of $1"; }

# expect COUNT STREAM PATTERN: COUNT lines of the stream match.
expect() {
  local count
  count=$(grep -c -- "$3" "$output/$2")
  [ "$count" = "$1" ] || complain "$count lines instead of $1 in $2 match '$3'"
}

# ---- Jobs that end well -----------------------------------------------------------------------------------------------

run "$fail"
expect_status 0
expect "$ranks" out '^rank [0-9]* runs$'
expect 0 out 'libraries are gone'

run "$fail" --help
expect_status 0
expect 1 out '^Usage: fail'
expect 0 out 'runs'

# ---- Impossible requests, found before the first message: reported once, by rank 0, status 2 ---------------------------

run "$fail" --hwo=error
expect_status 2
expect 1 err '^error: unknown option --hwo\.$'
expect 1 err 'Did you mean --how?'
expect 0 out 'runs'

for rank in "$last" -1; do
  run "$fail" --how=user --early --rank="$rank"
  expect_status 2
  expect 1 err '^error: --how=user was asked for\.$'
  expect 1 err '^       Ask for something else\.$'
  expect 0 out 'runs'
done

# ---- Failures on one rank while the others wait, and on all ranks: one message, status 1 -------------------------------

said="^rank [0-9]* of $ranks: "
by_last="^rank $last of $ranks: "
here='tests/programs/fail\.cpp:[0-9][0-9]*'

run "$fail" --how=error --rank="$last"
expect_status 1
expect 1 err "$said"
expect 1 err "$by_last$here: the loss is not finite, while averaging gradients ($here)\$"

run "$fail" --how=error --rank=-1
expect_status 1
expect 1 err "$said"
expect 1 err "$said$here: the loss is not finite, while averaging gradients ($here)\$"

run "$fail" --how=mpi --rank="$last"
expect_status 1
expect 1 err "$by_last$here: MPI failed at sending to nobody: \(MPI_ERR_RANK\|Invalid rank\)"

run "$fail" --how=exercise --rank="$last"
expect_status 1
expect 1 err "$by_last$here: exercise 01\.1 is not implemented: write the backward pass"

run "$fail" --how=standard --rank="$last"
expect_status 1
expect 1 err "$by_last"'out of luck, while averaging gradients'

run "$fail" --how=thread --rank="$last"
expect_status 1
expect 1 err "$by_last$here: thrown in a thread"

# Before the first message only a UserError may wait for the others.
run "$fail" --how=error --early --rank="$last"
expect_status 1
expect 1 err "$by_last$here: the loss is not finite"
expect 0 out 'runs'

# A UserError that comes too late still says what to do.
run "$fail" --how=user --rank="$last"
expect_status 2
expect 1 err '^error: --how=user was asked for\.$'
expect "$((ranks > 1))" err "^       (said by rank $last of $ranks)"

# A check that fails on one rank fails the job.
run "$fail" --how=status --rank="$last"
expect_status 1
expect 0 err "^rank "

# ---- A rank that dies: it is named, once, with what it was doing --------------------------------------------------------

doing=", while averaging gradients ($here)\$"

run "$fail" --how=terminate --rank="$last"
expect_status 1
expect 1 err "$by_last"'the program was terminated without an exception'"$doing"

for rank in "$last" -1; do
  run "$fail" --how=exit --rank="$rank"
  expect_status 1
  expect 1 err "$said"
  expect 1 err "${said}fail: exit() was called before the run had ended$doing"
done
run "$fail" --how=exit-in-thread --rank="$last"
expect_status 1
expect 1 err "${by_last}fail: exit() was called before the run had ended, while averaging gradients\$"

# The launcher takes the signal over into its status. MPICH's puts it together with the signals by which it ends other ranks.
expect_signal() {
  local expected=$((128 + $1))
  if [ "${RANKWISE_MPI:-openmpi}" != openmpi ] && [ "$status" != 0 ]; then expected=$status; fi
  expect_status "$expected"
}

# dies HOW NUMBER NAME FUNCTION: by that signal, in that function, with its line.
dies() {
  run "$fail" --how="$1" --rank="$last"
  expect_signal "$2"
  expect 1 err "$said"
  expect 1 err "${by_last}fail: $3 (.*)$doing"
  [ "$(grep -c "^$4 at .*/$here" "$output/err")" -ge 1 ] || complain "the place is not said"
  expect 0 out "$here"
}

# A sanitizer has a report of its own.
if [ -z "$sanitized" ]; then
  for limit in '-n 8' '-v 100000'; do
    run bash -c "ulimit $limit"' && exec "$0"' "$fail"
    expect_status 2
    expect 1 err "^error: ulimit $limit: MPI needs "
    expect 1 err '^error: '
  done
  program='(anonymous namespace)'
  dies segfault 11 SIGSEGV "$program::die($program::How)"
  dies overflow 11 SIGSEGV "$program::recurse(int)"
  dies bus 7 SIGBUS "$program::die($program::How)"
  dies division 8 SIGFPE "$program::die($program::How)"
  dies illegal 4 SIGILL "$program::die($program::How).*"
  dies abort 6 SIGABRT "$program::die($program::How).*"

  run "$fail" --how=segfault-in-thread --rank="$last"
  expect_signal 11
  expect 1 err "${by_last}fail: SIGSEGV (segmentation fault), while averaging gradients\$"

  run "$fail" --how=segfault --rank=-1
  expect_signal 11
  expect 1 err "$said"
  expect 1 err "${said}fail: SIGSEGV (segmentation fault)$doing"

  # Where addr2line does not work, the command for it is shown.
  mkdir "$output/bin"
  printf '#!/bin/sh\nexit 1\n' >"$output/bin/addr2line"
  chmod +x "$output/bin/addr2line"
  run env PATH="$output/bin:$PATH" "$fail" --how=segfault --rank="$last"
  expect_signal 11
  expect 1 err "${by_last}fail: SIGSEGV (segmentation fault)$doing"
  expect 1 err "^addr2line -Cfpie $fail 0x[0-9a-f]* 0x"
fi

# ---- The main function of the tests -----------------------------------------------------------------------------------

prefix="^rank $last: "
if [ "$ranks" = 1 ]; then prefix='^'; fi

run "$failing_cases" holds
expect_status 0
expect 1 out 'All tests passed (1 assertion in 1 test case)'

run "$failing_cases" 'fails on the last rank'
expect_status 1
expect 1 out "$prefix  REQUIRE( world().rank() + 1 < world().ranks() )"
expect 0 out 'SIGTERM'

run "$failing_cases" 'throws on the last rank'
expect_status 1
expect 1 out "$prefix  tests/programs/failing_cases.cpp:[0-9]*: thrown on purpose"

run "$failing_cases" --no-such-argument
expect_status 1

[ "$wrong" = 0 ] && echo "np $ranks: every job ended as it should"
exit "$wrong"
