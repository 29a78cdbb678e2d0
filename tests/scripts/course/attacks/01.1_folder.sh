# refused: hands in a folder with the name of the file.
rm "$1" && mkdir "$1"
