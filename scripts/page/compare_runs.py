#!/usr/bin/env python3
"""Shows several runs side by side: one page of their reports for a browser, which needs no network.

    scripts/page/compare_runs.py A.json B.json ... --output=page.html

The reports are those of --report; the page of one of them is what its run writes with --html.
"""

import pathlib

from pages import NotThere, filled, option_parser, read, refusing, run_script, write_whole


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
