#!/usr/bin/env bash
# Installs what is missing, builds, runs all tests but the nightly ones, and compares the folders with their budgets.
#
#   scripts/test.sh              all of that; what CI runs
#   scripts/test.sh --quick      only what a change breaks first (ctest -L quick)
#   scripts/test.sh -R norm      other options go to ctest
#   scripts/test.sh --times      what each test of the last run took, the longest first; runs nothing
#
# Status: that of ctest; 1 if a folder is beyond its budget (scripts/check/budgets.txt).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/words.sh"
CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/.."

case ${1:-} in
  --times) exec scripts/check/budgets.py times ;;
  --quick) shift; set -- -L quick "$@" ;;
esac
for word in "$@"; do  # ctest would ignore an option that it does not know
  if [[ $word == --* ]]; then option=${word%%=*}; else option=${word:0:2}; fi
  if [[ $word == -* ]] && ! grep -qwF -e "$option" <<<"$(ctest --help)"; then
    refuse "neither test.sh nor ctest has an option $option." "ctest --help lists those of ctest."
  fi
done
scripts/setup.sh --documentation
scripts/setup.sh --grading
scripts/build.sh release
if (($#)); then exec ctest --preset release "$@"; fi
rm -rf build/times
status=0
ctest --preset release || status=$?
scripts/check/budgets.py || status=$((status ? status : 1))
exit "$status"
