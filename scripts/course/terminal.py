"""What a terminal gets of texts that students wrote: their control characters are shown, and not obeyed."""

import io
import re
import sys

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")  # but tabs and line ends; and bytes that are not UTF-8


class Shown(io.TextIOWrapper):
    """A stream that shows ESC as \\x1b and a carriage return as \\r."""

    def write(self, text):
        return super().write(CONTROL.sub(lambda found: ascii(found[0])[1:-1], text))


def show_control_characters():
    """From now on all that is printed goes through such streams."""
    sys.stdout, sys.stderr = (Shown(stream.buffer, encoding="utf-8", line_buffering=True) for stream in (sys.stdout, sys.stderr))
