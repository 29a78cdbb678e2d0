# refused, passed: makes the folder of the file a symbolic link out of the tree.
# shellcheck shell=bash
folder=$(dirname "$1") && mv "$folder" "$folder.away" && ln -s "$PWD/$folder.away" "$folder"
