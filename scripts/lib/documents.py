"""What all scripts begin with. Documents that others have written are read from the bytes of any editor, and shown so that nothing in them
is obeyed; words are answered or refused, and tables are aligned text."""

import argparse
import codecs
import contextlib
import io
import json
import os
import pathlib
import re
import sys

# But tabs and line ends: control characters, what turns the direction of a line or ends it, and bytes that are not UTF-8.
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def decoded(content):
    """The text in these bytes: UTF-16 or UTF-8 where they say or are so, else as editors of Windows write it."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return content.decode("utf-16", "replace")
    if content.count(0) > len(content) // 3:  # UTF-16 without a mark
        return content.decode("utf-16-le" if content[1::2].count(0) > content[::2].count(0) else "utf-16-be", "replace")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("cp1252", "replace")


def read_json(path):
    """The value that a file has as JSON.
    @throws ValueError  that says in words, without the file's name, why there is none."""
    try:
        return parse_json(pathlib.Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(getattr(error, "strerror", "it is not UTF-8")) from None


def parse_json(text):
    """The value of a text of JSON.
    @throws ValueError  if it is none, or is nested so deep that it cannot be read."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def shown(text):
    """The text with ESC as \\x1b and a carriage return as \\r."""
    return CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


def text_table(rows, left=1):
    """Rows of cells as lines; the first `left` columns, or those with these numbers, to the left, the others to the right."""
    to_the_left = range(left) if isinstance(left, int) else left
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "".join("  ".join(cell.ljust(width) if i in to_the_left else cell.rjust(width)
                             for i, (cell, width) in enumerate(zip(row, widths))).rstrip() + "\n" for row in rows)


class Shown(io.TextIOWrapper):
    """A stream that shows control characters. Where it cannot be written to, it ends the script and says so."""

    def write(self, text):
        try:
            return super().write(shown(text))
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())  # the rest would fail again
            sys.exit(f"error: the output cannot be written: {error.strerror}.")


class NotThere(Exception):
    """Documents that do not have what is shown of them; the sentence says what they lack."""


class Refused(Exception):
    """A request that cannot be met; the text, or two, say why and what to do."""

    status = 2  # of the script

    def __str__(self):
        return "\n       ".join(map(str, self.args))


class Failed(Refused):
    """A run or a write that has failed, though what was asked for is possible."""

    status = 1


@contextlib.contextmanager
def refusing(what, what_to_do, *kinds):
    """Errors of these kinds and of the system become Refused: "`what`: the error."; without `what` the error alone."""
    try:
        yield
    except (OSError, *kinds) as error:
        raise Refused(f"{what}: {error}." if what else f"{error}.", what_to_do) from error


def run_script(main):
    """Ends the script with the status of main(words), which shows control characters in all that it prints."""
    show_control_characters()
    sys.exit(status_of(main, sys.argv[1:]))


def status_of(main, words):
    """The status of main(words), 0 where it returns none. Where it ends with Refused, or with what the system said of a file, that is
    the one message."""
    try:
        return main(words) or 0
    except (Refused, OSError) as refusal:
        said = f"{refusal.filename}: {refusal.strerror}." if getattr(refusal, "filename", None) else refusal
        print(f"error: {said}", file=sys.stderr)
        return getattr(refusal, "status", 2)


def option_parser(file, description):
    """The parser of the words of a script in this file; it knows no options that are cut short."""
    place = pathlib.Path(file).resolve().relative_to(pathlib.Path(__file__).resolve().parents[2])
    return argparse.ArgumentParser(prog=str(place), allow_abbrev=False, description=description)


def plain_words(header, words, most=0):
    """The words of a script without options: --help prints its header, and options and more words than it takes are refused."""
    if "--help" in words:
        print(header.strip())
        sys.exit(0)
    if wrong := [word for word in words if word.startswith("-")] or words[most:]:
        print(f"error: {shown(wrong[0])} is not known here.\n       With --help the script says what it takes.", file=sys.stderr)
        sys.exit(2)
    return words


def show_control_characters():
    """From now on all that is printed goes through such streams, and Ctrl-C leaves no traceback. Where the locale has characters of
    one byte, the script starts again: names of files and arguments are UTF-8."""
    if sys.getfilesystemencoding() != "utf-8":
        os.environ["PYTHONUTF8"] = "1"
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.argv])
    sys.stdout, sys.stderr = (stream and Shown(stream.buffer, encoding="utf-8", line_buffering=True)  # None where it is closed
                              for stream in (sys.stdout, sys.stderr))
    sys.excepthook = lambda kind, *error: kind is KeyboardInterrupt or sys.__excepthook__(kind, *error)
