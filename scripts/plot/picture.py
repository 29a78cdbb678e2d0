"""Frame of a script that draws the output of a lesson: it reads standard input, writes the picture, and prints its numbers."""

import pathlib
import re
import sys

import svg
from svg import NotThere


def find(pattern, text, what):
    """The groups of the first line that fits, numbers as numbers.
    @throws NotThere  saying what is lacking."""
    found = re.search(pattern, text, re.MULTILINE)
    if not found:
        raise NotThere(f"it has no line {what}")
    return [int(group.replace(",", "")) if re.fullmatch(r"[\d,]+", group) else group for group in found.groups()]


def script(file, what, read, draw, table):
    """The main() of such a script.
    @param file   of the script.
    @param what   is drawn, in words: "the ... of lesson NN".
    @param read   makes of the lesson's output what the other two take; may throw NotThere.
    @param draw   makes the picture, as SVG.
    @param table  makes lines of text."""
    def main(arguments):
        parser = svg.option_parser(file, f"Draws {what}.")
        parser.add_argument("--output", type=pathlib.Path, required=True, help="a file for the picture, as SVG")
        options = parser.parse_args(arguments)
        with svg.refusing(f"{what} cannot be drawn", "Pipe what that lesson prints into this script.", NotThere):
            drawn = read(sys.stdin.read())
            svg.write_whole(options.output, draw(drawn))
        print("\n".join(table(drawn)))
    return main
