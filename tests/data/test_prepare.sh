#!/bin/sh
# What build/data/prepare does with good and with wrong input: its exit status, its message, the files it leaves.
# Usage: test_prepare.sh PROGRAM

prepare=$1
here=$(CDPATH='' cd "$(dirname "$0")" && pwd)
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
expect 2 'it names a folder'                   'text.txt ' text.txt .
expect 2 'it is a device or a pipe'            'text.txt ' text.txt /dev/null
expect 2 'would replace itself'                'text.txt ' text.txt text.txt
expect 2 'are the same file'                   'text.txt ' text.txt ./text.txt
expect 2 'Use --tokenizer=byte or gpt2'               'text.txt ' --tokenizer=words text.txt out.h5
expect 2 '--tokenizer'                         'text.txt ' --tokeniser=byte text.txt out.h5
expect 2 'two files are needed'                'text.txt ' text.txt
expect 2 'two files are needed'                'text.txt ' text.txt out.h5 more.h5
expect 2 'two files are needed'                'text.txt '
expect 0 'TEXT.txt FILE.h5'                    'text.txt ' --help
expect 0 '19 tokens to train on, 3 for validation' 'out.h5 text.txt ' --tokenizer=byte text.txt out.h5
expect 0 '19 tokens to train on, 3 for validation' 'out.h5 text.txt ' text.txt out.h5
temporary=out.h5.0123456789abcdef.tmp
mv out.h5 kept.h5
cp text.txt $temporary
expect 2 'is a temporary file of out.h5'       "kept.h5 $temporary text.txt " $temporary out.h5
expect 0 '19 tokens to train on'               'kept.h5 out.h5 text.txt ' text.txt out.h5
cmp kept.h5 out.h5 || failed=1
rm out.h5 kept.h5
: > empty.txt
expect 2 'is empty'                            'empty.txt text.txt ' empty.txt out.h5
rm empty.txt

# GPT-2's tokenizer, with a vocabulary of the bytes and " owl".
small=$folder.vocabulary
trap 'rm -rf "$folder" "$small"' EXIT
python3 "$here/small_vocabulary.py" "$small" || exit 1
expect 2 '--tokenizer=gpt2 needs its vocabulary' 'text.txt ' --tokenizer=gpt2 text.txt out.h5
expect 2 'is not used with --tokenizer=byte'    'text.txt ' --vocabulary-from="$small" text.txt out.h5
expect 2 'none/encoder.json does not exist'    'text.txt ' --tokenizer=gpt2 --vocabulary-from=none text.txt out.h5
expect 0 '17 tokens to train on, 3 for validation, vocabulary 259 (gpt2)' 'out.h5 text.txt ' \
  --tokenizer=gpt2 --vocabulary-from="$small" text.txt out.h5
echo 'o x' >> "$small/vocab.bpe"
expect 2 'line 4 of vocab.bpe merges entries'     'out.h5 text.txt ' \
  --tokenizer=gpt2 --vocabulary-from="$small" text.txt out.h5

# On a terminal a bar shows how far it has come; elsewhere nothing does.
yes 'the owl sees 12 cats.' | head -c 3000000 > long.txt
expect 0 '3,000,000 characters'                'long.txt out.h5 text.txt ' long.txt out.h5
if printf '%s' "$output" | grep -qF '[##'; then
  printf 'FAIL: prepare draws its bar where there is no terminal\n%s\n' "$output"
  failed=1
fi
python3 -c 'import pty, sys; sys.exit(pty.spawn(sys.argv[1:]))' "$prepare" long.txt out.h5 < /dev/null > terminal
if ! grep -qF '########] 3 of 3 MB' terminal; then
  printf 'FAIL: prepare draws no bar on a terminal\n%s\n' "$(cat terminal)"
  failed=1
fi
rm long.txt terminal

data=${RANKWISE_DATA:-$here/../../../shared/data}
if [ -f "$data/tinyshakespeare.txt" ] && [ -d "$data/gpt2" ]; then
  expect 0 '301,966 tokens to train on, 36,059 for validation, vocabulary 50,257 (gpt2)' 'out.h5 text.txt ' \
    --tokenizer=gpt2 --vocabulary-from="$data/gpt2" "$data/tinyshakespeare.txt" out.h5
else
  echo "skipped in part: tinyshakespeare.txt and gpt2 are not in $data"
fi

exit $failed
