#!/usr/bin/env bash
# Runs the tests that have to do with GPUs on emulated ones, under AddressSanitizer:
#
#   tests/emulated_cuda/test_emulated_gpus.sh          kernels and collectives, with one order of threads and streams
#   tests/emulated_cuda/test_emulated_gpus.sh --all    all of them with ten orders, and lessons in all combinations
#
# By day only code for GPUs is compiled for this and watched; it is linked to what is in the build folder. --all compiles everything
# (build-emulated/).
set -euo pipefail
CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/../.."

if [[ ${1:-} != --all ]]; then
  build=$(realpath "${RANKWISE_BUILD:-build}")
  cmake -G Ninja -S . -B "$build/emulated" -DCMAKE_BUILD_TYPE=Sanitize -DRANKWISE_CUDA=emulated -DRANKWISE_HOST_BUILD="$build" \
        >"$build/emulated.log" 2>&1 || { cat "$build/emulated.log"; exit 1; }
  cmake --build "$build/emulated" --target gpu_unit_tests
  cd "$build/emulated"
  exec ctest --output-on-failure -j 5 -L gpu -E 'lessons_on|gpu_speed'
fi

scripts/build.sh emulated gpu_tests
export RANKWISE_ALL=1
for seed in 1 2 3 4 5 6 7 8 9 10; do
  echo "seed $seed"
  EMULATED_CUDA_SEED=$seed ctest --preset emulated -E lessons_on_gpu
done
exec ctest --preset emulated -R lessons_on_gpu --timeout 3600
