# refused: hands in a gigabyte.
# shellcheck shell=bash
truncate -s 1G "$1"
