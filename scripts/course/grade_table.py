"""grade.json, the result of grading that everything else is made from, and tables of it to read."""

import datetime
import re

import exercise_tree  # noqa: F401  finds what the other scripts share
from documents import shown

MARKDOWN = re.compile(r"([\\`*_\[\]|~!]|:(?=//)|(?<=www)\.)", re.IGNORECASE)  # what begins emphasis, code, links, pictures, cells


def document_of(lessons, student, revision, rows, unread=""):
    """The grade.json of these rows. @param unread  why nothing could be graded."""
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return dict(student=student, lessons=lessons, revision=revision, date=now, unread=unread,
                points=sum(row["points"] for row in rows), of=sum(row["of"] for row in rows), exercises=rows)


def lines_of(rows, titles):
    """One line an exercise, as soon as its row is there, and one for the sum; rows are those of a grade.json, titles theirs."""
    width, points, of = max(map(len, [*titles, "title"])), 0, 0
    yield f"{'exercise':8}  {'title':{width}}  {'points':>7}  verdict"
    for row in rows:
        points, of = points + row["points"], of + row["of"]
        first, *more = row["detail"].split("\n")
        share, verdict = f"{row['points']}/{row['of']}", row["verdict"] + (f": {first}" if first else "")
        yield f"{row['exercise']:8}  {row['title']:{width}}  {share:>7}  {verdict}"
        yield from (f"{'':{width + 21}}{line}" for line in more)
    yield f"{'total':8}  {'':{width}}  {f'{points}/{of}':>7}"


def table_of(rows):
    """The lines of all rows at once."""
    return list(lines_of(rows, [row["title"] for row in rows]))


def cell(text):
    """A text as a cell or a heading in Markdown, in one line, of which no renderer makes anything but its characters."""
    text = " ".join(shown(str(text)).split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return MARKDOWN.sub(r"\\\1", text)


def quoted(text):
    """The lines of a text as a block in Markdown that is shown as it is."""
    return ["", *(f"    {line}" for line in shown(text).split("\n"))]


def markdown_table(lessons, documents):
    """The points of all students, by lesson; documents by student."""
    lines = ["| student | " + "".join(f"{lesson} | " for lesson in lessons) + "total | |",
             "|---|" + "---:|" * (len(lessons) + 1) + "---|"]
    for student, document in sorted(documents.items()):
        of_lessons = [[row for row in document["exercises"] if row["exercise"].startswith(lesson + ".")] for lesson in lessons]
        points = [f"{sum(row['points'] for row in rows)}/{sum(row['of'] for row in rows)}" for rows in of_lessons]
        lines.append(f"| {cell(student)} | " + "".join(f"{text} | " for text in points)
                     + f"{document['points']}/{document['of']} | {cell(document['unread'])} |")
    return "\n".join(lines) + "\n"


def markdown_report(document):
    """The report that a student gets to read."""
    lines = [f"# {cell(document['student'])}: {document['points']} of {document['of']} points", "",
             f"Lessons {', '.join(document['lessons'])}, graded {document['date']} by revision `{document['revision']}`."]
    lines += quoted(document["unread"]) if document["unread"] else []
    lines += ["", "| exercise | title | points | verdict |", "|---|---|---:|---|"]
    for row in document["exercises"]:
        lines.append(f"| {row['exercise']} | {cell(row['title'])} | {row['points']}/{row['of']} | {row['verdict']} |")
    for row in document["exercises"]:
        if row["detail"] != document["unread"]:
            lines += ["", f"**{row['exercise']}**, {row['verdict']}:", *quoted(row["detail"])]
    return "\n".join(lines) + "\n"
