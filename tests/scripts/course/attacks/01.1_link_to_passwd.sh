# refused: hands in a symbolic link instead of the file.
rm "$1" && ln -s /etc/passwd "$1"
