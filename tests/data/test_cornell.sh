#!/usr/bin/env bash
# scripts/fetch_data.sh cornell: the text that it makes of a small corpus, what it refuses, and that prepare takes the text.
# Usage: test_cornell.sh PREPARE
set -euo pipefail
prepare=$1
root=$(CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
failed=0

# expect STATUS "words" "files that are in out" arguments...
expect() {
  local status=$1 words=$2 files=$3 output left got=0
  shift 3
  output=$("$root/scripts/fetch_data.sh" cornell "$@" --to out 2>&1) || got=$?
  left=$(ls out)
  if [[ $got == "$status" && $output == *"$words"* && $left == "$files" ]]; then return; fi
  printf 'FAIL: cornell %s\n  status %s (%s expected), files "%s" ("%s" expected), words "%s":\n%s\n' \
         "$*" "$got" "$status" "$left" "$files" "$words" "$output"
  failed=1
}

# lines ROW... and conversations ROW...: the two files, in ISO-8859-1; octal escapes are bytes, @ is the separator.
rows() { local file=$1; shift; printf '%b\n' "$@" | sed 's/@/ +++$+++ /g' >"corpus/$file"; }
lines() { rows movie_lines.txt "$@"; }
conversations() { rows movie_conversations.txt "$@"; }

mkdir corpus out
expect 2 'cornell is made of files that you have' ''
expect 2 '--from=none is no folder'               '' none
expect 2 'movie_lines.txt cannot be read: No such file'         '' corpus

# L4 has blanks at its ends, a tab, a carriage return and a next-line byte; L3 and L7 are empty, L7 without its last blank.
all=('L1@u0@m0@ANA@Where is it?' 'L2@u1@m0@BEN@Caf\0351, at 7.' 'L3@u0@m0@ANA@'
     'L4@u1@m0@BEN@  Well\t...\r\0205no.  ' 'L5@u0@m0@ANA@Why + how?' 'L6@u2@m1@EVA@Hm.' 'L7@u3@m1@TOM +++$+++')
lines "${all[@]}"
expect 2 'movie_conversations.txt cannot be read' '' corpus --utterances=7
talks=("u0@u1@m0@['L1', 'L2', 'L3', 'L4', 'L5']" "u2@u3@m1@['L6', 'L7']" "u2@u3@m1@['L7']" "u0@u1@m0@['L5', 'L1']")
conversations "${talks[@]}"

expect 2 'has 7 utterances, not 304,713'          '' corpus
expect 2 'has 7 utterances, not 8'                '' corpus --utterances=8
expect 2 'has 7 utterances, not 6'                '' corpus --utterances=6
expect 0 '7 utterances in 4 conversations' 'cornell.txt' corpus --utterances=7
expect 0 '7 utterances in 4 conversations' 'cornell.txt' --from corpus --utterances=7
printf 'Where is it?\nCaf\303\251, at 7.\n\nWell ... no.\nWhy + how?\n\nHm.\n\nWhy + how?\nWhere is it?\n' >expected
cmp expected out/cornell.txt || failed=1

"$prepare" out/cornell.txt cornell.h5 >/dev/null || failed=1
rm out/cornell.txt

for broken in "u0@u1@m0@['L1', 'L9']" "u0@u1@m0@['L1' 'L2']" "u0@u1@m0@[]" "u0@u1@m0@L1" "u0@u1@['L1']" \
              "u0@u1@m0@['L1', 'L2'] L3"; do
  conversations "${talks[0]}" "$broken" "${talks[1]}"
  expect 2 'line 2 of corpus/movie_conversations.txt' '' corpus --utterances=7
done
conversations "${talks[0]}" "u0@u1@m0@['L1', 'L9']"
expect 2 'names the utterance L9'                 '' corpus --utterances=7
conversations "${talks[@]}"
lines "${all[@]:0:2}" 'L3 u0 m0' "${all[@]:3}"
expect 2 'line 3 of corpus/movie_lines.txt has 1 of 5 fields' '' corpus --utterances=7
lines "${all[@]}" "${all[1]}"
expect 2 'line 8 of corpus/movie_lines.txt is a second utterance L2' '' corpus --utterances=7
lines "${all[@]}"
mkdir out/cornell.txt
expect 1 'cannot be written'           'cornell.txt' corpus --utterances=7

if output=$("$root/scripts/fetch_data.sh" wikitext2 --utterances=7 --to out 2>&1) || [[ $output != *'not for wikitext2'* ]]; then
  printf 'FAIL: wikitext2 takes --utterances\n%s\n' "$output"
  failed=1
fi
exit $failed
