"""Frame of a script that draws the output of a lesson: it reads standard input, writes the picture, and prints its numbers."""

import argparse
import pathlib
import re
import sys

import svg


class NotThere(Exception):
    """A text or a document that is not what a lesson writes; the sentence says what it lacks."""


def find(pattern, text, what):
    """The groups of the first line that fits, numbers as numbers.
    @throws NotThere  saying what is lacking."""
    found = re.search(pattern, text, re.MULTILINE)
    if not found:
        raise NotThere(f"it has no line {what}")
    return [int(group.replace(",", "")) if re.fullmatch(r"[\d,]+", group) else group for group in found.groups()]


def main(arguments, name, what, read, draw, table):
    """Runs such a script.
    @param name   of the script.
    @param what   is drawn, in words: "the ... of lesson NN".
    @param read   makes of the lesson's output what the other two take; may throw NotThere.
    @param draw   makes the picture, as SVG.
    @param table  makes lines of text.
    @return       the exit status."""
    parser = argparse.ArgumentParser(prog=f"scripts/plot/{name}.py", allow_abbrev=False, description=f"Draws {what}.")
    parser.add_argument("--output", type=pathlib.Path, required=True, help="a file for the picture, as SVG")
    options = parser.parse_args(arguments)
    try:
        drawn = read(sys.stdin.read())
        svg.write_whole(options.output, draw(drawn))
    except (NotThere, OSError) as error:
        print(f"error: {what} cannot be drawn: {error}.\n"
              "       Pipe what that lesson prints into this script.", file=sys.stderr)
        return 2
    print("\n".join(table(drawn)))
    return 0
