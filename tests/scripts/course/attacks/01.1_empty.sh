# refused: hands in an empty file.
: >"$1"
