#!/usr/bin/env bash
# Fetches texts, GPT-2's vocabulary or GPT-2's weights, and checks that they are the very bytes that are meant.
#
#   scripts/fetch_data.sh NAME [--from FOLDER] [--to FOLDER]
#
#   tinyshakespeare    tinyshakespeare.txt                             1.1 MB
#   wikitext2          wikitext-2/train.txt, valid.txt and test.txt     13 MB
#   gpt2-vocabulary    gpt2/encoder.json and gpt2/vocab.bpe            1.5 MB
#   gpt2-weights       gpt2/model.safetensors, 124M parameters         548 MB
#
#   scripts/fetch_data.sh cornell FOLDER [--to FOLDER] [--utterances=N]
#
#   cornell            cornell.txt, the conversations of the Cornell Movie-Dialogs Corpus, whose movie_lines.txt and
#                      movie_conversations.txt are in FOLDER; with another number of utterances than published only if
#                      --utterances names it
#
# --to is where these are put, build/downloads unless given. --from takes them from a folder (as they stand above, or all
# in the folder itself) and not from the network. What is there already, with the right SHA-256, is left alone. A file
# with another digest is refused and not left behind.
#
# Exit status: 0, all files are there; 1, a download or a copy failed; 2, a wrong digest, a missing file, or a wrong name.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/words.sh"

# Prints a line for each file of a name: file, SHA-256, address.
files_of() {
  local texts=https://raw.githubusercontent.com
  local wikitext=$texts/pytorch/examples/main/word_language_model/data/wikitext-2
  local gpt2=https://openaipublic.blob.core.windows.net/gpt-2/encodings/main
  local weights=https://huggingface.co/openai-community/gpt2/resolve/607a30d783dfa663caf39e06633721c8d4cfcd7e
  case $1 in
    tinyshakespeare)
      echo "tinyshakespeare.txt 86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed" \
           "$texts/karpathy/char-rnn/master/data/tinyshakespeare/input.txt" ;;
    wikitext2)
      echo "wikitext-2/train.txt 9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f $wikitext/train.txt"
      echo "wikitext-2/valid.txt f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8 $wikitext/valid.txt"
      echo "wikitext-2/test.txt d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0 $wikitext/test.txt" ;;
    gpt2-vocabulary)
      echo "gpt2/encoder.json 196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783 $gpt2/encoder.json"
      echo "gpt2/vocab.bpe 1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5 $gpt2/vocab.bpe" ;;
    gpt2-weights)
      echo "gpt2/model.safetensors 248dfc3911869ec493c76e65bf2fcf7f615828b0254c12b473182f0f81d3a707" \
           "$weights/model.safetensors" ;;
    *) return 1 ;;
  esac
}

sha256() {
  if command -v sha256sum >/dev/null; then sha256sum <"$1"; else shasum -a 256 <"$1"; fi | cut -d ' ' -f 1
}

# download ADDRESS FILE
download() {
  if command -v curl >/dev/null; then
    curl --fail --location --silent --show-error --retry 3 --output "$2" "$1"
  elif command -v wget >/dev/null; then
    wget --quiet --tries=3 --output-document="$2" "$1"
  else
    refuse "neither curl nor wget is here to fetch $1." "Install one of them, or fetch the file by hand and use --from."
  fi
}

# fetch FILE SHA256 ADDRESS: puts one file where it belongs.
fetch() {
  local file=$1 digest=$2 address=$3
  local target=$to/$file source=$address got
  if [[ -f $target && $(sha256 "$target") == "$digest" ]]; then
    echo "$(shown "$target"): is there already"
    return
  fi
  if [[ $from ]]; then
    source=$from/$file
    if [[ ! -f $source ]]; then source=$from/${file##*/}; fi
    [[ -f $source ]] || refuse "there is no $file in $from." "Without --from it is fetched from $address"
  fi
  mkdir -p "$(dirname "$target")" || refuse "the folder of $target cannot be made." "Choose another folder with --to."
  temporary=$target.tmp.$$
  if [[ $from ]]; then
    cp "$source" "$temporary" || refuse "$source cannot be copied to $target." "Is there room for it?" 1
  else
    download "$address" "$temporary" || refuse "$address cannot be fetched." "If you have the file, use --from FOLDER." 1
  fi
  got=$(sha256 "$temporary")
  [[ $got == "$digest" ]] || refuse "$source is not the file that is meant: its SHA-256 is $got." \
                                   "It should be $digest; nothing was kept."
  chmod u+w "$temporary"  # a copy of a file that is read-only is read-only too
  mv -f "$temporary" "$target"
  temporary=
  echo "$(shown "$target"): $(wc -c <"$target" | tr -d ' ') bytes"
}

here=$(dirname "${BASH_SOURCE[0]}")
usage="scripts/fetch_data.sh tinyshakespeare|wikitext2|gpt2-vocabulary|gpt2-weights|cornell [--from FOLDER] [--to FOLDER]"
name='' from='' to=$here/../build/downloads utterances=''
while (($#)); do
  case $1 in
    --from=* | --to=* | --utterances=*) declare "${1:2}"; shift; continue ;;
    --from | --to)
      (($# > 1)) || refuse "$1 wants a folder." "$usage"
      declare "${1:2}=$2"; shift 2; continue ;;
    -*) refuse "$1 is not known." "$usage" ;;
    *) if [[ $name == cornell && ! $from ]]; then from=$1; shift; continue; fi
       [[ ! $name ]] || refuse "one name is wanted, not $name and $1." "$usage"
       name=$1; shift ;;
  esac
done
[[ $name ]] || refuse "what should be fetched?" "$usage"
[[ $name == cornell || ! $utterances ]] || refuse "--utterances is not for $name." "It belongs to cornell."
[[ ! $from || -d $from ]] || refuse "--from=$from is no folder." "Name the folder that holds the files."
if [[ $name == cornell ]]; then
  [[ $from ]] || refuse "cornell is made of files that you have." \
    "It is at https://www.cs.cornell.edu/~cristian/Cornell_Movie-Dialogs_Corpus.html; name its folder."
  exec python3 "$here/lib/cornell.py" "$from" "$to/cornell.txt" ${utterances:+"--utterances=$utterances"}
fi
list=$(files_of "$name") || refuse "$name is not known." "$usage"

temporary=
trap 'if [[ $temporary ]]; then rm -f "$temporary"; fi' EXIT
while read -r file digest address; do fetch "$file" "$digest" "$address"; done <<<"$list"
