#!/usr/bin/env bash
# Configures and builds one preset, with few words unless it fails:  scripts/build.sh PRESET [TARGET...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
preset=${1:?say which preset: cmake --list-presets has them}
shift
targets=()
if (($#)); then targets=(--target "$@"); fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
quietly() {
  if ! "$@" >"$log" 2>&1; then
    grep -v '^\[.*\] [BLR][a-z]*ing ' "$log" >&2  # not the files that went well
    echo "error: this failed: $*" >&2
    exit 1
  fi
}

quietly cmake --preset "$preset"
if grep -q 'compiler identification' "$log"; then  # the first time: show what was found
  sed -n '/^-- Rankwise/,/^-- Configuring/{/^-- Configuring/d; s/^-- //p}' "$log" >&2
fi
SECONDS=0
quietly cmake --build --preset "$preset" "${targets[@]}"
echo "Built in $SECONDS s." >&2
