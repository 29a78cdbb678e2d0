# refused: puts bytes into the body that are no UTF-8.
# shellcheck shell=bash
sed -i '/BEGIN EXERCISE 01.1/,/END EXERCISE/ s|^ *// dx += .*|// '"$(printf '\377\376')"'|' "$1"
