# refused: hands in a named pipe, which a reader would wait for.
rm "$1" && mkfifo "$1"
