#!/usr/bin/env python3
"""Tests scripts/course.py pack: which solutions are left out, what a starter repository holds, and that it grades itself."""

import contextlib
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import tarfile
import tempfile
import unittest
import unittest.mock

from fake_course import RIGHT, SCRIPTS, TREE, hand_in, run_course, write_course
import catalogue
import pack
from exercise_tree import all_regions, find_regions, read_tree, stubbed_files, write_tree

TOML = TREE["lessons/01_a/exercises.toml"].replace('number = "01.1"', """number = "01.1"
minutes = 20
hints = ["What is twice three?", "Add x to itself.", "x + x, for all x."]""") + """minutes = 0
hints = []

[[exercise]]
number = "01.3"
kind = "account"
points = 4
minutes = 10
title = "Bytes of a number"
section = "numbers"
text = "How many bytes have {N} numbers?"
options = ["--numbers={N}"]
sizes = { N = [2, 3, 5] }
figures = { solution = "bytes" }
asks = [{ name = "bytes", what = "bytes of all numbers", value = "solution" }]
hints = ["First.", "Second.", "Third."]
"""
CONFIGURE = ["cmake", "-S", ".", "-B", "build", "-DCMAKE_BUILD_TYPE=Exercise", "-DRANKWISE_CUDA=off"]
TESTED_TOGETHER = {"08.1": "08", "08.4": "10"}  # with a later one of this lesson: they pass when that is written


def region(exercise, line="work();"):
    return f"  // BEGIN EXERCISE {exercise}\n  {line}\n  // END EXERCISE\n"


class Stubs(unittest.TestCase):
    tree = {"lessons/03_a/03_a.cpp": '#include "lessons/parallel/a/a.hpp"\n' + region("03.1"), "lessons/parallel/a/a.hpp": "",
            "lessons/04_b/04_b.cpp": '#include "lessons/parallel/a/b.hpp"\n' + region("04.1")
                                     + "  // BEGIN TWIN 03.1\n  work();\n  // END TWIN\n  // BEGIN TWIN 02.1\n  rest();\n  // END TWIN\n",
            "lessons/parallel/a/b.hpp": "", "lessons/parallel/a/b.cpp": '#include "lessons/parallel/a/a.hpp"\n' + region("04.2"),
            "lessons/06_c/06_c.cpp": '#include "lessons/parallel/a/b.hpp"\n#include "lessons/parallel/c/c.hpp"\n' + region("06.1"),
            "lessons/parallel/c/c.hpp": "", "lessons/07_d/07_d.cpp": '#include "lessons/parallel/c/c.hpp"\n' + region("07.1"),
            "common/ring.cpp": region("02.1"), "gpt2/table.cpp": region("08.1"),
            "course.json": json.dumps({"exercises": {number: {"points": 1, "text": "a"}
                                                     for number in ("02.1", "03.1", "04.1", "04.2", "06.1", "07.1", "08.1")}})}
    tree = {path: text.encode() for path, text in tree.items()}

    def stubs(self, *lessons):
        return [found.exercise for found in pack.stubbed_regions(self.tree, list(lessons))]

    def test_packed_and_later_lessons_but_not_what_a_packed_lesson_builds_on(self):
        self.assertEqual(self.stubs("03"), ["03.1", "04.1", "04.2", "06.1", "07.1"])
        self.assertEqual(self.stubs("03", "06"), ["03.1", "06.1", "07.1"])
        self.assertEqual(self.stubs("04"), ["04.1", "04.2", "06.1", "07.1"])
        self.assertEqual(self.stubs("07"), ["07.1"])

    def test_programs_of_all_lessons_run_what_stands_in_common_and_gpt2(self):
        self.assertEqual(self.stubs("02"), ["02.1", "03.1", "04.1", "04.2", "06.1", "07.1"])
        self.assertEqual(self.stubs("08"), ["08.1"])

    def test_twins_are_left_out_with_their_exercise(self):
        changed = pack.without_twins(self.tree, {"03.1"})
        text = changed["lessons/04_b/04_b.cpp"].decode()
        self.assertEqual(list(changed), ["lessons/04_b/04_b.cpp"])
        self.assertIn('not_implemented("03.1"', text)
        self.assertEqual(text.count("work();"), 1)  # that of exercise 04.1
        self.assertIn("rest();", text)


class Pack(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        self.root, self.starter = self.folder / "course", self.folder / "starter"
        write_course(self.root)
        (self.root / "scripts/course").mkdir(parents=True)
        shutil.copy(SCRIPTS / "course.py", self.root / "scripts")
        for script in (SCRIPTS / "course").glob("*.py"):
            shutil.copy(script, self.root / "scripts/course")
        for path in (".github/workflows/ci.yml", "docs/instructor/answers/01.md", "tests/judge/case.cpp", "tests/scripts/course/test_pack.py"):
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            (self.root / path).write_text("for instructors\n")
        (self.root / "lessons/01_a/exercises.toml").write_text(TOML)
        (self.root / "Makefile").write_text("help:\n\t@scripts/course.py\n\ngrade-%:  ## of the course\n\t@scripts/course/exercise.py grade $*\n")
        for words in (["init", "--quiet"], ["add", "--all"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "-m", "all"]):
            subprocess.run(["git", "-C", self.root, *words], check=True)

    def pack(self, *options):
        return run_course(self.root, "pack", "--lessons=01", f"--to={self.starter}", *options)

    def git(self, *arguments):
        return subprocess.run(["git", "-C", self.starter, *arguments], capture_output=True, check=True, text=True).stdout

    def test_one_commit_without_anything_of_instructors(self):
        status, output = self.pack()
        self.assertEqual(status, 0, output)
        self.assertEqual(self.git("rev-list", "--count", "--all").strip(), "1")
        self.assertEqual(self.git("status", "--porcelain"), "")
        files = self.git("ls-files").split("\n")
        self.assertEqual([path for path in files if re.search("ci.yml|mutants|instructor|judge.py|exercises.toml|tests/|leaks|grade_all|pack", path)], [])
        for path in ("EXERCISES.md", "course.json", "gpt2/twice.cpp", "scripts/course.py", "scripts/course/visible.py",
                     "scripts/course/exercise_bench.py"):
            self.assertIn(path, files)
        text = (self.starter / "gpt2/twice.cpp").read_text()
        self.assertIn('not_implemented("01.1"', text)
        self.assertNotIn("two * x", text)

    def test_the_page_has_all_exercises_and_hints_that_unfold_one_in_the_other(self):
        self.pack()
        page = (self.starter / "EXERCISES.md").read_text()
        self.assertIn("3 exercises of the lessons 01, 19 points, about 30 minutes.", page)
        self.assertIn("`gpt2/twice.cpp:4`", page)
        self.assertIn("## 01.3 Bytes of a number\n\n*account, 4 points, 10 minutes*", page)
        self.assertIn("`answers-01.toml`", page)
        self.assertNotIn("solution", page)
        first, second, third = (page.index(f"Hint {number} of 3") for number in (1, 2, 3))
        self.assertNotIn("</details>", page[first:third])
        self.assertTrue(first < page.index("What is twice three?") < second < page.index("Add x") < third)
        self.assertEqual((page.count("<details>"), page.count("</details>")), (6, 6))

    def test_a_starter_repository_grades_itself(self):
        self.pack()
        grade = self.folder / "grade.json"
        status, output = run_course(self.starter, "grade", f"--json={grade}")
        self.assertEqual(status, 1, output)
        self.assertIn("not implemented", output)
        hand_in(self.starter, twice=RIGHT["twice"], half="  return 7;")
        status, output = run_course(self.starter, "grade", f"--json={grade}")
        self.assertEqual(status, 1, output)
        self.assertIn("10/15", output)
        self.assertEqual([row["verdict"] for row in json.loads(grade.read_text())["exercises"]], ["passed", "failed"])
        hand_in(self.starter, twice=RIGHT["twice"] + "\n  }", half="  return y;")
        self.assertIn("does not compile: gpt2/half.cpp:5:10: error: ‘y’", run_course(self.starter, "grade")[1])
        hand_in(self.starter, half=RIGHT["half"])
        status, output = run_course(self.starter, "grade", f"--json={grade}")
        self.assertEqual([row["verdict"] for row in json.loads(grade.read_text())["exercises"]], ["does not compile", "passed"], output)
        self.assertIn("does not compile: gpt2/twice.cpp:", output)
        status, output = run_course(self.starter, "grade", "--lessons=01.2")
        self.assertEqual(status, 0, output)
        self.assertIn("5/5", output)
        status, output = run_course(self.starter, "grade", "--lessons=01.9")
        self.assertEqual((status, output), (2, "error: there is no exercise 01.9 to implement here. There are 01.1, 01.2\n"))
        hand_in(self.starter, **RIGHT)
        status, output = run_course(self.starter, "grade")
        self.assertEqual(status, 0, output)
        self.assertLess(output.index("Building in "), output.index("01.1 "))
        (self.starter / "course.json").write_text("{" + "[" * 100_000)
        for root, said in ((self.root, "No such file"), (self.starter, "Expecting property name")):
            status, output = run_course(root, "grade")
            self.assertEqual((status, output[:7]), (2, "error: "), output)
            self.assertRegex(output, f"no starter repository, .*{said}")

    def compiler(self, name):
        """A compiler that notes what it compiles, as the environment variable that chooses it."""
        script = self.folder / name
        script.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo {name}\nfor word; do last=$word; done\n'
                          f'echo "$last" >>"{self.folder}/compiled.txt"\nexec c++ "$@"\n')
        script.chmod(0o755)
        return unittest.mock.patch.dict(os.environ, CXX=str(script))

    def first_grade(self):
        """Output of the first build of a starter repository, and the files of the course that it compiles."""
        (self.folder / "compiled.txt").write_text("")
        shutil.rmtree(self.starter / "build", ignore_errors=True)
        output = run_course(self.starter, "grade")[1]
        return output, set(re.findall(r"/source/(\S+)", (self.folder / "compiled.txt").read_text()))

    def test_only_what_a_student_writes_is_compiled_where_the_compiler_is_that_of_the_pack(self):
        everything = {"gpt2/twice.cpp", "gpt2/half.cpp", "test_twice.cpp", "test_half.cpp"}
        with self.compiler("one"):
            self.assertEqual(self.pack()[0], 0)
            hand_in(self.starter, twice=RIGHT["twice"])
            output, compiled = self.first_grade()
            self.assertIn("10/15", output)
            self.assertIn("what is not in objects.tar.gz, half a minute on two cores.", output)
            self.assertEqual(compiled, {"gpt2/twice.cpp"})
            header = self.starter / "common/base/error.hpp"
            header.write_text(header.read_text() + "inline int more() { return 1; }\n")
            self.assertLessEqual({"gpt2/twice.cpp", "gpt2/half.cpp"}, self.first_grade()[1])
            header.write_text("#error here\n")  # what was taken is built again when a file has changed that it was made of
            self.assertIn("does not compile: common/base/error.hpp:1:2: error: #error here", run_course(self.starter, "grade")[1])
        with self.compiler("other"):
            subprocess.run(["git", "-C", self.starter, "checkout", "--quiet", "common"], check=True)
            output, compiled = self.first_grade()
        self.assertRegex(output, "some minutes the first time, since objects.tar.gz is made by .* one, .*; here is .* other, ")
        self.assertEqual(compiled, everything)
        (self.starter / "objects.tar.gz").unlink()
        self.assertIn("some minutes the first time, since objects.tar.gz is not here.", self.first_grade()[0])

    def test_no_solution_is_in_the_object_files(self):
        half = self.root / "gpt2/half.cpp"
        half.write_text(half.read_text().replace("  return x / 2;", '  static const volatile char how[] = "solved so";\n  return how[0] ? x / 2 : 0;'))
        self.add("gpt2/half.cpp", half.read_text())
        for _ in range(2):  # the second time although what was kept of the first is deleted
            shutil.rmtree(self.starter, ignore_errors=True)
            shutil.rmtree(self.root / "build/pack-01/objects", ignore_errors=True)
            self.assertEqual(self.pack()[0], 0)
        with tarfile.open(self.starter / "objects.tar.gz") as archive:
            content = {entry.name: archive.extractfile(entry).read() for entry in archive if entry.isfile()}
        stub = next(data for name, data in content.items() if name.endswith("half.cpp.o"))
        self.assertIn(b"01.2", stub)
        self.assertFalse([name for name, data in content.items() if b"solved so" in data])

    @unittest.skipUnless(catalogue.answers_module(), "no exercises that are answered")
    def test_students_have_figures_of_their_own_where_there_is_a_secret(self):
        secret = self.folder / "secret.txt"
        secret.write_text("quagga 7319\n")
        sheets = []
        for number, student in enumerate(("", "", "alice", "alice", "bob")):
            starter = self.folder / f"starter-{number}"
            options = [f"--student={student}", f"--secret-file={secret}"] if student else []
            status, output = run_course(self.root, "pack", "--lessons=01", f"--to={starter}", *options)
            self.assertEqual(status, 0, output)
            sheets.append((starter / "answers-01.toml").read_text())
        self.assertEqual((sheets[0], sheets[2]), (sheets[1], sheets[3]))
        self.assertEqual(len(set(sheets)), 3)

    def add(self, path, text):
        """A new file that git knows."""
        (self.root / path).write_text(text)
        subprocess.run(["git", "-C", self.root, "add", path], check=True)

    def assert_refused(self, says):
        status, output = self.pack()
        self.assertEqual(status, 2, output)
        self.assertRegex(output, says)
        self.assertFalse(self.starter.exists())

    def test_nothing_that_git_does_not_know_is_packed_and_no_secret(self):
        secret = self.root / "secret.txt"
        secret.write_text("swordfish\n")
        options = ["--student=alice", f"--secret-file={secret}"]
        status, output = self.pack(*options)
        self.assertEqual(status, 0, output)
        self.assertFalse((self.starter / "secret.txt").exists())
        subprocess.run(["git", "-C", self.root, "add", "secret.txt"], check=True)
        status, output = run_course(self.root, "pack", "--lessons=01", f"--to={self.folder / 'other'}", *options)
        self.assertEqual(status, 2)
        self.assertIn("the secret stands in secret.txt", output)

    def test_what_git_cannot_tell_is_refused_with_its_words(self):
        with unittest.mock.patch.dict(os.environ, PATH=str(self.folder)):
            self.assert_refused("git is not on the path")
        (self.root / ".git/index").write_bytes(b"no index")
        self.assert_refused("index file")
        shutil.rmtree(self.root / ".git")
        self.assert_refused("not a git repository")
        subprocess.run(["git", "init", "--quiet", self.folder], check=True)  # a repository around it, which does not know it
        self.assert_refused("git knows no file in")

    def test_a_link_is_refused_for_git_does_not_know_what_it_leads_to(self):
        (self.folder / "grades.md").write_text("alice: 3\n")
        (self.root / "notes.md").symlink_to(self.folder / "grades.md")
        subprocess.run(["git", "-C", self.root, "add", "notes.md"], check=True)
        self.assert_refused("notes.md is a link")

    def test_the_revision_is_that_of_the_course_and_never_unknown(self):
        def revision():
            shutil.rmtree(self.starter, ignore_errors=True)
            self.assertEqual(self.pack()[0], 0)
            return json.loads((self.starter / "course.json").read_text())["revision"]

        head = subprocess.run(["git", "-C", self.root, "rev-parse", "HEAD"], capture_output=True, check=True, text=True).stdout.strip()
        with unittest.mock.patch.dict(os.environ, GIT_DIR=str(self.root / ".git")):  # as in a hook: the pack is not committed there
            self.assertEqual(revision(), head)
        self.assertEqual(self.git("rev-list", "--count", "--all").strip(), "1")
        self.add("NEW.md", "new\n")
        self.assertEqual(revision(), head + "-dirty")
        subprocess.run(["git", "-C", self.root, "update-ref", "-d", "HEAD"], check=True)
        shutil.rmtree(self.starter)
        self.assert_refused("HEAD")
        with contextlib.redirect_stderr(io.StringIO()) as said:
            self.assertEqual(pack.revision_of(self.root), "unknown")
        self.assertIn("unknown in grades", said.getvalue())

    def test_refusals(self):
        status, output = self.pack("--student=alice")
        self.assertEqual(status, 2)
        self.assertIn("--secret-file", output)
        for content in (b" ", b"\xbd\x00"):
            (self.folder / "secret").write_bytes(content)
            status, output = self.pack("--student=alice", f"--secret-file={self.folder / 'secret'}")
            self.assertEqual(status, 2, output)
            self.assertIn("there is no text in it", output)
        self.starter.mkdir()
        self.assertIn("it exists", self.pack()[1])
        for lessons, why in (("1", "two digits"), ("07", "these lessons have exercises: 01"), ("01,07", "01")):
            status, output = run_course(self.root, "pack", f"--lessons={lessons}", f"--to={self.folder / 'other'}")
            self.assertEqual(status, 2, output)
            self.assertIn(why, output)
        self.assertFalse((self.folder / "other").exists())

    def test_the_doctor_says_what_grading_lacks(self):
        (self.root / "scripts/doctor.sh").write_text("#!/bin/sh\necho 'ok    tools'\n")
        (self.root / "scripts/doctor.sh").chmod(0o755)
        output = run_course(self.root, "doctor")[1]
        self.assertRegex(output, r"^ok    tools\n(ok|note|BAD) +sandbox .*\n(.*\n)*ok    course     revision [0-9a-f]{40}\n"
                         "note  programs   those of the lessons 01 are not built.*make build")
        with unittest.mock.patch.dict(os.environ, PATH=str(self.folder)):
            status, output = run_course(self.root, "doctor")
        self.assertEqual(status, 1, output)
        self.assertRegex(output, r"BAD   sandbox    .*bwrap is not on the path. Install bubblewrap: scripts/setup.sh --grading.*\n(.*\n)*"
                         r"BAD   course     git is not on the path")

    def test_a_leak_is_refused_and_reported(self):
        path = self.root / "gpt2/half.cpp"
        body = "".join(f"  step_{name}(x, {name});\n" for name in range(6))
        path.write_text(path.read_text().replace("  return x / 2;\n", body))
        self.add("NOTES.md", f"Do not read:\n\n{body.replace('step', 'leap')}")
        status, output = self.pack()
        self.assertEqual(status, 2)
        self.assertIn("NOTES.md:3-8: the solution of exercise 01.2", output)
        self.assertFalse(self.starter.exists())
        status, output = run_course(self.root, "leaks", "--lessons=01")
        self.assertEqual((status, output), (1, "NOTES.md:3-8: the solution of exercise 01.2\n"))


def anchors_of(text):
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", re.sub(r"\]\([^)]*\)", "", heading).lower()).replace(" ", "-") for heading in headings}


def typed(text):
    """Code of a page: spans and lines, without the content of comments."""
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [*re.findall(r"`([^`\n]+)`", text), *re.findall(r"^    +(\S.*)", text, re.MULTILINE), *"\n".join(blocks).split("\n")]


def dead_ends(root):
    """Names in the pages of a repository that it does not hold: links, scripts, targets of make, programs, commands."""
    rules = [re.escape(rule).replace("%", r"\w+") for rule in re.findall(r"^([\w%-]+):", (root / "Makefile").read_text(), re.MULTILINE)]
    found = [("Makefile", script) for script in re.findall(r"scripts/[\w./-]+", (root / "Makefile").read_text()) if not (root / script).exists()]
    for page in sorted(root.rglob("*.md")):
        text = page.read_text()
        for target in re.findall(r"(?<=\]\()[^()\s:]+(?=\))", re.sub(r"```.*?```|`[^`\n]*`", "`", text, flags=re.DOTALL)):
            path, _, anchor = target.partition("#")
            place = page.parent / path if path else page
            if not place.exists() or (anchor and place.suffix == ".md" and anchor not in anchors_of(place.read_text())):
                found.append((page.name, target))
        for code in typed(text):
            names = re.findall(r"(?<![\w./-])(?:scripts|tests)/[\w./-]*\w|(?<=build/)lessons/\d\d_\w+", code)
            found += [(page.name, name) for name in names if not (root / name).exists()]
            found += [(page.name, f"make {rule}") for rule in re.findall(r"^(?:\$ )?make ([\w-]+)", code) if not re.fullmatch("|".join(rules), rule)]
            found += [(page.name, command) for command in re.findall(r"course\.py ([a-z-]+)", code) if command not in ("grade", "export")]
    return found


class Course(unittest.TestCase):
    def test_a_pack_of_two_lessons_can_be_configured_has_their_tests_and_all_that_its_pages_name(self):
        with tempfile.TemporaryDirectory() as folder:
            starter = pathlib.Path(folder) / "starter"
            write_tree(starter, pack.packed_tree(SCRIPTS.parent, ["03", "06"]), SCRIPTS.parent)
            self.assertEqual(dead_ends(starter), [])
            page = (starter / "EXERCISES.md").read_text()
            self.assertEqual(re.findall(r"^## (0\S+) .*\n\n\*implement", page, re.MULTILINE),
                             ["03.2", "03.3", "03.1", "06.1", "06.3", "06.2", "06.4"])
            self.assertIn("make grade EX=03.2`", page)
            done = subprocess.run(CONFIGURE, cwd=starter, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
            self.assertEqual(done.returncode, 0, done.stdout.decode())
            self.assertIn("unknown in reports, for git says: fatal: not a git repository", done.stdout.decode())
            labels = subprocess.run(["ctest", "--test-dir", "build", "--print-labels"], cwd=starter, capture_output=True, check=True)
            for path in starter.glob("lessons/0[36]_*/*.cpp"):
                for found in find_regions(path.name, path.read_text()):
                    self.assertIn(f"exercise-{found.exercise}", labels.stdout.decode())


@unittest.skipUnless("RANKWISE_ALL" in os.environ, "for the night")
class Term(unittest.TestCase):
    """A student who gets all lessons, or those of RANKWISE_ALL=03,06, and writes one body after the other in the order of EXERCISES.md."""

    def test_each_exercise_passes_alone_as_soon_as_it_is_written(self):
        tree = read_tree(SCRIPTS.parent)
        known, regions, too_early = pack.lessons_of(tree), all_regions(tree), []
        lessons = sorted(set(os.environ["RANKWISE_ALL"].split(",")) & set(known)) or known
        with tempfile.TemporaryDirectory() as folder:
            starter = pathlib.Path(folder) / "starter"
            status, output = run_course(SCRIPTS.parent, "pack", f"--lessons={','.join(lessons)}", f"--to={starter}")
            self.assertEqual(status, 0, output)
            left = re.findall(r"^## (\d\S+) .*\n\n\*implement", (starter / "EXERCISES.md").read_text(), re.MULTILINE)
            while left:
                exercise = left.pop(0)
                files = {path: tree[path] for path in tree if b"BEGIN EXERCISE" in tree[path] or b"BEGIN TWIN" in tree[path]}
                files.update(stubbed_files(tree, [region for region in regions if region.exercise in left]))
                files.update(pack.without_twins(files, set(left)))
                for path in (path for path in files if (starter / path).exists() and path.endswith(".cpp")):
                    (starter / path).write_bytes(files[path])
                if run_course(starter, "grade", f"--lessons={exercise}")[0] != 0:
                    too_early.append(exercise)
            status, output = run_course(starter, "grade")
        self.assertEqual((status, too_early), (0, [one for one, later in TESTED_TOGETHER.items() if {one[:2], later} <= set(lessons)]), output)


if __name__ == "__main__":
    unittest.main()
