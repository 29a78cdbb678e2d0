# passed, refused: ends its lines as Windows does, the solution unchanged: no attack, and a reader must not fall over it.
# shellcheck shell=bash
sed -i 's/$/\r/' "$1"
