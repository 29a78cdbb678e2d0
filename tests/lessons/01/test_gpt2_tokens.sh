#!/bin/sh
# A lesson on tokens of GPT-2's tokenizer: the token file alone is enough to train and to print a sample.
# Usage: test_gpt2_tokens.sh PREPARE LESSON

prepare=$1 lesson=$2
here=$(CDPATH='' cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1

for i in $(seq 40); do echo "the owl sees $i cats."; done > text.txt
python3 "$here/../../data/small_vocabulary.py" vocabulary || exit 1
"$prepare" --tokenizer=gpt2 --vocabulary-from=vocabulary text.txt text.h5 || exit 1
rm -r vocabulary

small='--layers=1 --channels=16 --heads=2 --sequence=16 --global-batch=2 --steps=1'
# shellcheck disable=SC2086
if ! "$lesson" --data=text.h5 $small --vocabulary=259 --sample=20 > output || ! grep -q '^# sample:' output; then
  echo 'FAIL: a lesson does not sample from a token file of gpt2'
  cat output
  exit 1
fi
# shellcheck disable=SC2086
"$lesson" --data=text.h5 $small > output 2>&1
got=$?
if [ $got -ne 2 ] || ! grep -q '^error: .*vocabulary' output; then
  echo "FAIL: a model of 256 entries takes tokens up to 257 (status $got)"
  cat output
  exit 1
fi
