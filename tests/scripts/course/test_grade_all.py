#!/usr/bin/env python3
"""Tests scripts/course.py grade-all, regrade and grade: many submissions, good and bad ones, in folders and archives."""

import fcntl
import io
import json
import pathlib
import shutil
import stat
import tarfile
import tempfile
import unittest
import zipfile

from fake_course import RIGHT, files_of, hand_in, run_course, write_course
from test_exercise import UNPROTECTED
import submissions
from exercise_tree import Refused
from grade_all import changes_between
from submissions import Submission, find_submissions, read_submission

WRONG = {"twice": "  return x + 2;", "half": RIGHT["half"]}
WANTED = ["gpt2/half.cpp", "gpt2/twice.cpp"]


class Folder(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        self.handed_in = self.folder / "handed_in"
        self.handed_in.mkdir()

    def zip(self, name, files, prefix=""):
        with zipfile.ZipFile(self.handed_in / name, "w") as archive:
            for path, text in files.items():
                archive.writestr(prefix + path, text)

    def tar(self, name, files, prefix="", links=()):
        with tarfile.open(self.handed_in / name, "w:gz") as archive:
            for path, text in files.items():
                entry = tarfile.TarInfo(prefix + path)
                entry.size = len(text)
                archive.addfile(entry, io.BytesIO(text.encode()))
            for path, target in links:
                entry = tarfile.TarInfo(path)
                entry.type, entry.linkname = tarfile.SYMTYPE, target
                archive.addfile(entry)


class Read(Folder):
    def read(self, name):
        found = read_submission(Submission("s", self.handed_in / name), WANTED)
        return {path: content.decode() for path, content in found.items()}

    def refuses(self, name, *words):
        with self.assertRaises(Refused) as refusal:
            self.read(name)
        for word in (name, *words):
            self.assertIn(word, str(refusal.exception))

    def test_folders_and_archives_give_the_same(self):
        files = files_of(**RIGHT)
        hand_in(self.handed_in / "a", **RIGHT)
        hand_in(self.handed_in / "b/rankwise-main", **RIGHT)
        self.zip("c.zip", files)
        self.zip("d.zip", files, "rankwise-main/")
        self.tar("e.tar.gz", files, "./")
        self.tar("f.tgz", files, "home/f/")
        for name in ("a", "b", "c.zip", "d.zip", "e.tar.gz", "f.tgz"):
            self.assertEqual(self.read(name), files, name)

    def test_the_copies_nearest_to_the_top_count(self):
        deep = {f"build/grade/source/{path}": "old" for path in WANTED}
        self.zip("a.zip", {**deep, **files_of(**RIGHT)})
        self.assertEqual(self.read("a.zip"), files_of(**RIGHT))
        self.zip("b.zip", {**{f"x/{path}": "1" for path in WANTED}, **{f"y/{path}": "2" for path in WANTED}})
        self.refuses("b.zip", "several copies", "x/, y/")

    def test_names_that_lead_outside_are_only_names(self):
        files = {f"../../{path}": "evil" for path in WANTED}
        for name, write in (("a.zip", self.zip), ("b.tar.gz", self.tar)):
            write(name, {**files, "/etc/evil": "evil"})
            self.read(name)
        self.assertEqual(sorted(path.name for path in self.folder.rglob("*")), ["a.zip", "b.tar.gz", "handed_in"])

    def test_links_are_refused(self):
        secret = self.folder / "secret.cpp"
        secret.write_text("solution")
        link = self.handed_in / "a/gpt2/half.cpp"
        link.parent.mkdir(parents=True)
        link.symlink_to(secret)
        self.refuses("a", "gpt2/half.cpp is a link")
        (self.folder / "gpt2").mkdir()
        shutil.copy(secret, self.folder / "gpt2/half.cpp")
        (self.handed_in / "b").mkdir()
        (self.handed_in / "b/gpt2").symlink_to(self.folder / "gpt2")
        self.refuses("b", "gpt2/half.cpp is a link")
        self.tar("c.tar.gz", {}, links=[("gpt2/half.cpp", str(secret))])
        self.refuses("c.tar.gz", "is a link")
        with zipfile.ZipFile(self.handed_in / "d.zip", "w") as archive:
            entry = zipfile.ZipInfo("gpt2/half.cpp")
            entry.external_attr = (stat.S_IFLNK | 0o777) << 16
            archive.writestr(entry, str(secret))
        self.refuses("d.zip", "is a link")

    def test_what_is_too_large_is_refused(self):
        large = "x" * (submissions.MOST_BYTES_OF_A_FILE + 1)
        self.zip("a.zip", {WANTED[0]: large})
        self.tar("b.tar.gz", {WANTED[0]: large})
        hand_in(self.handed_in / "c", **RIGHT)
        (self.handed_in / "c" / WANTED[0]).write_text(large)
        for name in ("a.zip", "b.tar.gz", "c"):
            self.refuses(name, "is larger than")
        most, submissions.MOST_BYTES_OF_AN_ARCHIVE = submissions.MOST_BYTES_OF_AN_ARCHIVE, 1 << 16
        self.addCleanup(setattr, submissions, "MOST_BYTES_OF_AN_ARCHIVE", most)
        self.tar("d.tar.gz", {"zeros": "0" * (1 << 20)})
        self.refuses("d.tar.gz", "expands to more than")

    def test_broken_archives_are_refused(self):
        files = files_of(**RIGHT)
        self.zip("a.zip", files)
        self.tar("b.tar.gz", files)
        for name in ("a.zip", "b.tar.gz"):
            path = self.handed_in / name
            for content in (b"", b"no archive", path.read_bytes()[:60]):
                path.write_bytes(content)
                self.refuses(name)

    def test_two_submissions_of_one_student_are_refused(self):
        hand_in(self.handed_in / "a", **RIGHT)
        self.zip("a.zip", files_of(**RIGHT))
        with self.assertRaisesRegex(Refused, "both of a"):
            find_submissions(self.handed_in)


class Grade(Folder):
    def setUp(self):
        super().setUp()
        self.root = self.folder / "course"
        write_course(self.root)

    def run_all(self, command="grade-all"):
        return run_course(self.root, command, self.handed_in, "--lessons=01", "--jobs=2", *UNPROTECTED)

    def grades(self):
        return {path.parent.name: json.loads(path.read_text()) for path in (self.folder / "handed_in.grades").glob("*/grade.json")}

    def test_one_bad_submission_stops_no_other_and_a_second_call_grades_only_what_is_new(self):
        hand_in(self.handed_in / "alice", **RIGHT)
        self.zip("bob.zip", files_of(**WRONG), "rankwise/")
        (self.handed_in / "carol.zip").write_bytes(b"no archive")
        hand_in(self.handed_in / "dave", twice="  return y;", half=RIGHT["half"])
        hand_in(self.handed_in / "erin", twice=RIGHT["twice"])
        hand_in(self.handed_in / "frank", twice="  return 2 * x;\n  // END EXERCISE\n  // BEGIN EXERCISE 01.9", half="")
        status, output = self.run_all()
        self.assertEqual(status, 0, output)
        points = {student: document["points"] for student, document in self.grades().items()}
        self.assertEqual(points, {"alice": 15, "bob": 5, "carol": 0, "dave": 5, "erin": 10, "frank": 0}, output)
        verdicts = {student: [row["verdict"] for row in document["exercises"]] for student, document in self.grades().items()}
        self.assertEqual(verdicts["dave"], ["does not compile", "passed"])
        self.assertEqual(verdicts["carol"], ["refused", "refused"])
        self.assertEqual(verdicts["erin"], ["passed", "refused"])
        self.assertEqual(verdicts["frank"][0], "refused")
        alice = self.grades()["alice"]
        self.assertEqual((alice["student"], alice["lessons"], alice["of"]), ("alice", ["01"], 15))
        self.assertEqual(alice["exercises"][0], {"exercise": "01.1", "kind": "implement", "title": "Twice", "points": 10, "of": 10,
                                                 "verdict": "passed", "detail": ""})
        report = (self.folder / "handed_in.grades/bob/report.md").read_text()
        self.assertIn("# bob: 5 of 15 points", report)
        self.assertIn("| 01.1 | Twice | 0/10 | failed |", report)
        self.assertIn("| bob | 5/15 | 5/15 |", (self.folder / "handed_in.grades/grades.md").read_text())

        dates = {student: document["date"] for student, document in self.grades().items()}
        marked = self.folder / "handed_in.grades/alice/grade.json"
        marked.write_text(marked.read_text().replace(dates["alice"], "kept"))
        hand_in(self.handed_in / "erin", **RIGHT)
        status, output = self.run_all()
        self.assertIn("6 submissions, 5 graded before", output)
        self.assertEqual(self.grades()["alice"]["date"], "kept")
        self.assertEqual(self.grades()["erin"]["points"], 15)

        path = self.root / "gpt2/half.cpp"
        path.write_text(path.read_text().replace("x / 2", "(x + 1) / 2"))
        status, output = self.run_all("regrade")
        self.assertEqual(status, 0, output)
        changes = (self.folder / "handed_in.grades/changes.md").read_text()
        self.assertIn("| alice | 01.2 | passed, 5/5 | failed, 0/5 |", changes)
        self.assertNotIn("01.1", changes)
        self.assertNotIn("carol", changes)

    def test_what_stands_outside_of_the_regions_is_left_behind(self):
        hand_in(self.handed_in / "alice", **RIGHT)
        path = self.handed_in / "alice/gpt2/twice.cpp"
        path.write_text(path.read_text().replace("int twice(int x)", "#error\nint twice(int y)"))
        (self.handed_in / "alice/test_half.cpp").write_text("#error\n")
        self.assertEqual(self.run_all()[0], 0)
        self.assertEqual(self.grades()["alice"]["points"], 15)

    def test_two_gradings_in_one_folder_are_refused(self):
        hand_in(self.handed_in / "alice", **RIGHT)
        (self.folder / "handed_in.grades").mkdir()
        with open(self.folder / "handed_in.grades/.lock", "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            status, output = self.run_all()
        self.assertEqual(status, 2)
        self.assertIn("another grading runs", output)

    def test_a_course_that_does_not_compile_grades_nobody(self):
        hand_in(self.handed_in / "alice", **RIGHT)
        (self.root / "judge_01.cpp").write_text("#error broken\n")
        status, output = self.run_all()
        self.assertEqual(status, 2)
        self.assertIn("the course itself does not compile: judge_01.cpp:1", output)
        self.assertEqual(self.grades(), {})

    def test_one_submission(self):
        hand_in(self.handed_in / "alice", **WRONG)
        grade = self.folder / "grade.json"
        status, output = run_course(self.root, "grade", self.handed_in / "alice", "--lessons=01", f"--json={grade}", "--student=Al", *UNPROTECTED)
        self.assertEqual(status, 1, output)
        self.assertIn("5/15", output)
        self.assertEqual(json.loads(grade.read_text())["student"], "Al")

    def test_misuse(self):
        for arguments, why in ((("grade-all", self.handed_in, "--lessons=01"), "has no submissions"),
                               (("grade-all", self.folder / "none", "--lessons=01"), "there is no folder"),
                               (("grade-all", self.handed_in, "--lessons=09"), "these lessons have exercises: 01"),
                               (("regrade", self.root, "--lessons=01"), "has no grades yet"),
                               (("grade", self.folder / "none", "--lessons=01"), "there is no"),
                               (("grade", self.folder / "\x1b[31m\udce9\u00e9", "--lessons=01"), "\\x1b[31m\\udce9\u00e9"),
                               (("grade-all", self.root, "--lessons=01", "--jobs=0"), "at least one")):
            status, output = run_course(self.root, *arguments)
            self.assertEqual(status, 2, output)
            self.assertIn(why, output)
            self.assertNotIn("\x1b", output)

    def test_changes_name_what_was_added_or_taken_away(self):
        row = {"exercise": "01.1", "verdict": "passed", "points": 1, "of": 1}
        before = {"exercises": [row, {**row, "exercise": "01.2"}]}
        after = {"student": "a", "exercises": [row, {**row, "exercise": "01.3"}]}
        self.assertEqual(changes_between(before, after), ["| a | 01.3 | not graded | passed, 1/1 |",
                                                          "| a | 01.2 | passed, 1/1 | no longer there |"])


if __name__ == "__main__":
    unittest.main()
