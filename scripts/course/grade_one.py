"""Grades what one student handed in: grade.json, the result that everything else is made from."""

import catalogue
from exercise_tree import all_regions
from grade_table import document_of


def wanted_files(tree, lessons):
    """Names of the files that are read of a submission: those with regions, and the answers."""
    regions = [region for lesson in lessons for region in all_regions(tree, lesson)]
    return sorted({region.path for region in regions} | {catalogue.sheet_of(lesson) for lesson in lessons})


def lesson_rows(root, tree, lesson, handed_in, secret, grader, seed):
    """The rows of one lesson. Each exercise is judged with the course's other ones, so that no mistake counts twice."""
    student, files = handed_in.student, handed_in.files
    rows = grader.rows(all_regions(tree, lesson), files, secret, student, seed, handed_in.digest)
    answers = catalogue.answers_module()
    if answers and catalogue.is_answered(tree, lesson):
        # The figures come from the programs of the course, never from those that hold a student's code.
        rows += answers.grade_answers(root, root / "build", lesson, catalogue.figures_of(student, secret),
                                      files.get(catalogue.sheet_of(lesson), "there is no file of answers"), secret)
    return sorted(rows, key=lambda row: [int(part) for part in row["exercise"].split(".")])


def unread_document(tree, lessons, student, revision, why):
    """The grade of a submission of which nothing can be graded: each of its exercises is refused, with the reason."""
    rows = [dict(exercise=entry["number"], kind=entry["kind"], title=entry["title"], points=0, of=entry["points"],
                 verdict="refused", detail=why) for entry in catalogue.entries_of(tree, lessons)]
    return document_of(lessons, student, revision, rows, why)


def grade_one(root, lessons, handed_in, secret, grader, tree, revision, seed):
    """Grades what was read of a submission on some lessons of the course, `tree`, of a revision.
    @param seed  decides, with the secret, the student and what was handed in, the inputs of programs."""
    if handed_in.unread:
        return unread_document(tree, lessons, handed_in.student, revision, handed_in.unread)
    rows = [row for lesson in lessons for row in lesson_rows(root, tree, lesson, handed_in, secret, grader, seed)]
    return document_of(lessons, handed_in.student, revision, rows)
