#!/usr/bin/env bash
# Builds for emulated GPUs under AddressSanitizer (build-emulated/) and runs the tests that have to do with GPUs there:
#
#   tests/emulated_cuda/test_emulated_gpus.sh          kernels and collectives, with one order of threads and streams
#   tests/emulated_cuda/test_emulated_gpus.sh --all    all of them with ten orders, and lessons in all combinations
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

if [[ ${1:-} != --all ]]; then
  scripts/build.sh emulated gpu_unit_tests
  exec ctest --preset emulated -E 'lessons_on|gpu_speed'
fi

scripts/build.sh emulated gpu_tests
export RANKWISE_ALL=1
for seed in 1 2 3 4 5 6 7 8 9 10; do
  echo "seed $seed"
  EMULATED_CUDA_SEED=$seed ctest --preset emulated -E lessons_on_gpu
done
exec ctest --preset emulated -R lessons_on_gpu --timeout 3600
