"""Pages for a browser: each is one file that needs no network."""

import json
import pathlib
import re
import sys

SCRIPTS = pathlib.Path(__file__).resolve().parents[1]
sys.path.append(str(SCRIPTS / "lib"))
from documents import NotThere, option_parser, read_json, refusing, run_script  # noqa: E402, F401  for all that make pages
from whole_file import keep, write_whole  # noqa: E402, F401


def read(path):
    """A JSON document, whose file no page replaces.
    @throws NotThere  with its name, if it is none."""
    try:
        keep(path)
        return read_json(path)
    except (OSError, ValueError) as error:
        raise NotThere(f"{path} cannot be read: {error}") from error


def filled(name, data):
    """A page: page.html with data, and with the page's own content, style and script, as film/film.js.
    @throws NotThere  if a browser could not read the data."""
    try:
        embedded = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    except ValueError as error:
        raise NotThere(f"numbers to be shown are not those of a lesson: {error}") from error

    def content(mark):
        return embedded if mark[1] == "page.json" else (SCRIPTS / mark[1]).read_text(encoding="utf-8")

    template = (SCRIPTS / "page/page.html").read_text(encoding="utf-8").replace("[[own.", f"[[{name}.")
    return re.sub(r"\[\[([\w/.]+)\]\]", content, template)
