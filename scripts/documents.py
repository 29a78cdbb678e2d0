"""Documents that others may have written: how a script reads them, and what a terminal gets of their texts."""

import io
import json
import pathlib
import re
import sys

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")  # but tabs and line ends; and bytes that are not UTF-8


def read_json(path):
    """The value that a file has as JSON.
    @throws OSError, ValueError  that say why there is none."""
    return parse_json(pathlib.Path(path).read_text(encoding="utf-8"))


def parse_json(text):
    """The value of a text of JSON.
    @throws ValueError  if it is none, or is nested so deep that it cannot be read."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


class Shown(io.TextIOWrapper):
    """A stream that shows ESC as \\x1b and a carriage return as \\r."""

    def write(self, text):
        return super().write(CONTROL.sub(lambda found: ascii(found[0])[1:-1], text))


def show_control_characters():
    """From now on control characters in all that is printed are shown, and not obeyed."""
    sys.stdout, sys.stderr = (Shown(stream.buffer, encoding="utf-8", line_buffering=True) for stream in (sys.stdout, sys.stderr))
