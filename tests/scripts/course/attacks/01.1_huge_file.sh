# refused: hands in a gigabyte.
truncate -s 1G "$1"
