"""Grades submissions, one or many: each once, each apart from the others, in build folders that are kept.

Beside the folder of submissions, FOLDER.grades has a folder for each student, with grade.json and report.md, and a table of all,
grades.md. What is there already and was graded from the same submission by the same course, with the same secret, is not graded
again. All of a submission is read before anything is graded; what was graded of an earlier one goes first.
"""

import concurrent.futures
import contextlib
import fcntl
import hashlib
import json
import secrets
import traceback

import catalogue
from exercise_tree import Refused, all_regions, in_order, read_tree, without_links, write_whole
from grade_table import document_of, markdown_report, markdown_table, table_of
from judge import Judge
from pack import check_lessons, revision_of
from sandbox import require_sandbox
from submissions import digest_of, find_submissions, hand_in, submission_of


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


def wanted_files(tree, lessons):
    """Names of the files that are read of a submission: those with regions, and the answers."""
    regions = [region for lesson in lessons for region in all_regions(tree, lesson)]
    return sorted({region.path for region in regions} | {catalogue.sheet_of(lesson) for lesson in lessons})


def lesson_rows(root, tree, lesson, handed_in, secret, judge, seed):
    """The rows of one lesson. Each exercise is judged with the course's other ones, so that no mistake counts twice."""
    student, files = handed_in.student, handed_in.files
    rows = judge.rows(all_regions(tree, lesson), files, secret, student, seed, handed_in.digest)
    answers = catalogue.answers_module()
    if answers and catalogue.is_answered(tree, lesson):
        # The figures come from the programs of the course, never from those that hold a student's code.
        rows += answers.grade_answers(root, root / "build", lesson, catalogue.figures_of(student, secret),
                                      files.get(catalogue.sheet_of(lesson), "there is no file of answers"), secret)
    return sorted(rows, key=lambda row: in_order(row["exercise"]))


def unread_document(tree, lessons, student, revision, why):
    """The grade of a submission of which nothing can be graded: each of its exercises is refused, with the reason."""
    rows = [dict(exercise=entry["number"], kind=entry["kind"], title=entry["title"], points=0, of=entry["points"],
                 verdict="refused", detail=why) for entry in catalogue.entries_of(tree, lessons)]
    return document_of(lessons, student, revision, rows, why)


def grade_one(root, lessons, handed_in, secret, judge, tree, revision, seed):
    """Grades what was read of a submission on some lessons of the course, `tree`, of a revision.
    @param seed  decides, with the secret, the student and what was handed in, the inputs of programs."""
    if handed_in.unread:
        return unread_document(tree, lessons, handed_in.student, revision, handed_in.unread)
    rows = [row for lesson in lessons for row in lesson_rows(root, tree, lesson, handed_in, secret, judge, seed)]
    return document_of(lessons, handed_in.student, revision, rows)


class Course:
    """The course that grades: one build, which all submissions share."""

    def __init__(self, root, lessons, secret, jobs, protected=True):
        self.root, self.lessons, self.secret, self.tree = root, lessons, secret, read_tree(root)
        self.seed = secrets.token_hex(16)  # of the inputs, which no student can know
        check_lessons(self.tree, lessons)
        if jobs < 1:
            raise Refused(f"--jobs={jobs}: name at least one")
        self.digest, self.revision = digest_of(self.tree), revision_of(root)
        self.work, self.jobs, self.protected = root / "build/grade-all", jobs, protected
        self.judge = Judge(root, self.tree, self.work / "judge", protected)

    def prepare(self):
        """Builds what is not the student's; Refused if the course itself does not compile, if programs are missing that
        answers are compared with, or if there can be no sandbox."""
        if self.protected:
            require_sandbox()
        check_programs(self.root, self.tree, self.lessons, self.revision)
        self.judge.build([region.exercise for lesson in self.lessons for region in all_regions(self.tree, lesson)])

    def read(self, submission):
        """Reads the files that were handed in."""
        return hand_in(submission, wanted_files(self.tree, self.lessons))

    def stamp_of(self, handed_in):
        """Everything that a grade depends on."""
        return dict(course=self.digest, lessons=self.lessons, secret=digest_of_secret(self.secret), submission=handed_in.digest)

    def grade(self, handed_in):
        """The grade of what was handed in."""
        return grade_one(self.root, self.lessons, handed_in, self.secret, self.judge, self.tree, self.revision, self.seed)

    def unread(self, student, why):
        """The grade where there is none."""
        return unread_document(self.tree, self.lessons, student, self.revision, why)


def check_programs(root, tree, lessons, revision):
    """Refused if a program that answers are compared with is not built; a note if it is built from another revision."""
    for lesson in lessons if catalogue.answers_module() else []:
        if catalogue.is_answered(tree, lesson):
            program = next((root / "build/lessons").glob(f"{lesson}_*"), None)
            if not program:
                raise Refused(f"answers are compared with the course's own programs, and that of lesson {lesson} is not built. Build them: make build")
            if revision[:7].encode() not in program.read_bytes():  # which has the first digits for its reports
                print(f"note: build/lessons/{program.name} is not of this revision, and answers are compared with what it says. Build it: make build", flush=True)


def digest_of_secret(secret):
    """A digest by which a secret is recognised without keeping it; empty where there is none."""
    return hashlib.sha256(f"secret of a course: {secret}".encode()).hexdigest() if secret else ""


def remember(course, grades):
    """Keeps with the grades how inputs and figures are drawn: a seed, and the digest of the secret. Another secret, or none where
    there was one, is refused: all figures would be others, and right answers wrong."""
    path, digest = grades / ".drawn.json", digest_of_secret(course.secret)
    known = read_json(path) or {}
    if known.get("secret", "") not in ("", digest):
        raise Refused(f"the grades in {grades} were made with {'another' if digest else 'a'} secret. Name its file with --secret-file; "
                      f"if figures are to be drawn anew for all, remove {path}")
    course.seed = known.get("seed", course.seed)
    write_whole(path, json.dumps(dict(seed=course.seed, secret=digest)) + "\n")


def read_json(path):
    """A document, or None where there is none or a broken one."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, RecursionError, ValueError):
        return None


def keep(folder, document, stamp):
    """Writes a student's grade: what is written last says that the rest is there. With no stamp it is made again next time."""
    folder.mkdir(parents=True, exist_ok=True)
    forget(folder)
    write_whole(folder / "grade.json", json.dumps(document, indent=2) + "\n")
    write_whole(folder / "report.md", markdown_report(document))
    if stamp:
        write_whole(folder / "stamp.json", json.dumps(stamp, indent=2) + "\n")


def forget(folder):
    """Removes the grade of an earlier submission."""
    for name in ("stamp.json", "grade.json", "report.md"):
        (folder / name).unlink(missing_ok=True)


def to_grade(course, handed_in, grades, again):
    """The submissions without a grade yet, or all of them, with their stamps. No grade of an earlier submission stays, nor
    one of a student who has none now."""
    todo, students = [], {one.student for one in handed_in}
    for one in handed_in:
        stamp, old = course.stamp_of(one), read_json(grades / one.student / "stamp.json") or {}
        if stamp["submission"] != old.get("submission"):
            forget(grades / one.student)
        if again or stamp != old or not read_json(grades / one.student / "grade.json"):
            todo.append((one, stamp))
    for path in grades.glob("*/grade.json"):
        if path.parent.name not in students:
            print(f"{path.parent.name} has handed in nothing: the grade of before is in earlier.json", flush=True)
            path.replace(path.with_name("earlier.json"))
            forget(path.parent)
    return todo


def grade_each(course, submissions, grades, again=False):
    """Grades those submissions of which there is no grade yet, or all again. Returns the documents by student, and how many could
    not be graded through no fault of the student."""
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(course.jobs) as pool:
        todo = to_grade(course, list(pool.map(course.read, submissions)), grades, again)
        print(f"{len(submissions)} submissions, {len(submissions) - len(todo)} graded before", flush=True)
        if any(not handed_in.unread for handed_in, _ in todo):
            course.prepare()
        running = {pool.submit(course.grade, handed_in): (handed_in.student, stamp) for handed_in, stamp in todo}
        for done in concurrent.futures.as_completed(running):
            student, stamp = running[done]
            try:
                document = done.result()
            except Exception as error:  # pylint: disable=broad-except  # one must not stop the others
                document, stamp = course.unread(student, f"could not be graded: {type(error).__name__}: {error}"), None
                failed += 1
                print(traceback.format_exc(), flush=True)
            keep(grades / student, document, stamp)
            print(f"{student}: {document['unread'] or str(document['points']) + '/' + str(document['of'])}", flush=True)
    return {one.student: read_json(grades / one.student / "grade.json") for one in submissions}, failed


def grades_of(folder):
    """Folder of the grades of a folder of submissions."""
    return folder.resolve().with_name(folder.resolve().name + ".grades")


def grade_all(root, lessons, folder, secret, jobs, protected=True):
    """Grades a folder of submissions and writes the table. Exit status 0, or 1 if some could not be graded."""
    course, submissions, grades = Course(root, lessons, secret, jobs, protected), find_submissions(folder), grades_of(folder)
    with locked(course.work), locked(grades):
        remember(course, grades)
        documents, failed = grade_each(course, submissions, grades)
        table = markdown_table(lessons, documents)
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
        remember(course, grades)
        documents, failed = grade_each(course, submissions, grades, again=True)
        write_whole(grades / "grades.md", markdown_table(lessons, documents))
        lines = [line for student, document in documents.items() if before[student]
                 for line in changes_between(before[student], document)]
        table = ["| student | exercise | before | now |", "|---|---|---|---|", *lines]
        changes = "\n".join(table) if lines else "No verdict changed."
        write_whole(grades / "changes.md", changes + "\n")
    print(f"\n{changes}\n\nWrote {grades}")
    return 1 if failed else 0


def grade_submission(root, lessons, path, student, secret, json_file, protected=True):
    """Grades one submission and prints the points. Exit status 0 if there are all points, else 1."""
    course, submission = Course(root, lessons, secret, 1, protected), submission_of(path, student)
    if json_file:
        write_whole(json_file, "")  # no grade of before stays
    with locked(course.work):
        course.prepare()
        document = course.grade(course.read(submission))
    print("\n".join(table_of(document["exercises"])))
    if json_file:
        write_whole(json_file, json.dumps(document, indent=2) + "\n")
    return 0 if document["points"] == document["of"] else 1
