# refused: hands in an empty file.
# shellcheck shell=bash
: >"$1"
