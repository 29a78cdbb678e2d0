"""Grades what one student handed in: grade.json, the result that everything else is made from."""

import catalogue
from exercise_tree import Refused, all_regions
from grade_table import document_of
from submissions import read_submission


def regions_of(tree, lesson):
    return [region for region in all_regions(tree) if region.exercise.split(".")[0] == lesson]


def wanted_files(tree, lessons):
    """What is read of a submission: the files with regions, and the answers."""
    regions = [region for lesson in lessons for region in regions_of(tree, lesson)]
    return sorted({region.path for region in regions} | {catalogue.sheet_of(lesson) for lesson in lessons})


def lesson_rows(root, tree, lesson, submitted, student, secret, grader):
    """The rows of one lesson. Each exercise is judged with the course's other ones, so that no mistake counts twice."""
    rows = grader.rows(regions_of(tree, lesson), submitted, student, secret)
    answers = catalogue.answers_module()
    if answers and catalogue.is_answered(tree, lesson):
        # The figures come from the programs of the course, never from those that hold a student's code.
        sheet = catalogue.sheet_of(lesson)
        rows += answers.grade_answers(root, root / "build", lesson, catalogue.figures_of(student, secret),
                                      submitted.get(sheet, f"there is no file {sheet}"), secret)
    return sorted(rows, key=lambda row: [int(part) for part in row["exercise"].split(".")])


def grade_one(root, lessons, submission, secret, grader, tree, revision):
    """Grades a submission on some lessons of the course, `tree`, of a revision. A submission that cannot be read has
    a grade too: each of its exercises is refused, with the reason."""
    try:
        submitted = read_submission(submission, wanted_files(tree, lessons))
    except Refused as refusal:
        rows = [dict(exercise=entry["number"], kind=entry["kind"], title=entry["title"], points=0, of=entry["points"],
                     verdict="refused", detail=str(refusal)) for entry in catalogue.entries_of(tree, lessons)]
        return document_of(lessons, submission.student, revision, rows)
    rows = [row for lesson in lessons
            for row in lesson_rows(root, tree, lesson, submitted, submission.student, secret, grader)]
    return document_of(lessons, submission.student, revision, rows)
