#!/usr/bin/env bash
# Makes the site of the documentation: scripts/docs.sh [BUILD_FOLDER]  ->  build/docs/html/index.html
# A warning of Doxygen is an error, and so is a link that leads nowhere.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/words.sh"
takes 1
CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=${1:-build}/docs

# Python with the packages: that of the system, if the first on the path has none of them.
python=
for candidate in python3 /usr/bin/python3; do
  if "$candidate" -c 'import jinja2, markdown_it, mdit_py_plugins, pygments' 2>/dev/null; then
    python=$candidate
    break
  fi
done
if [[ -z $python ]] || ! command -v doxygen >/dev/null; then
  refuse "Doxygen or a package of Python is missing." "Run scripts/setup.sh --documentation."
fi
"$python" scripts/site/build.py "$out"
echo "$(shown "$out")/html/index.html"
