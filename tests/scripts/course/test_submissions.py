#!/usr/bin/env python3
"""Tests scripts/course/submissions.py and archives.py: what students hand in, as it comes and as it should not."""

import base64
import contextlib
import gzip
import io
import os
import pathlib
import random
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import unicodedata
import unittest
import zipfile
from unittest import mock

from fake_course import RIGHT, SCRIPTS, files_of, hand_in
import archives
import grade_all
import submissions
from exercise_tree import Refused
from grade_all import unread_document
from grade_table import document_of
from submissions import Submission, find_submissions, read_submission

WANTED = ["answers-01.toml", "gpt2/half.cpp", "gpt2/twice.cpp"]
FILES = {"answers-01.toml": '["01.3"]\n', **files_of(**RIGHT)}
ALL = "RANKWISE_ALL" in os.environ  # 4,000 mutated archives, at night


class Folder(unittest.TestCase):
    """Builders of submissions in a folder."""

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        self.handed_in = self.folder / "handed_in"
        self.handed_in.mkdir()

    def zip(self, name, files, prefix="", method=zipfile.ZIP_DEFLATED):
        (self.handed_in / name).parent.mkdir(exist_ok=True)
        with zipfile.ZipFile(self.handed_in / name, "w", method) as archive:
            for path, text in files.items():
                archive.writestr(prefix + path, text)

    def tar(self, name, files, prefix="", links=(), mode="w:gz"):
        with tarfile.open(self.handed_in / name, mode) as archive:
            for path, text in files.items():
                entry = tarfile.TarInfo(prefix + path)
                entry.size = len(text)
                archive.addfile(entry, io.BytesIO(text.encode()))
            for path, target in links:
                entry = tarfile.TarInfo(path)
                entry.type, entry.linkname = tarfile.SYMTYPE, target
                archive.addfile(entry)


class Read(Folder):
    """Files found in a submission; in this process."""

    def read(self, name):
        answer = archives.read(str(self.handed_in / name), WANTED)
        return {path: content if why else base64.b64decode(content).decode() for path, (content, why) in answer.items()}

    def refuses(self, name, *words):
        """All of it, or each file."""
        try:
            said = "; ".join(self.read(name).values())
        except Exception as error:  # pylint: disable=broad-except  # as main() has it
            said = archives.why(error)
        for word in words:
            self.assertIn(word, said, name)
        self.assertNotIn("BEGIN EXERCISE", said)

    def test_all_that_students_hand_in_gives_the_same(self):
        hand_in(self.handed_in / "a", **RIGHT)
        shutil.copytree(self.handed_in / "a", self.handed_in / "b/deep/er/rankwise-main")
        for folder in ("a", "b/deep/er/rankwise-main"):
            (self.handed_in / folder / "answers-01.toml").write_text(FILES["answers-01.toml"])
        flat = {path.split("/")[-1]: text for path, text in FILES.items()}
        self.zip("c.ZIP", FILES)
        self.zip("d.zip", FILES, "rankwise-main/")
        self.zip("e.zip", {path.replace("/", "\\"): text for path, text in FILES.items()}, "rankwise\\")
        self.zip("f.zip", {f"\u00fcbung/ {path} \r": text for path, text in FILES.items()})
        self.zip("g.zip", {f"../../{path}": text for path, text in FILES.items()})
        self.zip("h.zip", flat, "mine/")
        self.zip("i.zip", {path.replace(".toml", " (1).toml.txt").replace("half.cpp", "Half.cpp.txt").replace("twice", "twice - Kopie (2)"): text for path, text in FILES.items()})
        self.zip("j_1_assignsubmission_file_/code.zip", FILES)
        self.zip("k.zip", {"code.zip": (self.handed_in / "d.zip").read_bytes(), "__MACOSX/gpt2/half.cpp": "x"})
        self.tar("l.tar.gz", FILES, "./")
        self.tar("m.tgz", FILES, "home/f/")
        self.tar("n.tar.xz", FILES, mode="w:xz")
        self.tar("o.tar", FILES, mode="w")
        self.tar("p.zip", FILES, mode="w:bz2")  # called so by mistake
        self.zip("q.zip", {f"{top}/{path}": text for path, text in FILES.items() for top in "xy"})
        for name in sorted(path.name for path in self.handed_in.iterdir()):
            self.assertEqual(self.read(name), FILES, name)

    def test_a_single_file_of_a_student_is_read(self):
        name = "Ann Lee_77_assignsubmission_file_answers-01.toml"
        (self.handed_in / name).write_text("x = 1")
        self.assertEqual(self.read(name)["answers-01.toml"], "x = 1")

    def test_the_copies_nearest_to_the_top_count(self):
        self.zip("a.zip", {**{f"build/grade/source/{path}": "old" for path in WANTED}, **FILES})
        self.assertEqual(self.read("a.zip"), FILES)
        self.zip("b.zip", {**{f"{top}/{path}": top for path in WANTED for top in "xy"}})
        self.refuses("b.zip", "gpt2/half.cpp is there 2 times: x/gpt2/half.cpp, y/gpt2/half.cpp. Leave one")

    def test_what_is_missing_is_named_and_what_there_is(self):
        self.zip("a.zip", {"gpt2/half.cpp": "1", "notes\x1b.txt": "x", "code.rar": "Rar!"})
        files = self.read("a.zip")
        self.assertEqual(files["gpt2/half.cpp"], "1")
        self.assertEqual(files["gpt2/twice.cpp"], "gpt2/twice.cpp is missing. The submission holds code.rar, which is a RAR archive: hand in a .zip "
                         "or a .tar.gz, notes\\x1b.txt, gpt2/half.cpp")
        self.zip("b.zip", {"report.pdf": "x", **{f"{n}.o": "" for n in range(30)}})
        self.refuses("b.zip", "has none of the files that are graded, as answers-01.toml", "It holds 0.o", "and 23 more")

    def test_links_are_refused_and_what_they_lead_to_stays_unread(self):
        secret = self.folder / "secret/half.cpp"
        secret.parent.mkdir()
        secret.write_text("BEGIN EXERCISE")
        for name, target in (("a/gpt2/half.cpp", secret), ("b/gpt2", secret.parent)):
            (self.handed_in / name).parent.mkdir(parents=True)
            (self.handed_in / name).symlink_to(target)
        self.refuses("a", "gpt2/half.cpp is a link")
        self.refuses("b", "It holds gpt2")
        self.tar("c.tar.gz", {}, links=[("gpt2/half.cpp", str(secret))])
        self.refuses("c.tar.gz", "is a link")
        with zipfile.ZipFile(self.handed_in / "d.zip", "w") as archive:
            entry = zipfile.ZipInfo("gpt2/half.cpp")
            entry.external_attr = (stat.S_IFLNK | 0o777) << 16
            archive.writestr(entry, str(secret))
        self.refuses("d.zip", "is a link")
        (self.handed_in / "e/gpt2").mkdir(parents=True)
        os.mkfifo(self.handed_in / "e/gpt2/half.cpp")
        self.refuses("e", "is a link, or no file")

    def test_what_is_too_large_costs_itself(self):
        large = {**FILES, "gpt2/half.cpp": "x" * (archives.MOST_BYTES_OF_A_FILE + 1)}
        self.zip("a.zip", large)
        self.tar("b.tar.gz", large)
        for name in ("a.zip", "b.tar.gz"):
            self.assertEqual(self.read(name), {**FILES, "gpt2/half.cpp": "gpt2/half.cpp is larger than 1 MiB"})
        self.zip("c.zip", {f"{n}/gpt2/half.cpp": f"{n}" for n in range(3000)})
        self.refuses("c.zip", "is there 3000 times")
        for constant, most, says in (("MOST_BYTES_OF_AN_ARCHIVE", 1 << 16, "expands to more than"), ("MOST_FILES", 1, "more than 1 files")):
            self.addCleanup(setattr, archives, constant, getattr(archives, constant))
            setattr(archives, constant, most)
            self.refuses("b.tar.gz", says)

    def test_a_damaged_member_costs_itself_and_a_damaged_archive_all(self):
        for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
            self.zip("a.zip", {"gpt2/half.cpp": "hello world " * 100, "gpt2/twice.cpp": "x"}, method=method)
            content = bytearray((self.handed_in / "a.zip").read_bytes())
            begin = 30 + len("gpt2/half.cpp")
            content[begin:begin + 9] = b"\xff" * 9
            (self.handed_in / "a.zip").write_bytes(content)
            files = self.read("a.zip")
            self.assertEqual(files["gpt2/twice.cpp"], "x")
            self.assertIn("gpt2/half.cpp cannot be read: ", files["gpt2/half.cpp"])
        self.zip("b.zip", FILES, method=zipfile.ZIP_STORED)
        content = bytearray((self.handed_in / "b.zip").read_bytes())
        content[6] |= 1
        content[content.index(b"PK\x01\x02") + 8] |= 1
        (self.handed_in / "b.zip").write_bytes(content)
        self.assertEqual(self.read("b.zip")["answers-01.toml"], "answers-01.toml is encrypted: hand it in without a password")
        self.tar("c.tar.gz", FILES)
        for name in ("a.zip", "c.tar.gz"):
            path = self.handed_in / name
            for content, says in ((path.read_bytes()[:60], "cannot be read: "), (b"no archive", "is no archive"), (b"", "is empty")):
                path.write_bytes(content)
                self.refuses(name, says)
        for name, content in (("d.rar", b"Rar!\x1a\x07"), ("e.7z", b"7z\xbc\xaf\x27\x1c"), ("f.zip", b"Rar!\x1a\x07"),
                              ("h.tar.zst", b"(\xb5/\xfd"), ("i.tar.Z", b"\x1f\x9d\x90"), ("answers-01.toml.gz", gzip.compress(b"x = 1"))):
            (self.handed_in / name).write_bytes(content)
            self.refuses(name, "archive", ": hand in a .zip")
        self.zip("k.zip", {"\u00fc/a.cpp": "x", **FILES})
        (self.handed_in / "k.zip").write_bytes((self.handed_in / "k.zip").read_bytes().replace("\u00fc".encode(), b"\xff\xfe"))
        self.zip("l.zip", {"code.zip": (self.handed_in / "k.zip").read_bytes()})
        for name, says in (("k.zip", "has names"), ("l.zip", "code.zip, which has names")):
            self.refuses(name, f"{says} that it calls UTF-8 and are not: pack it anew")
        (self.handed_in / "g").mkdir()
        self.refuses("g", "is empty")


class Reader(Folder):
    """The process that reads, and what stops it."""

    def test_limits_of_the_machine_that_are_lower_stay(self):
        with mock.patch("resource.getrlimit", return_value=(0, 0)), mock.patch("resource.setrlimit") as sets:
            archives.limit_this_process()
        self.assertEqual({call.args[1] for call in sets.call_args_list}, {(0, 0)})

    def refuses(self, name, says):
        with self.assertRaisesRegex(Refused, says):
            read_submission(Submission("s", self.handed_in / name), WANTED)

    def test_what_was_read_comes_back_as_it_was(self):
        name = os.fsdecode(b"M\xfcller.zip")
        self.zip(name, {**FILES, "gpt2/half.cpp": bytes(range(256))})
        found = read_submission(Submission("s", self.handed_in / name), WANTED[:2] + ["gpt2/none.cpp"])
        self.assertEqual((found["answers-01.toml"], found["gpt2/half.cpp"]), (FILES["answers-01.toml"].encode(), bytes(range(256))))
        self.assertIn("gpt2/none.cpp is missing", found["gpt2/none.cpp"])

    def test_its_limits_hold_and_are_named(self):
        script = self.folder / "archives.py"
        for code, says in (("while True: pass", "too much processor time"), ("open('x', 'wb').write(bytes(2 << 20))", "File too large"),
                           ("bytes(1 << 30)", "needs too much memory"), ("os.abort()", "stops its reader, with signal 6"),
                           ("os._exit(0)", "stops its reader, with status 0"), ("time.sleep(9)", "takes more than 5 s")):
            script.write_text(f"import os, resource, sys, time\nsys.path.insert(0, {str(SCRIPTS / 'course')!r})\nimport archives\n"
                              "os.chdir(os.path.dirname(__file__))\n"
                              "archives.LIMITS |= {resource.RLIMIT_CPU: 1, resource.RLIMIT_FSIZE: 1 << 20}\n"
                              f"def read(path, wanted):\n    {code}\narchives.read = read\narchives.main()\n")
            real, wall_s = archives.__file__, submissions.WALL_S
            archives.__file__, submissions.WALL_S = str(script), 5 if "sleep" in code else wall_s
            try:
                self.refuses("a", says)
            finally:
                archives.__file__, submissions.WALL_S = real, wall_s


class Who(Folder):
    """Whose a submission is."""

    def students(self):
        return {submission.student: [path.name for path in (submission.path, *submission.others)] for submission in find_submissions(self.handed_in)}

    def test_names_are_those_of_people(self):
        decomposed = unicodedata.normalize("NFD", "J\u00f6rg")
        names = {"a.ZIP": "a", "b.tar.xz": "b", "c.7z": "c", "d": "d", "h.tar.zst": "h", "i.tar.Z": "i", "j.gz": "j", " e \r.zip": "e", f"{decomposed}.zip": "J\u00f6rg", "grades.md.zip": "_grades.md",
                 os.fsdecode(b"M\xfcller.zip"): "M\u00fcller", "f\x1b[31m.zip": "f\\x1b[31m", "...zip": "_..", "notes.txt": "notes.txt",
                 "Ann Lee_77_assignsubmission_file_": "Ann Lee", "Bo_78_assignsubmission_file_hw 3.zip": "Bo", "g" * 240 + ".zip": "g" * 200}
        for name in names:
            (self.handed_in / name).write_bytes(b"")
        (self.handed_in / "d").unlink()
        (self.handed_in / "d").mkdir()
        for name in (".DS_Store", "._a.zip", "__MACOSX", "Thumbs.db"):
            (self.handed_in / name).write_bytes(b"")
        self.assertEqual({student: files[0] for student, files in self.students().items()}, {student: name for name, student in names.items()})

    def test_two_of_one_student_are_a_row_that_says_so(self):
        for name in ("a.zip", "a.tar.gz", "b.zip"):
            (self.handed_in / name).write_bytes(b"")
        (self.handed_in / "c").symlink_to(self.folder)
        self.assertEqual(self.students(), {"a": ["a.tar.gz", "a.zip"], "b": ["b.zip"], "c": ["c"]})
        for student, says in ((0, "a.tar.gz, a.zip are all of a. Leave the one that counts"), (2, "^c is a link")):
            self.assertRaisesRegex(Refused, says, read_submission, find_submissions(self.handed_in)[student], WANTED)

    def test_a_map_beside_the_folder_says_who_is_who(self):
        for name in ("Ann Lee_77_assignsubmission_file_", "Ann Lee_78_assignsubmission_file_", "\u00dc_79_assignsubmission_file_", "hw3.zip", "names.csv"):
            (self.handed_in / name).write_text("hw3,stolen\n")
        for encoding, comma in (("utf-8", ","), ("utf-8-sig", ";"), ("cp1252", ";"), ("utf-16", "\t")):
            lines = ["folder,student", "Ann Lee_77_assignsubmission_file_,ann1", "Ann Lee,../ann2", '"\u00dc","u,e"', "hw3,dave"]
            (self.folder / "names.csv").write_bytes("\r\n".join(line.replace(",", comma, 1) for line in lines).encode(encoding))
            self.assertEqual(set(self.students()), {"ann1", "_.._ann2", "u,e", "dave", "names.csv"})
        for text, says in (("Ann Lee|ann1", "names no student"), (",\n\u00dc,a\n\u00dc,b", "has \u00dc twice"), ("\u00dc, ", "has no student for \u00dc")):
            (self.folder / "names.csv").write_text(text)
            self.assertRaisesRegex(Refused, f"names.csv {says}", self.students)


class Anything(Folder):
    """Whatever is handed in, there is a row for each student, and each row can be written."""

    def grade(self, rows=lambda one: [dict(exercise="01.1", title="T", points=0, of=1, verdict="refused",
                                           detail=content if isinstance(content, str) else "") for content in one.files.values()], prepare=lambda: None):
        """Grades the folder without judging."""
        course = object.__new__(grade_all.Course)
        course.lessons, course.digest, course.secret, course.jobs, course.seed = ["01"], "", "", 4, ""
        course.read = lambda submission: submissions.hand_in(submission, WANTED)
        course.prepare = prepare
        course.unread = lambda student, why: unread_document({}, ["01"], student, "", why)
        course.grade = lambda one: document_of(["01"], one.student, "", rows(one), one.unread)
        grades = self.folder / "grades"
        grades.mkdir(exist_ok=True)
        with contextlib.redirect_stdout(io.StringIO()):
            return grades, *grade_all.grade_each(course, find_submissions(self.handed_in), grades)

    def test_mutated_archives_give_as_many_rows(self):
        self.zip("a.zip", FILES)
        self.zip("b.zip", FILES, "m\u00fcll/", method=zipfile.ZIP_LZMA)
        self.zip("c.zip", {"code.zip": (self.handed_in / "a.zip").read_bytes()}, method=zipfile.ZIP_BZIP2)
        self.tar("d.tar.gz", FILES)
        self.tar("e.tar", FILES, mode="w")
        self.tar("f.tar.xz", FILES, mode="w:xz")
        seeds, draw = {path.name: path.read_bytes() for path in self.handed_in.iterdir()}, random.Random(60)
        number = 4000 if ALL else 40
        for n in range(number):
            name, content = draw.choice(sorted(seeds.items()))
            content = bytearray(content)
            for _ in range(draw.choice((1, 1, 2, 8, 64))):
                at = draw.randrange(len(content))
                change = draw.randrange(4)
                if change == 0:
                    content[at] ^= 1 << draw.randrange(8)
                elif change == 1:
                    content[at:at + draw.randrange(9)] = draw.randbytes(draw.randrange(9))
                elif change == 2:
                    content[at:at + 4] = draw.choice((b"\xff" * 4, b"\0" * 4, b"\x7f\xff\xff\xff"))
                else:
                    content[at:at] = content[draw.randrange(len(content)):][:draw.randrange(600)]
            (self.handed_in / f"{n:04}-{name}").write_bytes(content[:draw.choice((len(content), len(content), at + 1))])
        grades, documents, failed = self.grade()
        self.assertEqual((len(documents), failed, len(list(grades.glob("*/report.md")))), (number + 6, 0, number + 6))
        self.assertEqual(len(re.findall(r"^\| \d{4}-\w \|", grade_all.markdown_table(["01"], documents), re.MULTILINE)), number)
        unread = [document["unread"] for document in documents.values() if document["unread"]]
        self.assertTrue(number / 8 < len(unread) < number, len(unread))
        self.assertEqual([why for why in unread if not why.startswith("not read, because ")], [])

    def test_no_result_of_before_stays(self):
        for student in ("alice", "bob"):
            self.zip(f"{student}.zip", FILES)
        row = dict(exercise="01.1", title="T", points=60, of=60, verdict="passed", detail="")
        grades, documents, _ = self.grade(lambda one: [row])
        self.assertEqual([document["points"] for document in documents.values()], [60, 60])
        self.zip("alice.zip", {**FILES, "gpt2/half.cpp": "other"})
        with self.assertRaises(ZeroDivisionError):
            self.grade(prepare=lambda: 1 / 0)  # the course is broken
        self.assertEqual([path.parent.name for path in grades.glob("*/grade.json")], ["bob"])
        (self.handed_in / "bob.zip").unlink()
        grades, documents, failed = self.grade(lambda one: 1 / 0)
        self.assertEqual((set(documents), documents["alice"]["points"], failed), ({"alice"}, 0, 1))
        self.assertIn("could not be graded: ZeroDivisionError", (grades / "alice/report.md").read_text())
        self.assertEqual([path.parent.name for path in grades.glob("*/grade.json")], ["alice"])
        self.assertEqual(self.grade(lambda one: [row])[1]["alice"]["points"], 60)  # it is graded again
        self.assertEqual(self.grade(lambda one: 1 / 0)[1]["alice"]["points"], 60)  # and then kept

    def test_a_locale_of_one_byte_a_character_changes_nothing(self):
        for name in ("J\u00f6rg.zip", "\u5f20.zip", os.fsdecode(b"M\xfcller.zip")):
            (self.handed_in / name).write_bytes(b"")
        script = self.folder / "students.py"
        script.write_text(f"import pathlib, sys\nsys.path.insert(0, {str(SCRIPTS / 'course')!r})\nimport submissions\nimport documents\n"
                          "documents.show_control_characters()\nfound = submissions.find_submissions(pathlib.Path(sys.argv[1]))\n"
                          "[pathlib.Path(sys.argv[2], one.student).mkdir() for one in found]\nprint(*(one.student for one in found), sep='\\n')\n")
        done = subprocess.run([sys.executable, script, self.handed_in, self.folder], capture_output=True, check=True,
                              env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"})
        self.assertEqual(done.stdout.decode().split(), ["J\u00f6rg", "M\u00fcller", "\u5f20"])
        self.assertTrue((self.folder / "\u5f20").is_dir() and (self.folder / "M\u00fcller").is_dir())


if __name__ == "__main__":
    unittest.main()
