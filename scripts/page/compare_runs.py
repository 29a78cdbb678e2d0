#!/usr/bin/env python3
"""Shows several runs side by side: one page of their reports for a browser, which needs no network.

    scripts/page/compare_runs.py A.json B.json ... --output=page.html

The reports are those of --report; the page of one of them is what its run writes with --html. scripts/film/film.py fills the same
frame, page.html, with other content.
"""

import json
import pathlib
import re
import sys

SCRIPTS = pathlib.Path(__file__).resolve().parents[1]
sys.path.append(str(SCRIPTS / "lib"))
from documents import NotThere, option_parser, read_json, refusing, run_script  # noqa: E402
from whole_file import keep, write_whole  # noqa: E402


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


def page(reports):
    return filled("page/runs", reports)


def reports_of(paths):
    """The reports; where two are of one lesson on as many ranks, each has the name of its file."""
    reports = [read(path) for path in paths]
    for path, report in zip(paths, reports):
        if not isinstance(report, dict) or not {"lesson", "ranks"} <= report.keys():
            raise NotThere(f"{path} is not a report of a lesson")
    kinds = [(report["lesson"], report["ranks"]) for report in reports]
    return [{**report, "file": path.stem} if kinds.count(kind) > 1 else report
            for path, report, kind in zip(paths, reports, kinds)]


def main(arguments):
    parser = option_parser(__file__, "Shows several runs side by side.")
    parser.add_argument("reports", nargs="+", type=pathlib.Path, metavar="REPORT.json", help="documents of --report")
    parser.add_argument("--output", type=pathlib.Path, required=True, help="a file for the page, as HTML")
    options = parser.parse_args(arguments)
    with refusing("", "A lesson writes a report with --report=FILE.json.", NotThere):
        write_whole(options.output, page(reports_of(options.reports)))
    print(f"{options.output}: {len(options.reports)} run{'s'[:len(options.reports) != 1]}")


if __name__ == "__main__":
    run_script(main)
