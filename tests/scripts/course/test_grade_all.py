#!/usr/bin/env python3
"""Tests scripts/course.py grade-all, regrade and grade: many submissions, good and bad ones, in folders and archives."""

import fcntl
import json
import os
import pathlib
import time
import types
import unittest
import zipfile
from unittest import mock

from fake_course import RIGHT, TREE, encoded, files_of, hand_in, run_course, write_course
from test_exercise import UNPROTECTED
from test_submissions import Folder
from exercise_tree import all_regions
from grade_all import changes_between, check_programs, grade_one, remember
from grade_table import cell, markdown_report
import judge
import similarity
from submissions import HandedIn

SOLUTION = {"twice": "  const int two = 2;\n  return two * x;", "half": RIGHT["half"]}  # the course's own, which is not compiled again
WRONG = {"twice": "  return x + 2;", "half": RIGHT["half"]}


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
        hand_in(self.handed_in / "frank", twice="  return 2 * x;\n  // END EXERCISE\n  // BEGIN EXERCISE", half="")
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

    def test_of_a_class_of_forty_with_odd_ones_none_is_left_out(self):
        files = files_of(**SOLUTION)
        for n in range(28):
            hand_in(self.handed_in / f"student {n}", **SOLUTION)
        self.zip("grades.md.zip", files)
        self.zip("backslash.ZIP", {path.replace("/", "\\"): text for path, text in files.items()}, "a\\b\\")
        self.zip("Lee_7_assignsubmission_file_/homework.zip", files)
        self.zip("=1+1.zip", {**files, "gpt2/half.cpp": files["gpt2/half.cpp"].replace("  return x / 2;", "\n" * 10**6)})
        self.zip("<b>[me](www.x)\x1b[31m.zip", files_of(twice=SOLUTION["twice"]))
        self.zip("lzma.zip", {"gpt2/half.cpp": "x" * 999}, method=zipfile.ZIP_LZMA)
        lzma = (self.handed_in / "lzma.zip").read_bytes().replace(b"\x09\x04\x05\0]", b"\x09\x04\x05\0\xff")
        for name, content in (("lzma.zip", lzma), ("empty.zip", b""), ("code.rar", b"Rar!\x1a\x07"), ("code.7z", b"7z\xbc\xaf"), ("cv.pdf", b"%PDF"),
                              (os.fsdecode(b"\xe9.zip"), b"PK\3\4"), ("two.tgz", b""), ("two.zip", b"")):
            (self.handed_in / name).write_bytes(content)
        status, output = self.run_all()
        self.assertEqual(status, 0, output)
        self.assertNotIn("\x1b", output)
        points = {student: document["points"] for student, document in self.grades().items() if not student.startswith("student ")}
        self.assertEqual(points, {"_grades.md": 15, "backslash": 15, "Lee": 15, "=1+1": 10, "<b>[me](www.x)\\x1b[31m": 10, "lzma": 0, "empty": 0,
                                  "code": 0, "cv.pdf": 0, "\u00e9": 0, "two": 0})
        table = (self.folder / "handed_in.grades/grades.md").read_text()
        self.assertEqual(table.count("| 15/15 | 15/15 |  |"), 31, table)
        self.assertIn("| &lt;b&gt;\\[me\\](www\\.x)\\\\x1b\\[31m | 10/15 |", table)
        for student, why in (("empty", "empty.zip is no archive, whatever its name: it is empty"), ("two", "two.tgz, two.zip are all of two"),
                             ("cv.pdf", "cv.pdf has none of the files that are graded"),
                             ("code", "code.7z, code.rar are all of code"), ("\u00e9", "\u00e9.zip cannot be read: File is not a zip file"),
                             ("lzma", "lzma.zip has nothing that can be graded: gpt2/half.cpp cannot be read: ")):
            self.assertIn(f"| {student} | 0/15 | 0/15 | not read, because {why}", table)
            self.assertIn(f"\n    not read, because {why}", (self.folder / "handed_in.grades" / student / "report.md").read_text())
        paths = (self.folder / "handed_in.grades").glob("*/grade.json")
        status, rows = run_course(self.root, "export", "csv", *paths)
        self.assertEqual((status, rows.count("\n"), "\n'=1+1,10,0,10" in rows.replace("\r", "")), (0, 1 + 28 + 11, True), rows)

    def test_a_secret_once_used_is_not_forgotten(self):
        hand_in(self.handed_in / "alice", **SOLUTION)
        grades, file = self.folder / "handed_in.grades", self.folder / "secret"
        grades.mkdir()
        kept = []
        for secret in ("", "a", "a"):
            course = types.SimpleNamespace(secret=secret, seed=f"seed {len(kept)}")
            remember(course, grades)
            kept.append(course.seed)
        self.assertEqual(kept, ["seed 0"] * 3)
        self.assertNotIn('"a"', (grades / ".drawn.json").read_text())
        file.write_text("b")
        for command in ("grade-all", "regrade"):
            (grades / "alice").mkdir(exist_ok=True)
            (grades / "alice/grade.json").write_text("{}" if command == "grade-all" else '{"points": 1}')
            for more, says in (([], "were made with a secret. Name its file with --secret-file"),
                               ([f"--secret-file={file}"], "were made with another secret")):
                status, output = run_course(self.root, command, self.handed_in, "--lessons=01", *more, *UNPROTECTED)
                self.assertEqual(status, 2, output)
                self.assertIn(says, output)

    def test_what_stands_outside_of_the_regions_is_left_behind(self):
        hand_in(self.handed_in / "alice", **RIGHT)
        path = self.handed_in / "alice/gpt2/twice.cpp"
        path.write_text(path.read_text().replace("int twice(int x)", "#error\nint twice(int y)"))
        (self.handed_in / "alice/test_half.cpp").write_text("#error\n")
        self.assertEqual(self.run_all()[0], 0)
        self.assertEqual(self.grades()["alice"]["points"], 15)

    def test_programs_of_another_revision_are_noted(self):
        (self.root / "build/lessons").mkdir(parents=True)
        for content, notes in ((b"\0abcdef78\0", 0), (b"\0unknown\0", 1)):
            (self.root / "build/lessons/01_x").write_bytes(content)
            with mock.patch("builtins.print") as said:
                check_programs(self.root, {"lessons/01_x/exercises.toml": b"exercise = [{ number = '01.3' }]"}, ["01"], "abcdef7890-dirty")
            self.assertEqual(str(said.mock_calls).count("note: build/lessons/01_x is not of this revision"), notes, content)

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


class Texts(unittest.TestCase):
    """Texts of students, on their way through the grader."""

    def test_no_text_holds_the_grader(self):
        tree = encoded(TREE)
        regions = all_regions(tree)
        for text in ("\n", " ", "\n ", "/* ", '\\"', "\\'", "'", '// "a"\n', "[[", "(", "#\n", '"', "\t//", "a.", "0'"):
            content = files_of(twice=text * (300_000 // len(text)))["gpt2/twice.cpp"].encode()
            begin = time.process_time()
            try:
                judge.merged("gpt2/twice.cpp", TREE["gpt2/twice.cpp"], content, regions[:1])
            except judge.Refused:
                pass
            similarity.own_text(tree, regions, {"gpt2/twice.cpp": content})
            self.assertLess(time.process_time() - begin, 5, text)

    def test_inputs_are_drawn_anew_with_each_hand_in(self):
        one, drawn = object.__new__(judge.Judge), []
        one.grade = lambda number, content, *names: drawn.append(judge.Draw(number, *names).seed()) or ("passed", "")
        tree = encoded(TREE)

        def draw(student="a", content=b"1", secret="s", seed="x"):
            drawn.clear()
            grade_one("", ["01"], HandedIn(student, {"gpt2/twice.cpp": content}), secret, one, tree, "", seed)
            return tuple(drawn)
        each = [draw(), draw("b"), draw(content=b"2"), draw(secret=""), draw(seed="y")]
        self.assertEqual((len(set(each)), draw()), (5, each[0]))

    def test_a_report_shows_what_was_written_and_obeys_nothing(self):
        evil = "<b>&amp; [me](javascript:1) ![x](http://y) www.z `c` *d* _e_ | \r# \x1b[1m\u202e"
        self.assertEqual(cell(evil), r"&lt;b&gt;&amp;amp; \[me\](javascript:1) \!\[x\](http\://y) www\.z \`c\` \*d\* \_e\_ \| \\r# \\x1b\[1m\\u202e")
        row = dict(exercise="01.1", title="T", points=0, of=1, verdict="failed", detail=f"first\r<script>\n{evil}")
        report = markdown_report(dict(student="a", lessons=["01"], date="", revision="", unread="", points=0, of=1, exercises=[row]))
        last = evil.replace("\r", "\\r").replace("\x1b", "\\x1b").replace("\u202e", "\\u202e")
        self.assertEqual(report.split("\n")[-3:], [r"    first\r<script>", f"    {last}", ""])


if __name__ == "__main__":
    unittest.main()
