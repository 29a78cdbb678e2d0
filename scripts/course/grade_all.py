"""Grades many submissions: each once, each apart from the others, in build folders that are kept.

Beside the folder of submissions, FOLDER.grades has a folder for each student, with grade.json and report.md, and a table of all,
grades.md. What is there already and was graded from the same submission by the same course is not graded again.
"""

import concurrent.futures
import contextlib
import dataclasses
import fcntl
import json
import traceback

import catalogue
from exercise_tree import Refused, read_tree, without_links, write_whole
from grade_one import grade_one, regions_of, wanted_files
from grader import Grader
from grade_table import markdown_report, markdown_table, table_of
from pack import check_lessons, revision_of
from sandbox import require_sandbox
from submissions import digest_of, find_submissions, read_submission, submission_of


@contextlib.contextmanager
def locked(folder):
    """Holds the lock of a folder, which is made; Refused if another process has it."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w", encoding="utf-8", opener=without_links) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise Refused(f"another grading runs in {folder}. Wait for its end, or grade in another folder") from error
        yield


class Course:
    """The course that grades: one build, which all submissions share."""

    def __init__(self, root, lessons, secret, jobs, protected=True):
        self.root, self.lessons, self.secret, self.tree = root, lessons, secret, read_tree(root)
        check_lessons(self.tree, lessons)
        if jobs < 1:
            raise Refused(f"--jobs={jobs}: name at least one")
        self.digest, self.revision = digest_of(self.tree), revision_of(root)
        self.work, self.jobs, self.protected = root / "build/grade-all", jobs, protected
        self.grader = Grader(root, self.tree, self.work, protected)

    def prepare(self):
        """Builds what is not the student's; Refused if the course itself does not compile, if programs are missing that
        answers are compared with, or if there can be no sandbox."""
        if self.protected:
            require_sandbox()
        for lesson in self.lessons if catalogue.answers_module() else []:
            if catalogue.is_answered(self.tree, lesson) and not list((self.root / "build/lessons").glob(f"{lesson}_*")):
                raise Refused(f"answers are compared with the course's own programs, and that of lesson {lesson} is not built. "
                              "Build them: make build")
        self.grader.prepare([region for lesson in self.lessons for region in regions_of(self.tree, lesson)])

    def stamp_of(self, submission):
        """What a grade depends on."""
        try:
            handed_in = digest_of(read_submission(submission, wanted_files(self.tree, self.lessons)))
        except Refused as refusal:
            handed_in = str(refusal)
        return dict(course=self.digest, lessons=self.lessons, submission=handed_in)

    def grade(self, submission):
        """The grade of one submission."""
        return grade_one(self.root, self.lessons, submission, self.secret, self.grader, self.tree, self.revision)


def read_json(path):
    """A document, or None where there is none or a broken one."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def keep(folder, document, stamp):
    """Writes a student's grade: what is written last says that the rest is there."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "stamp.json").unlink(missing_ok=True)
    write_whole(folder / "grade.json", json.dumps(document, indent=2) + "\n")
    write_whole(folder / "report.md", markdown_report(document))
    write_whole(folder / "stamp.json", json.dumps(stamp, indent=2) + "\n")


def grade_each(course, submissions, grades):
    """Grades those submissions of which there is no grade yet. Returns the documents by student, and the students whose
    grading failed through no fault of theirs, with the reason."""
    stamps = {submission.student: course.stamp_of(submission) for submission in submissions}
    todo = [submission for submission in submissions
            if read_json(grades / submission.student / "stamp.json") != stamps[submission.student]]
    failed = {}
    print(f"{len(submissions)} submissions, {len(submissions) - len(todo)} graded before", flush=True)
    if todo:
        course.prepare()
    with concurrent.futures.ThreadPoolExecutor(course.jobs) as pool:
        running = {pool.submit(course.grade, submission): submission.student for submission in todo}
        for done in concurrent.futures.as_completed(running):
            student = running[done]
            try:
                document = done.result()
                keep(grades / student, document, stamps[student])
                print(f"{student}: {document['points']}/{document['of']}", flush=True)
            except Exception as error:  # pylint: disable=broad-except  # one must not stop the others
                failed[student] = f"{type(error).__name__}: {error}"
                print(f"{student}: could not be graded: {failed[student]}\n{traceback.format_exc()}", flush=True)
    documents = {submission.student: read_json(grades / submission.student / "grade.json") for submission in submissions}
    return {student: document for student, document in documents.items() if document and student not in failed}, failed


def grades_of(folder):
    """Where the grades of a folder of submissions are."""
    return folder.resolve().with_name(folder.resolve().name + ".grades")


def grade_all(root, lessons, folder, secret, jobs, protected=True):
    """Grades a folder of submissions and writes the table. Exit status 0, or 1 if some could not be graded."""
    course, submissions, grades = Course(root, lessons, secret, jobs, protected), find_submissions(folder), grades_of(folder)
    with locked(course.work), locked(grades):
        documents, failed = grade_each(course, submissions, grades)
        table = markdown_table(lessons, documents, failed)
        write_whole(grades / "grades.md", table)
    print(f"\n{table}\nWrote {grades}")
    return 1 if failed else 0


def changes_between(before, after):
    """The lines about exercises of one student whose verdicts or points have changed."""
    old = {row["exercise"]: row for row in before["exercises"]}
    lines = []
    for row in after["exercises"]:
        was = old.pop(row["exercise"], None)
        then = f"{was['verdict']}, {was['points']}/{was['of']}" if was else "not graded"
        now = f"{row['verdict']}, {row['points']}/{row['of']}"
        if then != now:
            lines.append(f"| {after['student']} | {row['exercise']} | {then} | {now} |")
    return lines + [f"| {after['student']} | {exercise} | {row['verdict']}, {row['points']}/{row['of']} | no longer there |"
                    for exercise, row in old.items()]


def regrade(root, lessons, folder, secret, jobs, protected=True):
    """Grades all again, and lists what has changed since the last time, in changes.md too."""
    grades, submissions = grades_of(folder), find_submissions(folder)
    before = {submission.student: read_json(grades / submission.student / "grade.json") for submission in submissions}
    if not any(before.values()):
        raise Refused(f"{grades} has no grades yet. Begin with scripts/course.py grade-all {folder}")
    course = Course(root, lessons, secret, jobs, protected)
    with locked(course.work), locked(grades):
        for submission in submissions:
            (grades / submission.student / "stamp.json").unlink(missing_ok=True)
        documents, failed = grade_each(course, submissions, grades)
        write_whole(grades / "grades.md", markdown_table(lessons, documents, failed))
        lines = [line for student, document in documents.items() if before[student]
                 for line in changes_between(before[student], document)]
        table = ["| student | exercise | before | now |", "|---|---|---|---|", *lines]
        changes = "\n".join(table) if lines else "No verdict changed."
        write_whole(grades / "changes.md", changes + "\n")
    print(f"\n{changes}\n\nWrote {grades}")
    return 1 if failed else 0


def grade_submission(root, lessons, path, student, secret, json_file, protected=True):
    """Grades one submission and prints the points. Exit status 0 if there are all points, else 1."""
    course, submission = Course(root, lessons, secret, 1, protected), submission_of(path)
    submission = dataclasses.replace(submission, student=student or submission.student)
    with locked(course.work):
        course.prepare()
        document = course.grade(submission)
    print("\n".join(table_of(document["exercises"])))
    if json_file:
        write_whole(json_file, json.dumps(document, indent=2) + "\n")
    return 0 if document["points"] == document["of"] else 1
