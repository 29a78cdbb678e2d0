#!/usr/bin/env bash
# Climbs the ladder: builds, runs every lesson on the embedded data, and prints one table.
#
#   scripts/ladder.sh [--ranks=N] [OPTION OF THE LESSONS]...
#   scripts/ladder.sh --ranks=4 --model=mini --steps=3
#
# Each lesson runs twice. The first run, with the options given here (20 steps of the nano model unless told otherwise),
# shows loss, time, memory, traffic and checks. Without options it also shows the deviation from exact arithmetic after
# 10 steps (--compare=10), since the bounds are claimed for nano with default options. The second, 5 steps of nano in
# exact arithmetic, shows the digest: the same parameters to the last bit, whatever the lesson.
# Status 1: a check failed or a run broke; 2: a wrong option.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

ranks=4
options=()
steps=(--steps=20)
for option in "$@"; do
  case $option in
    --ranks=*) ranks=${option#--ranks=} ;;
    --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit 0 ;;
    --steps* | --epochs*) steps=(); options+=("$option") ;;
    *) options+=("$option") ;;
  esac
done
if ((${#options[@]} == 0)); then options=(--compare=10); fi
if ! [[ $ranks =~ ^[1-9][0-9]*$ ]]; then
  echo "error: --ranks=$ranks is not a number of ranks. Use a whole number, 1 or more: --ranks=4" >&2
  exit 2
fi

scripts/setup.sh
scripts/build.sh release lessons
source scripts/mpi_environment.sh

reports=build/ladder
rm -rf "$reports"
mkdir -p "$reports"

# run LESSON KIND OPTION...: one run of a lesson, whose report is left in build/ladder/LESSON.KIND.json. A failed check
# is told by the table; a run that left no report is shown here; a wrong option ends the ladder, as it is wrong for all.
run() {
  local lesson=$1 kind=$2 launcher=(mpirun -np "$ranks") status=0
  shift 2
  if [[ $lesson == 01_* ]]; then launcher=(); fi  # lesson 01 is about one device
  echo "Running lesson $lesson ($kind) ..." >&2
  "${launcher[@]}" "build/lessons/$lesson" "$@" --report="$reports/$lesson.$kind.json" \
    >"$reports/$lesson.$kind.txt" 2>&1 </dev/null || status=$?
  if [[ ! -e $reports/$lesson.$kind.json ]]; then cat "$reports/$lesson.$kind.txt" >&2; fi
  if ((status == 2)); then exit 2; fi
}

for program in build/lessons/[0-9][0-9]_*; do
  lesson=$(basename "$program")
  run "$lesson" fast "${steps[@]}" "${options[@]}"
  run "$lesson" exact --steps=5 --arithmetic=exact
done

echo
scripts/ladder_table.py "$reports"
