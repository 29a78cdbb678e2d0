#!/usr/bin/env bash
# Runs clang-tidy on the sources that differ from a commit:  scripts/check/tidy.sh [COMMIT]
# Without a commit, on all of them. .clang-tidy says what it looks for. Any finding is an error.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../lib/words.sh"
takes 1
CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/../.."
if ! command -v clang-tidy >/dev/null; then
  refuse "clang-tidy is not installed." "Debian: apt-get install clang-tidy"
fi

# Without precompiled headers, which GCC makes and clang-tidy cannot read.
build="build-tidy"
cmake --preset release -B "$build" -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON -DRANKWISE_CUDA=off >/dev/null
sources=('common/*.cpp' 'data/*.cpp' 'gpt2/*.cpp' 'lessons/*.cpp')
if (($#)); then
  files=$(git diff --name-only --diff-filter=d "$1" -- "${sources[@]}")
else
  files=$(git ls-files -- "${sources[@]}")
fi
# What this build leaves out, as code for GPUs, has no command to compile it.
files=$(while read -r file; do if grep -qF "$PWD/$file\"" "$build/compile_commands.json"; then echo "$file"; fi; done <<<"$files")
if [[ -z $files ]]; then echo "No source differs."; exit 0; fi
xargs -P "$(nproc)" -n 1 clang-tidy --quiet -p "$build" <<<"$files"
