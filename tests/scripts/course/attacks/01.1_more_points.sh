# refused: changes the points in the marker.
sed -i 's/EXERCISE 01.1 points=10/EXERCISE 01.1 points=1000/' "$1"
