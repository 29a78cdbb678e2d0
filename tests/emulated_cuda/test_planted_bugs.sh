#!/usr/bin/env bash
# Bugs of each kind are noticed in an emulated run: test_planted_bugs.sh PLANTED_BUGS [sanitized]
#
# The program without a bug succeeds with ten seeds; each bug shows with at least one of them. With "sanitized" the
# program was built with AddressSanitizer, which ends it where memory is touched that must not be.
set -uo pipefail
program=$1
kind=${2:-plain}

# caught_by BUG: seeds that notice it, and what the first of them says.
caught_by() {
  local seed text seeds=""
  for seed in 1 2 3 4 5 6 7 8 9 10; do
    if ! text=$(EMULATED_CUDA_SEED=$seed "$program" "$1" 2>&1); then
      [ -n "$seeds" ] || first=$text
      seeds="$seeds $seed"
    fi
  done
  caught=$seeds
}

status=0
# expect BUG TEXT: some seed notices it, with words in which TEXT occurs.
expect() {
  first=""
  caught_by "$1"
  if [ -z "$caught" ] || ! grep -q -- "$2" <<<"$first"; then
    echo "FAILED: $1 should be caught with \"$2\"; seeds that caught it:${caught:- none}; $first"
    status=1
  else
    echo "$1: caught by seeds$caught: $(grep -m1 -- "$2" <<<"$first")"
  fi
}

first=""
caught_by none
if [ -n "$caught" ]; then
  echo "FAILED: the program without a bug fails with seeds$caught: $first"
  status=1
fi
expect missing_barrier "wrong result"
expect hurried_warp "wrong result"
expect missing_wait "wrong result"
expect wrong_mask "wrong warp mask 0x7fffffff"
if [ "$kind" = sanitized ]; then
  expect write_before "AddressSanitizer: use-after-poison"
  expect write_behind "AddressSanitizer: use-after-poison"
  expect host_access "AddressSanitizer: use-after-poison"
else
  expect write_before "set_ones wrote just before or behind an allocation of 512 bytes"
  expect write_behind "set_ones wrote just before or behind an allocation of 512 bytes"
fi
exit $status
