# refused: hands in a folder with the name of the file.
# shellcheck shell=bash
rm "$1" && mkdir "$1"
