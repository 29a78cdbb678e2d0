#!/usr/bin/env bash
# Lays out all C++ sources as .clang-format says:  scripts/check/format.sh [--check]
# With --check it only names those that differ (status 1).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../lib/words.sh"
takes 0 --check
CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/../.."
action=(-i)
if (($#)); then action=(--dry-run --Werror); fi
find common gpt2 data lessons tests \( -name '*.hpp' -o -name '*.cpp' -o -name '*.cu' -o -path '*/emulated_cuda/include/*.h' \) -print0 2>/dev/null |
  xargs -0 -r clang-format "${action[@]}"
