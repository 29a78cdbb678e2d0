"""Submissions: a folder, an archive or a single file for each student.

Their contents are read by archives.py, a process of its own for each: a submission that stops its reader stops no other.
"""

import base64
import csv
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

import archives
from archives import ENDING
from exercise_tree import Refused
from catalogue import person
from documents import decoded, shown

MOODLE = re.compile(r"_\d+_assignsubmission_file_.*$", re.DOTALL)  # after the name of a participant
OF_SYSTEMS = ("__MACOSX", "Thumbs.db", "desktop.ini")
WALL_S = 300  # for the reading of one submission, on a busy machine


@dataclasses.dataclass(frozen=True)
class Submission:
    """Submission of one student."""

    student: str
    path: pathlib.Path
    others: tuple = ()  # what else is of this student


@dataclasses.dataclass(frozen=True)
class HandedIn:
    """Files that were read of a submission."""

    student: str
    files: dict       # path -> bytes, or the sentence that says why there are none
    unread: str = ""  # why nothing was read

    @property
    def digest(self):
        """SHA-256, as a hexadecimal text."""
        return digest_of({path: content if isinstance(content, bytes) else content.encode()
                          for path, content in {**self.files, "": self.unread}.items()})


def names_beside(folder):
    """The map names.csv beside a folder of submissions, what stands in their names -> student; empty where there is none. It is
    not in the folder, where students' own files may be."""
    path = folder.resolve().parent / "names.csv"
    if not path.is_file():
        return {}
    lines = decoded(path.read_bytes()).splitlines()
    rows = csv.reader(lines, delimiter=next((mark for mark in "\t;" if lines and mark in lines[0]), ","))
    names, each = {}, f"Each line has a name as in {folder.name} and the student, with a comma between them"
    try:
        for name, student in ((person(row[0]), row[1].strip()) for row in rows if len(row) > 1 and row[0].strip()):
            if name in names or not student:
                raise Refused(f"{path} has {f'{name} twice' if student else f'no student for {name}'}. {each}")
            names[name] = person(student)
    except csv.Error as error:
        raise Refused(f"{path} is no table: {error}. {each}") from None
    if lines and not names:
        raise Refused(f"{path} names no student. {each}")
    return names


def student_of(path, names):
    """Whose a submission is: by the map, or by its name without the ending of archives and what Moodle adds."""
    stem = path.name if path.is_dir() else ENDING.sub("", path.name)
    short = MOODLE.sub("", stem)
    return next((names[person(name)] for name in (path.name, stem, short) if person(name) in names), person(short))


def find_submissions(folder):
    """All submissions in a folder, one a student."""
    if not folder.is_dir():
        raise Refused(f"there is no folder {folder}. Name the one that holds a sub-folder or an archive for each student")
    names, found = names_beside(folder), {}
    for path in sorted(folder.iterdir()):
        hidden = path.name.startswith("._") or path.name.startswith(".") and not ENDING.search(path.name)
        if not hidden and path.name not in OF_SYSTEMS:
            found.setdefault(student_of(path, names), []).append(path)
    if not found:
        raise Refused(f"{folder} has no submissions: neither sub-folders nor archives. Put one for each student there")
    return [Submission(student, first, tuple(others)) for student, (first, *others) in sorted(found.items())]


def submission_of(path, student=""):
    """The submission in a path that was named."""
    if not path.exists():
        raise Refused(f"there is no {path}. Name a folder or an archive")
    return Submission(person(student) if student else student_of(path.resolve(), {}), path.resolve())


def stopped(status):
    """The harm that a submission did to its reader, which has ended with this status."""
    if status == -signal.SIGXCPU:
        return "takes too much processor time"
    return f"stops its reader, with {f'signal {-status}' if status < 0 else f'status {status}'}"


def read_submission(submission, wanted):
    """The files asked for, path -> bytes; in place of one that cannot be read a sentence, a text. Refused if it is all of them."""
    name, *others = (shown(decoded(os.fsencode(path.name))) for path in (submission.path, *submission.others))
    if others:
        raise Refused(f"{', '.join([name, *others])} are all of {submission.student}. Leave the one that counts; names.csv tells people of one name apart")
    if submission.path.is_symlink():  # perhaps to what another student has handed in
        raise Refused(f"{name} is a link. Put the folder or the archive itself there")
    with tempfile.TemporaryFile() as output:
        try:
            done = subprocess.run([sys.executable, "-S", "-B", "-X", "utf8", archives.__file__], stdout=output, stderr=subprocess.DEVNULL, check=False,
                                  input=json.dumps([os.fspath(submission.path), wanted]).encode(), timeout=WALL_S)
        except subprocess.TimeoutExpired:
            raise Refused(f"{name} takes more than {WALL_S} s to read") from None
        output.seek(0)
        try:
            answer = json.load(output)
        except ValueError:
            raise Refused(f"{name} {stopped(done.returncode)}") from None
    if isinstance(answer, str):
        raise Refused(f"{name} {answer}")
    return {path: content if why else base64.b64decode(content) for path, (content, why) in answer.items()}


def hand_in(submission, wanted):
    """Reads a submission, whatever it is."""
    try:
        return HandedIn(submission.student, read_submission(submission, wanted))
    except Exception as error:  # pylint: disable=broad-except  # one must not stop the others
        return HandedIn(submission.student, {}, f"not read, because {shown(str(error))}")


def digest_of(files):
    """SHA-256 over files, path -> bytes, as a hexadecimal text."""
    digest = hashlib.sha256()
    for path, content in sorted(files.items()):
        digest.update(f"{path}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()
