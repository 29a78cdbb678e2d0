# refused: hands in nothing.
# shellcheck shell=bash
rm "$1"
