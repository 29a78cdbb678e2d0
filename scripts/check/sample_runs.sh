#!/usr/bin/env bash
# Runs the sample runs in the header of a lesson's program, as they are written there, and then those in
# tests/lessons/NN/sample_runs.txt, one a line:
#
#   scripts/check/sample_runs.sh lessons/01_single_device/01_single_device.cpp [BUILD_FOLDER]
#
# A sample run is a line between "Sample runs:" and "Expect:"; one that begins with * needs hardware that is not
# everywhere, and is not run. Each must end with status 0.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../lib/words.sh"
takes 2
root=$(CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
[[ -f ${1:-} ]] || refuse "there is no program '${1:-}'." "Name the file of a lesson: scripts/check/sample_runs.sh lessons/03_ddp/03_ddp.cpp"
program=$(realpath "$1")
name=$(basename "$program")
further=$root/tests/lessons/${name%%_*}/sample_runs.txt
build=$(realpath "${2:-$root/build}")
printf -v quoted %q "$build"
cd "$root"
source scripts/mpi_environment.sh

log=$(mktemp)
tier=$(mktemp -d "$build/sample_runs.XXXXXX")
trap 'rm -rf "$log" "$tier"' EXIT
printf -v quoted_tier %q "$tier"
runs=0
while IFS= read -r command; do
  echo "$command"
  # The header says build/ and disk:build. The programs to try may stand in another folder. A folder of --tier=disk serves one job
  # at a time, so each call of this script uses its own.
  there=${command//build\//"$quoted"/}
  if ! bash -c "${there//disk:build/disk:"$quoted_tier"}" >"$log" 2>&1 </dev/null; then
    cat "$log"
    echo "error: this sample run of ${program#"$root"/} failed: $command" >&2
    exit 1
  fi
  runs=$((runs + 1))
done < <(
  sed -n '/^\/\/ Sample runs:/,/^\/\/ Expect:/p' "$program" |
    sed 's|^// Sample runs:||; /^\/\/ Expect:/d; s|^//||; s|^ *||; /^\*/d; /^$/d; s|  *([^()]*)$||'
  if [[ -e $further ]]; then cat "$further"; fi
)

if ((runs == 0)); then
  echo "error: ${program#"$root"/} has no sample run." >&2
  exit 1
fi
