# refused: writes points into the marker.
# shellcheck shell=bash
sed -i 's/EXERCISE 01.1$/EXERCISE 01.1 points=1000/' "$1"
