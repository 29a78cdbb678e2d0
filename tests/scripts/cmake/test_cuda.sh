#!/usr/bin/env bash
# Compiles the sources for real GPUs, and links a lesson to them, where the CUDA toolkit is; whether there is a GPU does not matter:
#
#   tests/scripts/cmake/test_cuda.sh BUILD_FOLDER
#
# Nothing else would see an error in them by day: a machine without a GPU builds without them (RANKWISE_CUDA=auto). All other
# sources are the same with and without GPUs, so the lesson is linked from the objects that are in BUILD_FOLDER.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
build=$1/cuda

cmake -G Ninja -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DRANKWISE_CUDA=on -DRANKWISE_UNITY=OFF -DRANKWISE_TESTS=OFF \
      >"$1/cuda.log" 2>&1 || {
  if grep -q 'RANKWISE_CUDA=on needs' "$1/cuda.log"; then
    echo "There is no CUDA toolkit with cuBLAS and NCCL here."
    exit 77
  fi
  cat "$1/cuda.log"
  exit 1
}
mapfile -t objects < <(ninja -C "$build" -t targets all | sed -n 's|^\(CMakeFiles/.*/cuda/.*\.o\): .*|\1|p')
cmake --build "$build" --target "${objects[@]}"

# Before the libraries: what is found there is not taken from without_cuda.cpp.
link=$(ninja -C "$build" -t commands lessons/03_ddp | tail -1)
cd "$1"
bash -c "${link/-o lessons\/03_ddp/-o cuda/03_ddp ${objects[*]/#/cuda/}}"
cuda/03_ddp --steps=1 >cuda.log 2>&1 || { cat cuda.log; exit 1; }
if ldd cuda/03_ddp | grep -E 'cublas|nccl'; then
  echo "A program loads these before it knows whether it will use a GPU."
  exit 1
fi
