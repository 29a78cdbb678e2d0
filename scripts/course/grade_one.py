"""Grades what one student handed in: grade.json, the result that everything else is made from."""

import pathlib
import tempfile

import catalogue
import exercise
from exercise_tree import Refused, all_regions, find_regions, markers, replace_bodies
from grade_table import document_of
from submissions import read_submission


def regions_of(tree, lesson):
    return [region for region in all_regions(tree) if region.exercise.split(".")[0] == lesson]


def wanted_files(tree, lessons):
    """What is read of a submission: the files with regions, and the answers."""
    regions = [region for lesson in lessons for region in regions_of(tree, lesson)]
    return sorted({region.path for region in regions} | {catalogue.sheet_of(lesson) for lesson in lessons})


def transplanted(tree, regions, submitted):
    """The files of the course with a student's bodies in these regions, path -> bytes. Whatever else the student changed in
    them is left behind. Refused where a file or a marker is missing."""
    files = {}
    for path in sorted({region.path for region in regions}):
        if path not in submitted:
            raise Refused(f"{path} is missing")
        text, reference = submitted[path].decode(errors="replace").replace("\r\n", "\n"), tree[path].decode()
        if markers(path, text) != markers(path, reference):
            raise Refused(f"{path}: the lines BEGIN EXERCISE and END EXERCISE must be those of the course; restore them and "
                          "write only between them")
        lines = text.split("\n")
        bodies = {region.exercise: lines[region.body:region.end] for region in find_regions(path, text)}
        mine = [region for region in regions if region.path == path]
        files[path] = replace_bodies(reference, mine, lambda region: bodies[region.exercise]).encode()  # noqa: B023
    return files


def refused_rows(regions, why):
    return [dict(exercise=region.exercise, points=0, of=region.points, verdict="refused", detail=why) for region in regions]


def lesson_rows(root, tree, lesson, submitted, student, secret, bench):
    """The rows of one lesson. The other lessons are the course's own, so that no mistake counts twice."""
    regions = regions_of(tree, lesson)
    try:
        rows = exercise.judge(bench, tree, regions, transplanted(tree, regions, submitted)) if regions else []
    except Refused as refusal:
        rows = refused_rows(regions, str(refusal))
    titles = {region.exercise: region.title for region in regions}
    rows = [dict(exercise=row["exercise"], kind="implement", title=titles[row["exercise"]],
                 **{key: row[key] for key in ("points", "of", "verdict", "detail")}) for row in rows]
    answers = catalogue.answers_module()
    if answers and catalogue.is_answered(tree, lesson):
        with tempfile.TemporaryDirectory() as folder:
            sheet = pathlib.Path(folder) / catalogue.sheet_of(lesson)
            if sheet.name in submitted:
                sheet.write_bytes(submitted[sheet.name])
            # The figures come from the programs of the course, never from those that hold a student's code.
            rows += answers.grade_answers(root, root / "build", lesson, catalogue.figures_of(student, secret), sheet, secret)
    return sorted(rows, key=lambda row: [int(part) for part in row["exercise"].split(".")])


def grade_one(root, lessons, submission, secret, bench, tree, revision):
    """Grades a submission on some lessons of the course, `tree`, of a revision, where `bench` builds. A submission that cannot be read has
    a grade too: each of its exercises is refused, with the reason."""
    try:
        submitted = read_submission(submission, wanted_files(tree, lessons))
    except Refused as refusal:
        rows = [dict(exercise=entry["number"], kind=entry["kind"], title=entry["title"], points=0, of=entry["points"],
                     verdict="refused", detail=str(refusal)) for entry in catalogue.entries_of(tree, lessons)]
        return document_of(lessons, submission.student, revision, rows)
    rows = [row for lesson in lessons
            for row in lesson_rows(root, tree, lesson, submitted, submission.student, secret, bench)]
    return document_of(lessons, submission.student, revision, rows)
