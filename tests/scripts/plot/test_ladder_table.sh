#!/usr/bin/env bash
# ladder_table.py: the status is 0 when all is well, and 1 when a check failed, a run broke or two digests differ.
set -euo pipefail
CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# report LESSON.npRANKS.KIND PASS DIGEST [FIELDS] [MODEL]: writes the report of a run of 2 steps, with further fields before the
# others.
report() {
  if [[ $2 == true ]]; then echo 0; else echo 1; fi >"$folder/$1.status"
  cat >"$folder/$1.json" <<TEXT
{${4-}"lesson": "${1%%.*}", "ranks": 1, "model": {"name": "nano", "architecture": "${5-gpt2}", "parameters": 220544}, "loss": [5.5451, 5.25],
 "memory": {"parameters": {"current": 882176, "peak": 882176, "formula": 882176},
            "staging": {"current": 0, "peak": 0, "formula": 0}},
 "memory_peak": 900000, "traffic": {"dp": {"bytes": 1500, "messages": 2, "formula": 1500}, "tp": {"bytes": 34, "messages": 1, "formula": 34}},
 "time": {"step_s": 0.25, "tokens_per_s": 4096.4}, "digest": "$3",
 "checks": [{"name": "memory of parameters", "expected": "882,176", "measured": "882,176", "pass": $2}]}
TEXT
}

# expect STATUS TEXT WHAT [OPTION]: runs the table on what has been written; the wide one unless OPTION is --.
expect() {
  local status=0 output
  output=$(scripts/plot/ladder_table.py "$folder" "${4---wide}") || status=$?
  if ((status != $1)) || ! grep -qE "$2" <<<"$output"; then
    echo "$3: status $status, not $1; or no '$2' in:"
    echo "$output"
    exit 1
  fi
}

report 01_one.np1.fast true aa
report 01_one.np1.exact true 0123456789abcdef
expect 0 '^01_one +1 +5\.5451 +5\.2500 +250\.0 +4,096 +882,176 +1,534 +1 PASS +0123456789ab$' "all well"
expect 0 '^01_one +1 +5\.2500 +250\.0 +900,000 +1,534 +1 PASS +0123456789ab$' "the narrow table" --
report 02_two.np1.fast true aa '"deviation": {"steps": 2, "loss": 1.23e-8, "parameters": 0.0}, '
report 02_two.np1.exact true 0123456789abcdef
expect 0 '^02_two +1 +5\.5451 +5\.2500 +1\.2e-08 +0\.0e\+00 +250\.0 ' "a run was compared"
expect 0 '^01_one +1 +5\.5451 +5\.2500 +250\.0 ' "another was not"
report 02_two.np1.fast true aa '"deviation": {"steps": 2, "loss": null, "parameters": 2e-8}, '
expect 0 '^02_two +1 +5\.5451 +5\.2500 +2\.0e-08 ' "a deviation is no number"
report 02_two.np1.fast true aa
expect 0 ' tokens/s +peak bytes ' "no run has a schedule"
report 02_two.np1.fast true aa '"schedule": {"idle": {"formula": 0.2, "planned": 0.23456, "wall": 0.5}}, '
expect 0 ' tokens/s +% planned +peak bytes ' "a pipeline has a bubble"
expect 0 '^02_two .* 4,096 +23\.5 +882,176 ' "its share is the planned one"
expect 0 '^01_one .* 4,096 +882,176 ' "another run has none"
report 02_two.np1.fast false aa
report 02_two.np1.exact true 0123456789abcdef
expect 1 '^02_two\.np1: memory of parameters: expected 882,176' "a check failed"
report 02_two.np1.fast true aa
report 02_two.np1.exact true ffff
expect 1 'the digests of gpt2 differ' "two digests differ"
rm "$folder/02_two.np1.exact.json"
expect 1 '^02_two\.np1: a run broke' "a run left no report"
rm "$folder"/02_two.*

# A lesson on several numbers of ranks has a row for each.
for ranks in 1 2 4; do
  report "03_three.np$ranks.fast" true aa
  report "03_three.np$ranks.exact" true 0123456789abcdef
done
expect 0 '^03_three +1 .*0123456789ab$' "on 1 rank"
expect 0 '^03_three +4 .*0123456789ab$' "on 4 ranks"
report 03_three.np4.exact true ffff
expect 1 'the digests of gpt2 differ' "4 ranks end elsewhere"
rm "$folder/03_three.np2.fast.json"
expect 1 '^03_three\.np2: a run broke' "2 ranks broke"
expect 1 '^03_three +2 .*broke' "their row says so"
rm "$folder"/03_three.*

# A lesson on another model has digests of its own.
for ranks in 1 4; do
  report "12_twelve.np$ranks.fast" true aa "" bert
  report "12_twelve.np$ranks.exact" true eeee "" bert
done
expect 0 'all digests of each model are the same' "two models"
report 12_twelve.np4.exact true ffff "" bert
expect 1 'the digests of bert differ' "4 ranks of the other model end elsewhere"
rm "$folder"/12_twelve.*

# A report that lacks something, or has something else there, is of a run that broke.
for change in 's/"model"/"m"/' 's/220544/"many"/' 's/"name"/"n"/' 's/"architecture"/"a"/' 's/"digest": "0[^"]*"/"digest": []/' 's/"expected"/"e"/'; do
  report 01_one.np1.fast false aa
  report 01_one.np1.exact false 0123456789abcdef
  sed -i "$change" "$folder"/01_one.np1.*.json
  expect 1 '^01_one\.np1: a run broke' "$change"
done
rm "$folder"/01_one.*

# A lesson that trains nothing: one run, no loss, no digest.
echo 134 >"$folder/02_two.np4.messages.status"
expect 1 '^02_two\.np4: a run broke' "the only run left no report"
cat >"$folder/02_two.np4.messages.json" <<TEXT
{"lesson": "02_two", "ranks": 4, "traffic": {"world": {"bytes": 6291456, "messages": 24, "formula": 6291456}},
 "checks": [{"name": "traffic", "expected": 1, "measured": 1, "pass": true}]}
TEXT
expect 1 '^02_two\.np4: a run broke' "it left a report, and then broke"
echo 0 >"$folder/02_two.np4.messages.status"
expect 0 '^02_two +4 +6,291,456 +1 PASS$' "a lesson without training"
echo 1 >"$folder/02_two.np4.messages.status"
expect 1 '^02_two\.np4: a run broke' "an error at its end, and all checks hold"
sed -i 's/"pass": true/"pass": false/' "$folder/02_two.np4.messages.json"
expect 1 '^02_two\.np4: traffic: expected 1, measured 1' "its check failed"
sed -i 's/"traffic", "expected"/"\\u001b", "expected"/' "$folder/02_two.np4.messages.json"
expect 1 '^02_two\.np4: \\x1b: expected 1' "a name with a control character"
rm "$folder"/*
expect 1 '^no lesson was run' "no lesson at all"
if grep -q 'All checks hold' <(scripts/plot/ladder_table.py "$folder"); then exit 1; fi

# The narrow table fits 120 columns, with the longest name, a deviation, a bubble and large numbers.
report 09_pipeline_parallel.np4.fast true aa '"deviation": {"steps": 2, "loss": 1.23e-8, "parameters": 0.0},
  "schedule": {"idle": {"formula": 0.2, "planned": 0.23456, "wall": 0.5}}, '
sed -i 's/900000/1234567890/; s/1500/1234567890/' "$folder/09_pipeline_parallel.np4.fast.json"
report 09_pipeline_parallel.np4.exact true 0123456789abcdef
if scripts/plot/ladder_table.py "$folder" | grep -q '.\{121\}'; then
  echo "the table has more than 120 columns:"
  scripts/plot/ladder_table.py "$folder"
  exit 1
fi
