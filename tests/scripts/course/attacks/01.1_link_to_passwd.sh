# refused: hands in a symbolic link instead of the file.
# shellcheck shell=bash
rm "$1" && ln -s /etc/passwd "$1"
