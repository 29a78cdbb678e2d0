#!/usr/bin/env bash
# Makes the documentation with Doxygen: scripts/docs.sh [BUILD_FOLDER]  ->  build/docs/html/index.html
# A warning is an error.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=${1:-build}/docs
if ! command -v doxygen >/dev/null; then
  echo "error: doxygen is not installed. Run scripts/setup.sh --documentation." >&2
  exit 2
fi
mkdir -p "$out"
{ cat docs/Doxyfile; echo "OUTPUT_DIRECTORY = \"$out\""; } | doxygen - >"$out/doxygen.log"
echo "$out/html/index.html"
