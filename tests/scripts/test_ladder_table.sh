#!/usr/bin/env bash
# ladder_table.py: the status is 0 when all is well, and 1 when a check failed, a run broke or two digests differ.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# report LESSON.KIND PASS DIGEST [FIELDS]: writes the report of a run of 2 steps, with further fields before the others.
report() {
  : >"$folder/${1%.*}.${1##*.}.txt"
  cat >"$folder/$1.json" <<TEXT
{${4-}"lesson": "${1%.*}", "ranks": 1, "model": {"name": "nano", "parameters": 220544}, "loss": [5.5451, 5.25],
 "memory": {"parameters": {"current": 882176, "peak": 882176, "formula": 882176},
            "staging": {"current": 0, "peak": 0, "formula": 0}},
 "traffic": {"dp": {"bytes": 1500, "messages": 2, "formula": 1500}, "tp": {"bytes": 34, "messages": 1, "formula": 34}},
 "time": {"step_s": 0.25, "tokens_per_s": 4096.4}, "digest": "$3",
 "checks": [{"name": "memory of parameters", "expected": "882,176", "measured": "882,176", "pass": $2}]}
TEXT
}

# expect STATUS TEXT WHAT: runs the table on what has been written.
expect() {
  local status=0 output
  output=$(scripts/ladder_table.py "$folder") || status=$?
  if ((status != $1)) || ! grep -qE "$2" <<<"$output"; then
    echo "$3: status $status, not $1; or no '$2' in:"
    echo "$output"
    exit 1
  fi
}

report 01_one.fast true aa
report 01_one.exact true 0123456789abcdef
expect 0 '^01_one +1 +5\.5451 +5\.2500 +250\.0 +4,096 +882,176 +1,534 +1 PASS +0123456789ab$' "all well"
report 02_two.fast true aa '"deviation": {"steps": 2, "loss": 1.23e-8, "parameters": 0.0}, '
report 02_two.exact true 0123456789abcdef
expect 0 '^02_two +1 +5\.5451 +5\.2500 +1\.2e-08 +0\.0e\+00 +250\.0 ' "a run was compared"
expect 0 '^01_one +1 +5\.5451 +5\.2500 +250\.0 ' "another was not"
report 02_two.fast true aa '"deviation": {"steps": 2, "loss": null, "parameters": 2e-8}, '
expect 0 '^02_two +1 +5\.5451 +5\.2500 +2\.0e-08 ' "a deviation is no number"
report 02_two.fast false aa
report 02_two.exact true 0123456789abcdef
expect 1 '^02_two: memory of parameters: expected 882,176' "a check failed"
report 02_two.fast true aa
report 02_two.exact true ffff
expect 1 'the digests differ' "two digests differ"
rm "$folder/02_two.exact.json"
expect 1 '^02_two: a run broke' "a run left no report"
rm "$folder"/*
expect 1 '' "no lesson at all"
