#!/usr/bin/env bash
# Shows what the program of a lesson changes in the one it builds on, section by section:
#
#   scripts/course/diff.sh 03          (or: make diff-03)
#
# A section begins with its ruler, // ---- Name ----, or is "The step": the lesson's class down to its first ruler. In front of
# a group of changed lines stands the function that it is in. Coloured on a terminal; COLOR=always or COLOR=never decides otherwise.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../lib/words.sh"
takes 1
CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# program NN: the path of a lesson's program.
program() {
  local found=(lessons/"$1"_*/"$1"_*.cpp)
  if [[ ! -e ${found[0]} ]]; then
    refuse "there is no lesson '$1'." "There are $(CDPATH='' cd lessons && echo [0-9][0-9]_*)."
  fi
  echo "${found[0]}"
}

# sections FILE FOLDER: writes each section of a program to a file of its own, and prints their names in order. What stands in
# the class is moved to the left, where git looks for the names of functions.
sections() {
  mkdir "$2"
  awk -v folder="$2" '
    BEGIN { name = "Beginning"; print name }
    /^class / { name = "The step"; print name; in_class = 1 }
    /^};/ { in_class = 0 }
    in_class { sub(/^  /, "") }
    /^\/\/ ---- / { name = $0; sub(/^\/\/ ---- /, "", name); sub(/ -*$/, "", name); print name }
    { print > (folder "/" name) }' "$1"
}

# section NAME: what one section changes.
section() {
  local old=$folder/old/$1 new=$folder/new/$1 note='' changes
  if [[ ! -e $old ]]; then note=' (new)' old=/dev/null; fi
  if [[ ! -e $new ]]; then note=' (gone)' new=/dev/null; fi
  # git diff says 1 for "they differ". Comments that only move sideways do not count, and line numbers within a section
  # would say nothing.
  changes=$(git diff --no-index --no-ext-diff --histogram --ignore-space-change --color="$color" "$old" "$new" ||
    (($? == 1)))
  changes=$(sed -E '/@@ -[0-9]/,$!d; s/@@ -[0-9,]+ \+[0-9,]+ @@/@@/' <<<"$changes")
  if [[ -z $changes ]]; then note=' (the same)'; fi
  printf '%s==== %s%s ====%s\n\n' "$bold" "$1" "$note" "$plain"
  if [[ -n $changes ]]; then printf '%s\n\n' "$changes"; fi
}

lesson=${1:-}
new=$(program "$lesson")
earlier=$(sed -n 's|^// Builds on: *lesson \([0-9][0-9]\).*|\1|p' "$new" | head -n 1)
if [[ -z $earlier ]]; then
  echo "Lesson $lesson builds on no other lesson: there is nothing before it."
  exit 0
fi
old=$(program "$earlier")

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
color=${COLOR:-$([[ -t 1 ]] && echo always || echo never)}
bold='' plain=''
if [[ $color == always ]]; then bold=$'\e[1;33m' plain=$'\e[m'; fi
{
  sections "$new" "$folder/new"
  sections "$old" "$folder/old"
} | awk '!seen[$0]++' >"$folder/names"

show() {
  echo "From $old to $new"
  echo
  while IFS= read -r name; do section "$name"; done <"$folder/names"
  # The README of lessons/parallel says which of its files a lesson teaches.
  local beside=() path
  for path in "${new%/*}"/*.[ch]pp; do [[ $path == "$new" ]] || beside+=("$path"); done
  while IFS= read -r path; do beside+=("lessons/parallel/$path"); done < <(
    sed -n "s/^| $lesson | \\[[^]]*\\](\\([^)]*\\)).*/\\1/p" lessons/parallel/README.md)
  if ((${#beside[@]})); then echo "Beside it: ${beside[*]}"; fi
}
if [[ -t 1 ]] && command -v less >/dev/null; then show | less -FRX; else show; fi
