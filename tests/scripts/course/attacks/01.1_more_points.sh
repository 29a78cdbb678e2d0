# refused, passed: changes the points in the marker.
# shellcheck shell=bash
sed -i 's/EXERCISE 01.1 points=10/EXERCISE 01.1 points=1000/' "$1"
