#!/usr/bin/env bash
# Shows what the program of a lesson changes in the one it builds on:  scripts/diff.sh 04      (or: make diff-04)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# program NN: the path of a lesson's program.
program() {
  local found=(lessons/"$1"_*/"$1"_*.cpp)
  if [[ ! -e ${found[0]} ]]; then
    echo "error: there is no lesson $1; there are: $(cd lessons && echo [0-9][0-9]_*)" >&2
    exit 2
  fi
  echo "${found[0]}"
}

lesson=${1:?which lesson? for instance: scripts/diff.sh 01}
new=$(program "$lesson")
earlier=$(sed -n 's|^// Builds on: *lesson \([0-9][0-9]\).*|\1|p' "$new" | head -n 1)
if [[ -z $earlier ]]; then
  echo "Lesson $lesson builds on no other lesson: there is nothing before it."
  exit 0
fi
old=$(program "$earlier")

# git diff says 1 for "they differ", which is what we hope for.
git diff --no-index --histogram "$old" "$new" || (($? == 1))
