#!/usr/bin/env bash
# Compiles the sources for real GPUs, and links a lesson to them, where the CUDA toolkit is; whether there is a GPU does not matter:
#
#   tests/scripts/cmake/test_cuda.sh BUILD_FOLDER
#
# Nothing else would see an error in them by day: a machine without a GPU builds without them (RANKWISE_CUDA=auto). All other
# sources are the same with and without GPUs, so the lesson is linked to the libraries that are in BUILD_FOLDER. Kernels that will
# not run are hardly optimised: that takes two thirds of the time.
set -euo pipefail
CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
build=$1/cuda

cmake -G Ninja -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DRANKWISE_CUDA=on -DRANKWISE_HOST_BUILD="$1" -DRANKWISE_TESTS=OFF \
      -DCMAKE_CUDA_FLAGS="-Xcicc -O1 -Xptxas -O0" >"$1/cuda.log" 2>&1 || {
  if grep -q 'RANKWISE_CUDA=on needs' "$1/cuda.log"; then
    echo "There is no CUDA toolkit with cuBLAS and NCCL here."
    exit 77
  fi
  cat "$1/cuda.log"
  exit 1
}
cmake --build "$build" --target 03_ddp

cd "$1"
cuda/lessons/03_ddp --steps=1 >cuda.log 2>&1 || { cat cuda.log; exit 1; }
if ldd cuda/lessons/03_ddp | grep -E 'cublas|nccl'; then
  echo "A program loads these before it knows whether it will use a GPU."
  exit 1
fi
