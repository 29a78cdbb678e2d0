#!/usr/bin/env bash
# Checks spelling and words:  scripts/check/spelling.sh
#
#   - codespell finds misspelt words in all texts and comments, where it is installed (scripts/setup.sh --documentation)
#   - words that read badly in a manual are refused, but for the tests; docs/glossary.md has the terms of the field
#
# Ends with status 1 and one line a finding.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../lib/words.sh"
takes 0
CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/../.."

status=0
words='whoever|nobody|in vain|so many|lies apart|puts? off|of those before|(is|are) told|goes on'
if git grep -nIwiE "$words" -- . ':!tests' ':!*.svg' ':!scripts/check/spelling.sh'; then
  echo "error: these words have plainer ones (CONTRIBUTING.md, How the house is built)." >&2
  status=1
fi

if ! command -v codespell >/dev/null; then
  echo "codespell is not installed: spelling is not checked." >&2
elif ! git ls-files -z -- . ':!*.svg' ':!*.patch' ':!*.patches' ':!*.json' |
  xargs -0 codespell --ignore-words-list=inflight,fro,improbe,ot,nd,caf --ignore-regex='In not eamm.*|To noinf.*'; then
  status=1
fi
exit "$status"
