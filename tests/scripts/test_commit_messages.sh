#!/usr/bin/env bash
# .ci/commit_messages: a subject of one idea passes; one that is long, joined or empty is named. Files and commits are read alike.
set -euo pipefail
check=$(CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/.ci/commit_messages
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
git init -q .
git -c user.name=a -c user.email=a@b commit -q --allow-empty -m "The first"

# expect STATUS WORDS SUBJECT: as a file and as a commit, the subject ends with this status and these words.
expect() {
  printf '%s\n\nThe body; it may say anything at any length that it needs, or more than that.\n' "$3" >message
  git -c user.name=a -c user.email=a@b commit -q --allow-empty --allow-empty-message -F message
  local words status
  for words in message HEAD~1..HEAD; do
    status=0
    "$check" "$words" >said 2>&1 || status=$?
    if [[ $status != "$1" ]] || ! grep -q "$2" <(cat said; echo); then
      echo "$words: status $status, $(cat said): $3"
      exit 1
    fi
  done
}

longest=$(printf 'x%.0s' {1..72})
expect 0 '' "$longest"
expect 1 '73 characters' "${longest}x"
expect 1 'a semicolon joins two ideas' "Add a sum; send it"
expect 1 'does not say what is different' "Format"
expect 1 'does not say what is different' "fix."
expect 0 '' "Format numbers with their units"
