#!/bin/sh
# What build/data/prepare does with good and with wrong input: its exit status, its message, the files it leaves.
# Usage: test_prepare.sh PROGRAM

prepare=$1
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
failed=0

# expect STATUS "words of the message" "files that are left" arguments...
expect() {
  status=$1 words=$2 files=$3
  shift 3
  output=$("$prepare" "$@" 2>&1)
  got=$?
  left=$(printf '%s ' *)
  if [ "$got" -ne "$status" ]; then
    problem="its exit status is $got instead of $status"
  elif ! printf '%s' "$output" | grep -qF -- "$words"; then
    problem="its message does not hold \"$words\""
  elif [ "$left" != "$files" ]; then
    problem="it leaves \"$left\" instead of \"$files\""
  elif [ "$status" -eq 2 ] && [ "$(printf '%s\n' "$output" | grep -c '^error: ')" -ne 1 ]; then
    problem="it does not say one error"
  else
    return
  fi
  printf 'FAIL: prepare %s: %s\n%s\n' "$*" "$problem" "$output"
  failed=1
}

cd "$folder" || exit 1
printf 'the owl sees 12 cats.\n' > text.txt

expect 2 'missing.txt does not exist'          'text.txt ' missing.txt out.h5
expect 2 'is not a regular file'               'text.txt ' . out.h5
expect 2 'no such folder' 'text.txt ' text.txt 'no such folder/out.h5'
expect 2 'is a folder or a device'              'text.txt ' text.txt .
expect 2 'is a folder or a device'              'text.txt ' text.txt /dev/null
expect 2 'which the token file would replace'  'text.txt ' text.txt text.txt
expect 2 'which the token file would replace'  'text.txt ' text.txt ./text.txt
expect 2 'Use --tokenizer=byte'                'text.txt ' --tokenizer=words text.txt out.h5
expect 2 '--tokenizer'                         'text.txt ' --tokeniser=byte text.txt out.h5
expect 2 'two files are needed'                'text.txt ' text.txt
expect 2 'two files are needed'                'text.txt ' text.txt out.h5 more.h5
expect 2 'two files are needed'                'text.txt '
expect 0 'TEXT.txt FILE.h5'                    'text.txt ' --help
expect 0 '19 tokens to train on, 3 for validation' 'out.h5 text.txt ' --tokenizer=byte text.txt out.h5
expect 0 '19 tokens to train on, 3 for validation' 'out.h5 text.txt ' text.txt out.h5
cp text.txt out.h5.tmp
expect 2 'which the token file would replace'  'out.h5 out.h5.tmp text.txt ' out.h5.tmp out.h5
rm out.h5.tmp
: > empty.txt
expect 2 'is empty'                            'empty.txt out.h5 text.txt ' empty.txt out.h5

exit $failed
