# refused: hands in a named pipe, which a reader would wait for.
# shellcheck shell=bash
rm "$1" && mkfifo "$1"
