"""Pieces of an SVG picture, each a string or several, in the one style of all pictures: fonts, colours, axes, legends.

The colours of data are those of Okabe and Ito (2008, "Color Universal Design"), which people tell apart whatever colours their
eyes see. Words, grids and greys turn with the reader's choice between light and dark; colours of data stay.
"""

import math
import pathlib
import re
import sys
from xml.sax import saxutils

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
import documents  # noqa: E402
from documents import NotThere, Refused, option_parser, refusing, run_script  # noqa: E402, F401  for all that draw
from whole_file import keep, write_whole  # noqa: E402, F401

BLUE, ORANGE, GREEN, PINK = "#0072b2", "#e69f00", "#009e73", "#cc79a7"
SKY, RED, YELLOW, BROWN = "#56b4e9", "#d55e00", "#f0e442", "#8c564b"
RANKS = [BLUE, ORANGE, GREEN, PINK, SKY, RED, YELLOW, BROWN]  # a colour for each rank

PAPER, INK, TICK, OUTLINE = "#ffffff", "#222222", "#000000", "#444444"
GRID, IDLE, LIGHT_GREY, GREY, DARK_GREY = "#e4e4e4", "#f0f0f0", "#d9d9d9", "#b3b3b3", "#666666"
VEIL = "#00000022"                  # of a grid in front of colours
DARK = {PAPER: "#16191d", INK: "#d8dde3", TICK: "#f5f7f9", OUTLINE: "#aab2bb", VEIL: "#ffffff22",
        GRID: "#363e47", IDLE: "#262c33", LIGHT_GREY: "#4a525b", GREY: "#6b747e", DARK_GREY: "#9aa5b1"}
ON_COLOUR = "#111111"               # words on a colour of data, light or dark around it

LETTER = 6.4                        # the width of one, about


def read_json(path):
    """documents.read_json(), of a file that no picture replaces."""
    keep(path)
    return documents.read_json(path)


def escape(words):
    """Words of a document, as XML can have them: it has no control characters."""
    return saxutils.escape(documents.shown(words))


def text(x, y, content, anchor="middle", extra="", colour=INK):
    """Words at a place."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}"{extra}>{escape(content)}</text>'


def line(x1, y1, x2, y2, colour, width=1):
    """A straight line."""
    thick = f' stroke-width="{width}"' if width != 1 else ""
    return f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="{colour}"{thick}/>'


def arrow(x1, y1, x2, y2, colour, width=2):
    """A straight line with a tip at its end."""
    length = math.hypot(x2 - x1, y2 - y1)
    along, across = ((x2 - x1) / length, (y2 - y1) / length), (-(y2 - y1) / length, (x2 - x1) / length)
    back = (x2 - 8 * along[0], y2 - 8 * along[1])
    tip = "L".join(f"{px:.1f} {py:.1f}" for px, py in
                   ((x2, y2), *((back[0] + side * across[0], back[1] + side * across[1]) for side in (4, -4))))
    return line(x1, y1, *back, colour, width) + f'<path d="M{tip}Z" fill="{colour}"/>'


def rectangle(x, y, width, height, colour, title="", outline="", opacity=1):
    """A filled rectangle; viewers show the title when pointed at."""
    words = f"><title>{escape(title)}</title></rect>" if title else "/>"
    edge = (f' stroke="{outline}"' if outline else "") + (f' fill-opacity="{opacity}"' if opacity != 1 else "")
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"{edge}{words}'


def polygon(points, colour, title):
    """A filled area; viewers show the title when pointed at."""
    path = "L".join(f"{px:.1f} {py:.1f}" for px, py in points)
    return f'<path d="M{path}Z" fill="{colour}"><title>{escape(title)}</title></path>'


def curve(points, colour, dashes="", dots=True):
    """A line through points, with dots at them unless it is dashed."""
    path = "L".join(f"{px:.1f} {py:.1f}" for px, py in points)
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    yield f'<path d="M{path}" stroke="{colour}" stroke-width="2"{dashed}/>'
    if dots and not dashes:
        yield from (f'<circle cx="{px:.1f}" cy="{py:.1f}" r="2.6" fill="{colour}"/>' for px, py in points)


def key(x, y, colour, words):
    """An entry of a legend."""
    yield rectangle(x, y - 10, 12, 12, colour)
    yield text(x + 18, y, words, "start")


def keys(x, y, entries):
    """Entries of a legend in a row: pairs of a colour and words."""
    for colour, words in entries:
        yield from key(x, y, colour, words)
        x += 18 + LETTER * len(words) + 26


def axis(most, parts):
    """Values from 0 to at least `most`, about the given number of them, 1, 2 or 5 times a power of ten apart."""
    power = 10.0 ** math.floor(math.log10(most / parts))
    apart = next(power * factor for factor in (1, 2, 5, 10) if power * factor * parts >= most)
    return [i * apart for i in range(math.ceil(most / apart - 1e-9) + 1)]


def size_text(exponent):
    """2^exponent bytes."""
    return f"{2 ** (exponent % 10)} {('B', 'KiB', 'MiB', 'GiB')[exponent // 10]}"


def document(width, height, title, parts):
    """The whole picture, on paper of its own."""
    dark = "".join(f'[fill="{light}"]{{fill:{dark}}}[stroke="{light}"]{{stroke:{dark}}}' for light, dark in DARK.items())
    head = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" font-family="system-ui, sans-serif" font-size="12">',
            f"<title>{escape(title)}</title>",
            f"<style>@media (prefers-color-scheme: dark) {{{dark}}}</style>",
            f'<rect width="{width}" height="{height}" fill="{PAPER}"/>', '<g fill="none">']
    return "\n".join([*head, *parts, "</g>", "</svg>"]) + "\n"


# ---- Frame of a script that draws the output of a lesson: it reads standard input, writes the picture, and prints its numbers ------

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
        parser = option_parser(file, f"Draws {what}.")
        parser.add_argument("--output", type=pathlib.Path, required=True, help="a file for the picture, as SVG")
        options = parser.parse_args(arguments)
        with refusing(f"{what} cannot be drawn", "Pipe what that lesson prints into this script.", NotThere):
            drawn = read(sys.stdin.read())
            write_whole(options.output, draw(drawn))
        print("\n".join(table(drawn)))
    return main
