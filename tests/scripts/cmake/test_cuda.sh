#!/usr/bin/env bash
# Compiles the sources for real GPUs and links lessons to them, where the CUDA toolkit is; whether there is a GPU does not matter:
#
#   tests/scripts/cmake/test_cuda.sh BUILD_FOLDER
#
# Such a build is for machines with a GPU alone (RANKWISE_CUDA=auto), so nothing else would see an error in them by day.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
build=$1/cuda

cmake -G Ninja -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DRANKWISE_CUDA=on -DRANKWISE_TESTS=OFF >"$1/cuda.log" 2>&1 || {
  if grep -q 'RANKWISE_CUDA=on needs' "$1/cuda.log"; then
    echo "There is no CUDA toolkit with cuBLAS and NCCL here."
    exit 77
  fi
  cat "$1/cuda.log"
  exit 1
}
cmake --build "$build" --target 03_ddp
"$build/lessons/03_ddp" --steps=1 >"$1/cuda.log" 2>&1 || { cat "$1/cuda.log"; exit 1; }
