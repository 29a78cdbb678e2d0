#!/usr/bin/env bash
# fetch_data.sh: takes the right file, refuses every other, leaves nothing behind. The network is played by a curl and a
# wget of this test, and the files that have the right digest are the real data, where they are there.
set -euo pipefail
root=$(CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
data=${RANKWISE_DATA:-$root/../shared/data}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
failed=0
path=$PATH  # where the script finds its tools

# expect STATUS "words" "files that are in out" arguments...
expect() {
  local status=$1 words=$2 files=$3 output left got=0
  shift 3
  output=$(PATH=$path "$root/scripts/fetch_data.sh" "$@" 2>&1) || got=$?
  left=$(cd out && find . -type f | sort | tr '\n' ' ')
  if [[ $got == "$status" && $output == *"$words"* && $left == "$files" ]]; then return; fi
  printf 'FAIL: fetch_data.sh %s\n  status %s (%s expected), files "%s" ("%s" expected), words "%s":\n%s\n' \
         "$*" "$got" "$status" "$left" "$files" "$words" "$output"
  failed=1
}

# tool NAME: a curl or wget that writes what stands in the file `content`, or fails when there is none.
tool() {
  cat >"tools/$1" <<'TOOL'
#!/bin/bash
while (($#)); do
  case $1 in
    --output) out=$2; shift ;;
    --output-document=*) out=${1#*=} ;;
    https://*) echo "$1" >>addresses ;;
  esac
  shift
done
printf 'half of' >"$out"
cat content >"$out"
TOOL
  chmod +x "tools/$1"
}

mkdir from out tools
expect 2 'what should be fetched'            '' --to out
expect 2 'tinyshakespear is not known'       '' tinyshakespear --to out
expect 2 'one name is wanted'                '' wikitext2 tinyshakespeare --to out
expect 2 '--into is not known'               '' wikitext2 --into out
expect 2 '--from wants a folder'             '' wikitext2 --to out --from
expect 2 '--from=none is no folder'          '' wikitext2 --to out --from=none
expect 2 'no tinyshakespeare.txt in from'    '' tinyshakespeare --from from --to out
expect 0 'Exit status'                       '' --help
echo 'the owl sees 12 cats' >from/tinyshakespeare.txt
expect 2 'its SHA-256 is'                    '' tinyshakespeare --from from --to out
touch out/out
expect 2 'cannot be made'               './out ' tinyshakespeare --from from --to out/out/folder
rm out/out

for needed in bash cat cp chmod cut dirname mkdir mv rm sha256sum tr wc; do
  ln -s "$(command -v $needed)" tools/$needed
done
path=$folder/tools
expect 2 'neither curl nor wget'             '' tinyshakespeare --to out
for name in curl wget; do
  tool $name
  for which in tinyshakespeare wikitext2 gpt2-vocabulary gpt2-weights; do
    rm -f content
    expect 1 'cannot be fetched'             '' $which --to out
    echo other >content
    expect 2 'its SHA-256 is'                '' $which --to out
  done
  if [[ -f $data/tinyshakespeare.txt ]]; then
    cat "$data/tinyshakespeare.txt" >content
    expect 0 '1115394 bytes' './tinyshakespeare.txt ' tinyshakespeare --to out
    rm -f out/tinyshakespeare.txt
  fi
  rm tools/$name
done

if [[ -f $data/gpt2/encoder.json && -f $data/tinyshakespeare.txt ]]; then
  files='./gpt2/encoder.json ./gpt2/vocab.bpe '
  expect 0 'encoder.json: 1042301 bytes'  "$files" gpt2-vocabulary --from "$data" --to out
  expect 0 'vocab.bpe: is there already'  "$files" gpt2-vocabulary --from from --to out
  rm -r out/gpt2
  expect 0 'vocab.bpe: 456318 bytes'      "$files" gpt2-vocabulary --from "$data/gpt2" --to out  # all in one folder
  printf x | dd of=out/gpt2/vocab.bpe bs=1 seek=1000 conv=notrunc status=none
  expect 0 'vocab.bpe: 456318 bytes'      "$files" gpt2-vocabulary --from "$data" --to out  # the damaged one is replaced
  cp out/gpt2/* from
  printf x | dd of=from/vocab.bpe bs=1 seek=1000 conv=notrunc status=none
  rm out/gpt2/vocab.bpe
  expect 2 'its SHA-256 is' './gpt2/encoder.json ' gpt2-vocabulary --from from --to out
else
  echo "skipped in part: gpt2 and tinyshakespeare.txt are not in $data"
fi
exit $failed
