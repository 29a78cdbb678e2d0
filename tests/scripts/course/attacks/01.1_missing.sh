# refused: hands in nothing.
rm "$1"
