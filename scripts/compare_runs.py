#!/usr/bin/env python3
"""Shows several runs side by side: one page of their reports for a browser, which needs no network.

    scripts/compare_runs.py A.json B.json ... --output=page.html

The reports are those of --report; the page of one of them is what its run writes with --html.
"""

import argparse
import json
import pathlib
import sys

SCRIPTS = pathlib.Path(__file__).resolve().parent
PARTS = ("film/film.css", "page/page.css", "page/page.js")


class NotAReport(Exception):
    """A file that is none; the sentence says why."""


def read(path):
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise NotAReport(f"{path} cannot be read: {error}") from error
    if not isinstance(report, dict) or not {"lesson", "ranks"} <= report.keys():
        raise NotAReport(f"{path} is not a report of a lesson")
    return report


def page(reports):
    """The template with style, script and reports in it."""
    text = (SCRIPTS / "page/page.html").read_text(encoding="utf-8")
    for part in PARTS:
        text = text.replace(f"[[{part.partition('/')[2]}]]", (SCRIPTS / part).read_text(encoding="utf-8"), 1)
    data = json.dumps(reports, separators=(",", ":"), ensure_ascii=False).replace("</", "<\\/")
    return text.replace("[[page.json]]", data, 1)


def named(paths, reports):
    """The reports; where two are of one lesson on as many ranks, each has the name of its file."""
    kinds = [(report["lesson"], report["ranks"]) for report in reports]
    return [{**report, "file": path.stem} if kinds.count(kind) > 1 else report for path, report, kind in zip(paths, reports, kinds)]


def main(arguments):
    parser = argparse.ArgumentParser(prog="scripts/compare_runs.py", allow_abbrev=False, description="Shows several runs side by side.")
    parser.add_argument("reports", nargs="+", type=pathlib.Path, metavar="REPORT.json", help="documents of --report")
    parser.add_argument("--output", type=pathlib.Path, required=True, help="a file for the page, as HTML")
    options = parser.parse_args(arguments)
    try:
        options.output.write_text(page(named(options.reports, [read(path) for path in options.reports])), encoding="utf-8")
    except (NotAReport, OSError) as error:
        print(f"error: {error}.\n       A lesson writes a report with --report=FILE.json.", file=sys.stderr)
        return 2
    print(f"{options.output}: {len(options.reports)} run{'s'[:len(options.reports) != 1]}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
