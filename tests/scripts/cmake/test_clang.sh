#!/usr/bin/env bash
# Reads all sources of the libraries and lessons with clang, where that is installed, so that what only g++ accepts is noticed by day:
#
#   tests/scripts/cmake/test_clang.sh BUILD_FOLDER
#
# Nothing is generated, which would take most of the time. The CI workflow builds and tests with clang.
set -euo pipefail
CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
build=$1/clang

command -v clang++ >/dev/null || { echo "There is no clang++ here."; exit 77; }
mkdir -p "$build"
cmake -G Ninja -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ -DRANKWISE_CUDA=off \
      -DRANKWISE_TESTS=OFF -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON >"$build.log" 2>&1 || {
  grep -q 'OpenMP' "$build.log" && { echo "There is no libomp for clang here."; exit 77; }
  cat "$build.log"
  exit 1
}
python3 - "$build/compile_commands.json" <<'PYTHON' | xargs -P "$(getconf _NPROCESSORS_ONLN)" -d '\n' -n 1 bash -c
import json, re, sys

for entry in json.load(open(sys.argv[1], encoding="utf-8")):
    print(f'cd {entry["directory"]} && ' + re.sub(r" -o \S+ -c ", " -fsyntax-only ", entry["command"]))
PYTHON
