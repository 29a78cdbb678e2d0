#!/usr/bin/env bash
# Configures and builds one preset, with few words unless it fails:  scripts/build.sh PRESET [TARGET...]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/words.sh"
CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/.."
takes 99
preset=${1:-}
grep -qF "\"name\": \"$preset\"" CMake*Presets.json || refuse "there is no preset '$preset'." "cmake --list-presets has them all: scripts/build.sh release"
shift
targets=()
if (($#)); then targets=(--target "$@"); fi

# CMake reads what the compiler prints, and finds no library behind a quote in the name of a temporary file.
case ${TMPDIR-} in *[\'\"]*) export TMPDIR=/tmp ;; esac
log=$(mktemp)
trap 'rm -f "$log"' EXIT
quietly() {
  if ! "$@" >"$log" 2>&1; then
    grep -v '^\[.*\] [BLR][a-z]*ing ' "$log" >&2  # not the files that went well
    local command=$*
    echo "error: this failed: $(shown "${command#progress }")" >&2
    exit 1
  fi
}

# On a terminal one line shows how far the build is: ninja begins the lines of what it does with [DONE/ALL].
building() {
  if [[ -t 2 ]]; then quietly progress "$@"; else quietly "$@"; fi
}
progress() {
  "$@" | tee >(awk -F'[][]' '$2 ~ /^[0-9]+\/[0-9]+$/ { printf "\rBuilding, %s ", $2; fflush() } END { printf "\r\033[K" }' >&3)
}

# Two that write to one folder would spoil each other's files.
mkdir -p build
exec 8>>build/build.lock
if ! python3 scripts/lib/lock.py 8; then
  echo "Another build runs in this clone. This one begins when it has ended." >&2
  python3 scripts/lib/lock.py 8 wait
fi

quietly cmake --preset "$preset"
if grep -q 'compiler identification' "$log"; then  # the first time: show what was found
  sed -n '/^-- Rankwise/,/^-- Configuring/{/^-- Configuring/d; s/^-- //p}' "$log" >&2
fi
# The first build says what it will do: half a minute of a core, and two seconds for each file.
folder=$(sed -n 's/^-- Build files have been written to: //p' "$log")
if [[ ! -e $folder/.ninja_deps ]]; then
  files=$(ninja -C "$folder" -t commands "${targets[@]:1}" | grep -c ' -c ' || true)
  cores=$(getconf _NPROCESSORS_ONLN)
  minutes=$(((30 + 2 * files + 30 * cores) / (60 * cores)))
  echo "Building $files files on $cores cores, about $((minutes > 0 ? minutes : 1)) min ..." >&2
fi
SECONDS=0
building cmake --build --preset "$preset" "${targets[@]}" 3>&2
echo "Built in $SECONDS s." >&2
