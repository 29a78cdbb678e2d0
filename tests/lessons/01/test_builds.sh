#!/usr/bin/env bash
# Builds lesson 01 in other ways than it is built already, and compares the digests of a short run in exact arithmetic.
#
#   tests/lessons/01/test_builds.sh PROGRAM FOLDER    debug, release, for any processor, and with clang++ if there is one
#
# PROGRAM is the one that is there; the builds are left in FOLDER. In the debug build all lessons are compiled: it precompiles no
# headers, so a missing include is an error there.
set -euo pipefail
source=$(CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
folder=$2
first=
status=0

# compare NAME PROGRAM: the digest of a program, which is to be that of the first.
compare() {
  local digest
  digest=$("$2" --arithmetic=exact --steps=3 --dropout=0.1 --micro-batch=4 | sed -n 's/^# digest //p')
  echo "$1: $digest"
  : "${first:=$digest}"
  if [[ -z $digest || $digest != "$first" ]]; then status=1; fi
}

# try NAME C++-COMPILER CMAKE-OPTION...: one more build, and its digest.
try() {
  local name=$1 compiler=$2
  shift 2
  if ! command -v "$compiler" >/dev/null; then echo "$name: there is no $compiler here"; return; fi
  cmake -G Ninja -S "$source" -B "$folder/$name" -DRANKWISE_TESTS=OFF -DRANKWISE_CUDA=off -DCMAKE_CXX_COMPILER="$compiler" "$@" >/dev/null
  cmake --build "$folder/$name" --target 01_single_device >/dev/null
  compare "$name" "$folder/$name/lessons/01_single_device"
}

compare "as it is" "$1"
try g++-debug g++ -DCMAKE_BUILD_TYPE=Debug
cmake --build "$folder/g++-debug" --target lessons >/dev/null
try g++-release g++ -DCMAKE_BUILD_TYPE=Release
try g++-any-processor g++ -DCMAKE_BUILD_TYPE=Release -DRANKWISE_NATIVE=OFF
try clang++-release clang++ -DCMAKE_BUILD_TYPE=Release
try clang++-debug clang++ -DCMAKE_BUILD_TYPE=Debug
exit $status
