#!/usr/bin/env bash
# Films a step of each lesson that sends messages in training:  scripts/film/films.sh [BUILD_FOLDER]
#
# Writes BUILD_FOLDER/films/NN_name.html, of the nano model on both clocks. runs.html has all of
# these runs side by side. The site of the documentation takes them from there.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../lib/words.sh"
takes 1
CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source-path=SCRIPTDIR/../..
source scripts/mpi_environment.sh
build=${1:-build}
films=$build/films
mkdir -p "$films"
exec 9>>"$films/lock"
if ! python3 scripts/lib/lock.py 9; then
  refuse "others are filmed into $films at this moment." "Wait until that has ended."
fi
runs=()

film() {  # LESSON RANKS OPTION...
  local lesson=$1 ranks=$2 run=$films/$1
  shift 2
  mpirun -np "$ranks" "$build/lessons/$lesson" "$@" --steps=2 --link=20us,500MB/s --report="$run.json" --trace="$run.trace.json" >"$run.log" ||
    refuse "lesson $lesson could not be filmed." "$run.log has its output." 1
  runs+=("$run.json")
  scripts/film/film.py "$run.json" "$run.trace.json" --output="$run.html"
}

film 03_ddp 4
film 04_zero1 4
film 05_zero2 4
film 06_zero3 4
film 07_offload 4 --offload=all
film 08_tensor_parallel 2
film 09_pipeline_parallel 4 --micro-batch=4
film 10_3d_parallel 8 --dp=2 --tp=2 --pp=2
film 11_zero_bubble 4 --micro-batch=4
film 12_bert 4
film 13_mesh_zero3 4
film 14_context_parallel 4
film 15_experts 4
film 16_five_axes 8
scripts/page/compare_runs.py "${runs[@]}" --output="$films/runs.html"
