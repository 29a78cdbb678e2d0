#!/usr/bin/env bash
# Builds lesson 01 in every way there is a compiler for, and compares the digests of a short run in exact arithmetic:
# release and debug, g++ and clang++, for this processor and for any.
#
#   tests/lessons/test_builds.sh FOLDER      (the builds are left there)
set -euo pipefail
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
folder=$1
first=
status=0

# try NAME CMAKE-OPTION...: one build and its digest.
try() {
  local name=$1 digest
  shift
  cmake -G Ninja -S "$source" -B "$folder/$name" -DRANKWISE_TESTS=OFF "$@" >/dev/null
  cmake --build "$folder/$name" --target 01_single_device >/dev/null
  digest=$("$folder/$name/lessons/01_single_device" --arithmetic=exact --steps=3 --dropout=0.1 --micro-batch=4 |
    sed -n 's/^# digest //p')
  echo "$name: $digest"
  : "${first:=$digest}"
  if [[ -z $digest || $digest != "$first" ]]; then status=1; fi
}

try gcc-release -DCMAKE_C_COMPILER=gcc -DCMAKE_CXX_COMPILER=g++ -DCMAKE_BUILD_TYPE=Release
try gcc-debug -DCMAKE_C_COMPILER=gcc -DCMAKE_CXX_COMPILER=g++ -DCMAKE_BUILD_TYPE=Debug
try gcc-any-processor -DCMAKE_C_COMPILER=gcc -DCMAKE_CXX_COMPILER=g++ -DCMAKE_BUILD_TYPE=Release -DRANKWISE_NATIVE=OFF
if command -v clang++ >/dev/null; then
  try clang-release -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=Release
  try clang-debug -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=Debug
fi
exit $status
