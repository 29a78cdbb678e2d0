#!/usr/bin/env python3
"""Tests scripts/course/exercise.py on a tree of two exercises that builds in a few seconds."""

import contextlib
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import types
import unittest
from unittest import mock

SCRIPTS = pathlib.Path(__file__).resolve().parents[3] / "scripts/course"
sys.path.insert(0, str(SCRIPTS))
sys.dont_write_bytecode = True

from sandbox_walls import bubblewrap_works  # noqa: E402
from exercise import student_tree  # noqa: E402
from exercise_bench import build_telling  # noqa: E402
from exercise_tree import Refused, all_regions, apply_patch, find_regions, stubbed_files, write_tree  # noqa: E402
from judge import Case, Draw, Judged, judge  # noqa: E402
from runner import Answer  # noqa: E402
from visible import blamed  # noqa: E402

# Two exercises in two files; the tests print what Catch2 would.
TREE = {
    "CMakeLists.txt": """
cmake_minimum_required(VERSION 3.22)
project(fake LANGUAGES CXX)
option(RANKWISE_WARNINGS_AS_ERRORS "A warning ends the build" ON)
set(CMAKE_CXX_STANDARD 20)
enable_testing()
add_library(gpt2 STATIC gpt2/twice.cpp gpt2/half.cpp)
target_include_directories(gpt2 PUBLIC ${CMAKE_SOURCE_DIR})
foreach(name twice half)
  add_executable(test_${name} test_${name}.cpp)
  target_link_libraries(test_${name} gpt2)
  add_test(NAME ${name} COMMAND ${CMAKE_COMMAND} -E env $<TARGET_FILE:test_${name}>)
endforeach()
add_executable(judge_01 judge_01.cpp)
target_link_libraries(judge_01 gpt2)
target_link_options(judge_01 PRIVATE LINKER:--dependency-file=CMakeFiles/judge_01.dir/link.d)  # as CMake 3.27 does by itself
set_target_properties(judge_01 PROPERTIES RUNTIME_OUTPUT_DIRECTORY tests)
add_custom_target(hub_mpi)
set_tests_properties(twice PROPERTIES LABELS "exercise-01.1;other")
set_tests_properties(half PROPERTIES LABELS "exercise-01.2;lesson-01")
""",
    "common/base/error.hpp": """#pragma once
#include <stdexcept>
#include <string>
[[noreturn]] inline void not_implemented(const char* exercise, const char* task)
{
  throw std::runtime_error(std::string("exercise ") + exercise + " is not implemented: " + task);
}
""",
    "gpt2/twice.cpp": """#include "common/base/error.hpp"
int twice(int x)
{
  // BEGIN EXERCISE 01.1
  const int two = 2;
  return two * x;
  // END EXERCISE
}
""",
    "gpt2/half.cpp": """#include "common/base/error.hpp"
int half(int x)
{
  // BEGIN EXERCISE 01.2
  return x / 2;
  // END EXERCISE
}
""",
    "lessons/01_a/exercises.toml": '''[[exercise]]
number = "01.1"
kind = "implement"
points = 10
text = """
Twice: return x "times" two,
for all x."""

[[exercise]]
number = "01.2"
kind = "implement"
points = 5
text = "Half. Return x / 2."
''',
    "tests/mutants/01/01.1.bodies": """// WRONG adds_two
// adds two
  return 2 + x;
""",
    "tests/mutants/01/01.2.bodies": """// WRONG ends
// ends the program with status 0
  std::exit(x / 100);
""",
    "tests/mutants/01/01.patches": """// BROKEN adds_two_first
// adds two before all
--- a/gpt2/half.cpp
+++ b/gpt2/half.cpp
@@ -2,2 +2,3 @@
 int half(int x)
 {
+  x += 2;
""",
}
UNPROTECTED = [] if bubblewrap_works() is True else ["--no-sandbox"]

# What the judge runs, and its cases.
TREE["judge_01.cpp"] = """#include <cstdio>
#include <cstring>
#include <exception>
int twice(int x);
int half(int x);
int main(int, char** arguments)
{
  int x = 0;
  while (std::scanf("{\\"x\\": %d} ", &x) == 1) {
    try {
      const int y = std::strcmp(arguments[1], "01.1") == 0 ? twice(x) : half(x);
      std::printf("ANSWER {\\"outputs\\": {\\"y\\": %d}}\\n", y);
    } catch (const std::exception& error) {
      std::printf("ANSWER {\\"not implemented\\": \\"%.32s\\"}\\n", error.what());
    }
  }
}
"""
TREE["tests/judge/lesson_01.py"] = """from judge import Case, exercise


@exercise("01.1", hint="two times")
def twice(draw):
    yield Case({"x": draw.size(3, 99)}, "x = {x}")


@exercise("01.2")
def half(draw):
    for x in (3, draw.size(100, 200)):
        yield Case({"x": x}, "x = {x}")
"""
for _name, _expected in (("twice", 6), ("half", 1)):
    TREE[f"test_{_name}.cpp"] = f"""#include <cstdio>
#include <exception>
#include <string>
int {_name}(int x);
int main()
{{
  const std::string dashes(79, '-'), dots(79, '.');
  std::string what;
  try {{
    if ({_name}(3) == {_expected}) return std::puts("All tests passed (1 assertion in 1 test case)"), 0;
  }} catch (const std::exception& error) {{
    what = error.what();
  }}
  std::printf("%s\\n{_name}: holds for 3\\n%s\\na.cpp:1\\n%s\\n%s\\n", dashes.data(), dashes.data(), dots.data(), what.data());
  return 1;
}}
"""


def encoded(tree):
    return {path: text.encode() for path, text in tree.items()}


def task_of(exercise, task='points = 1\ntext = "a"'):
    """The table of an exercise, in a tree."""
    return {f"lessons/{exercise[:2]}_a/exercises.toml": ('[[exercise]]\nkind = "implement"\n' f'number = "{exercise}"\n{task}\n').encode()}


class Regions(unittest.TestCase):
    def refuses(self, text, *words, tasks=task_of("01.1"), path="gpt2/a.cpp:"):
        with self.assertRaises(Refused) as refusal:
            all_regions({"gpt2/a.cpp": text.encode(), **tasks})
        for word in (path,) + words:
            self.assertIn(word, str(refusal.exception))

    def test_text_and_title(self):
        first, second = all_regions(encoded(TREE))
        self.assertEqual((first.exercise, first.points, first.title), ("01.1", 10, "Twice"))
        self.assertEqual(first.text, 'Twice: return x "times" two, for all x.')
        self.assertEqual((second.title, second.text), ("Half", "Half. Return x / 2."))

    def test_malformed_regions_are_refused_with_file_and_line(self):
        begin, end = "// BEGIN EXERCISE 01.1\n", "// END EXERCISE\n"
        self.refuses(begin, ":1:", "no END")
        self.refuses(begin + begin + end, ":2:", "nested")
        self.refuses(end, ":1:", "without its BEGIN")
        self.refuses(begin + end + "\n" + begin + end, ":4:", "already")
        self.refuses('// BEGIN EXERCISE 01.1 points=1 "a"\n' + end, ":1:", "expected")
        self.refuses("// BEGIN EXERCISE 1.1\n" + end, ":1:", "expected")

    def test_a_region_has_a_table_and_a_table_a_region(self):
        text = "// BEGIN EXERCISE 01.1\n// END EXERCISE\n"
        answered = task_of("01.1", "").popitem()[1].replace(b"implement", b"account")
        for tasks in ({}, task_of("01.2"), {"lessons/01_a/exercises.toml": answered}, {"course.json": b"{}"}):
            self.refuses(text, ":1: exercise 01.1 has no points and text", tasks=tasks)
        self.refuses("", ":3: exercise 01.1 has no region", path="lessons/01_a/exercises.toml")
        self.refuses(text, ":3: exercise 01.1 stands twice", tasks={path: text * 2 for path, text in task_of("01.1").items()},
                     path="lessons/01_a/exercises.toml")
        for task in ("", "points = 1", 'text = "a"', 'points = 0\ntext = "a"', 'points = "1"\ntext = "a"', 'points = 1\ntext = " "'):
            self.refuses(text, ":3: exercise 01.1: expected points", tasks=task_of("01.1", task), path="lessons/01_a/exercises.toml")

    def test_stub_keeps_the_markers_and_drops_the_solution(self):
        tree = encoded(TREE)
        text = stubbed_files(tree, all_regions(tree))["gpt2/twice.cpp"].decode()
        self.assertIn('  // Write this.\n  not_implemented("01.1",\n'
                      '                  "Twice: return x \\"times\\" two, "\n'
                      '                  "for all x.");\n  // END EXERCISE\n}', text)
        self.assertNotIn("two * x", text)
        self.assertEqual(len(find_regions("gpt2/twice.cpp", text)), 1)


class Patches(unittest.TestCase):
    patch = "why\n--- a/x\n+++ b/x\n@@ -2,2 +2,2 @@\n b\n-c\n+C\n"

    def test_a_hunk_is_placed_where_its_old_lines_stand(self):
        self.assertEqual(apply_patch({"x": b"a\nb\nc\n"}, self.patch, "p"), {"x": b"a\nb\nC\n"})
        self.assertEqual(apply_patch({"x": b"0\n1\na\nb\nc\n"}, self.patch, "p"), {"x": b"0\n1\na\nb\nC\n"})

    def test_what_does_not_apply_is_refused(self):
        for content in (b"a\nb\nd\n", b"b\nc\n-\nb\nc\n"):
            with self.assertRaises(Refused):
                apply_patch({"x": content}, self.patch, "p")
        for patch in ("nothing\n", self.patch.replace("b/x", "b/y")):
            with self.assertRaises(Refused):
                apply_patch({"x": b"a\nb\nc\n"}, patch, "p")


class Builds(unittest.TestCase):
    def test_a_long_build_says_how_far_it_is(self):
        with tempfile.TemporaryDirectory() as folder:
            cmake = pathlib.Path(folder) / "cmake"
            cmake.write_text("#!/bin/sh\necho '[1/4] a'; echo b; echo '[ 50%] c'; exit 3\n")
            cmake.chmod(0o755)
            with mock.patch.dict(os.environ, PATH=f"{folder}:{os.environ['PATH']}"), mock.patch("exercise_bench.PAUSE_S", -1), \
                    contextlib.redirect_stderr(io.StringIO()) as said:
                self.assertEqual(build_telling("F", {"target"}), (3, "[1/4] a\nb\n[ 50%] c\n"))
        self.assertRegex(said.getvalue(), r"^building F: 1 of 4, about \d+ s more\nbuilding F: 50 of 100, about \d+ s more\n$")

    def test_an_error_is_blamed_on_the_body_above_it(self):
        text = "".join(f"// BEGIN EXERCISE 01.{i}\n  work();\n// END EXERCISE\n" for i in (1, 2))
        for line, broken, exercise in ((2, {}, "01.1"), (5, {}, "01.2"), (7, {}, "01.2"), (7, {"01.2"}, "01.1"), (7, {"01.1", "01.2"}, None)):
            self.assertEqual(blamed("gpt2/a.cpp", text, f"/x/gpt2/a.cpp:{line}:3: error: why", broken), exercise)


def patch_of(name, old, new):
    return f"// BROKEN {name}\n// why\n--- a/gpt2/half.cpp\n+++ b/gpt2/half.cpp\n@@ -2,1 +2,2 @@\n{old}\n{new}\n"


class Commands(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.root = pathlib.Path(cls.folder.name) / "repository"
        write_tree(cls.root, encoded(TREE), cls.root)
        cls.copy = cls.root / "student/exercise-01"
        assert cls.run_script("make", "01")[0] == 0

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @classmethod
    def run_script(cls, *arguments):
        done = subprocess.run([sys.executable, "-B", str(SCRIPTS / "exercise.py"), "--root", str(cls.root), *arguments],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        return done.returncode, done.stdout.decode()

    @contextlib.contextmanager
    def more_mutants(self, others):
        """Adds these texts to files of mutants; None removes a file."""
        paths = {self.root / "tests/mutants" / path: text for path, text in others.items()}
        before = {path: path.read_text() if path.exists() else None for path in paths}

        def write(texts):
            for path, text in texts.items():
                path.parent.mkdir(exist_ok=True)
                path.unlink(missing_ok=True)
                if text is not None:
                    path.write_text(text)

        write({path: text if text is None else (before[path] or "") + text for path, text in paths.items()})
        try:
            yield
        finally:
            write(before)

    def grade(self, **bodies):
        """Grades a copy in which the bodies of twice and half are these; None leaves the stub."""
        for name in ("twice", "half"):
            text = TREE[f"gpt2/{name}.cpp"]
            if bodies.get(name):
                region = find_regions(name, text)[0]
                lines = text.split("\n")
                text = "\n".join(lines[:region.body] + [bodies[name]] + lines[region.end:])
            else:
                text = stubbed_files(encoded(TREE), all_regions(encoded(TREE)))[f"gpt2/{name}.cpp"].decode()
            (self.copy / f"gpt2/{name}.cpp").write_text(text)
        status, output = self.run_script("grade", "01", "--json", str(self.root / "build/points.json"), *UNPROTECTED)
        document = json.loads((self.root / "build/points.json").read_text())
        return status, document["points"], {row["exercise"]: (row["verdict"], row["detail"])
                                            for row in document["exercises"]}, output

    def test_make_writes_once_and_leaves_the_mutants_out(self):
        self.assertFalse((self.copy / "tests/mutants").exists())
        self.assertIn('"A warning ends the build" OFF)', (self.copy / "CMakeLists.txt").read_text())
        self.assertIn("gpt2/twice.cpp:4", (self.copy / "EXERCISES.md").read_text())
        status, output = self.run_script("make", "01")
        self.assertEqual(status, 2)
        self.assertIn("--to", output)

    def test_exercises_are_listed_in_the_order_of_packs(self):
        first, second = re.findall(r"\[\[.*?(?=\[\[|\Z)", TREE["lessons/01_a/exercises.toml"], re.DOTALL)
        page = student_tree(self.root, encoded({**TREE, "lessons/01_a/exercises.toml": second + first}), "01")["EXERCISES.md"].decode()
        self.assertEqual(re.findall(r"^- \*\*(\S+)\*\*", page, re.MULTILINE), ["01.2", "01.1"])

    def test_cases_for_which_no_time_is_left_are_told(self):
        runs = iter(Answer([[{"outputs": {}}]], None, reason, "") for reason in ("ended", "ended", "timed out"))
        runner = types.SimpleNamespace(run=lambda *_: next(runs), workshop=types.SimpleNamespace(path=str))
        judged = Judged("01.1", lambda draw: (Case({}, "more", ranks) for ranks in (0, 1)), "judge_01")
        self.assertEqual(judge(runner, judged, "program", Draw("01.1"), None), ("timed out", "one rank, more: no time is left"))

    def test_misuse_ends_with_status_2(self):
        for arguments in (("make", "1"), ("make", "07"), ("make", "01.1"), ("grade", "01", "--from", "/nowhere"), ("grade", "01.9"), ("mutants",),
                          ("mutants", "--some", "07")):
            self.assertEqual(self.run_script(*arguments)[0], 2, arguments)

    def test_grade_gives_points_for_what_passes(self):
        status, points, verdicts, output = self.grade()
        self.assertEqual((status, points), (1, 0), output)
        self.assertEqual(verdicts, {"01.1": ("not implemented", ""), "01.2": ("not implemented", "")})

        status, points, verdicts, output = self.grade(twice='  /*\n  not_implemented("01.1", "");\n  */\n  return x + x;', half="  return 3 - x / 2;")
        self.assertEqual((status, points), (1, 10), output)
        self.assertEqual(verdicts, {"01.1": ("passed", ""), "01.2": ("failed", "x = 3\ny: got 2, expected 1")})
        self.assertIn("10/15", output)

        status, points, verdicts, output = self.grade(twice="  return y;", half="  return x / 2;")
        self.assertEqual((status, points), (1, 5), output)
        self.assertEqual(verdicts["01.1"][0], "does not compile")
        self.assertTrue(verdicts["01.1"][1].startswith("gpt2/twice.cpp:5"), verdicts)

        # What prints the words of success, and what ends the program, has answered nothing.
        for forged in ('std::puts("All tests passed"); std::_Exit(0);', "std::abort();"):
            status, points, verdicts, output = self.grade(twice="  return x + x;", half=f"  {forged} return 1;")
            self.assertEqual((status, points), (1, 10), output)
            self.assertIn("the program ended before it answered", verdicts["01.2"][1])

        self.assertEqual(self.grade(twice="  return x + x;", half="  return x / 2;")[:2], (0, 15))

    @unittest.skipIf(UNPROTECTED, "no sandbox here")
    def test_no_body_finds_the_solution(self):
        included = "  int solved(int);\n  return solved(x);\n}}\n{}\nint rest(int x)\n{{\n  return x;"
        assembled = "  return 0;\n}}\nasm(R\"({})\");\nint rest(int x)\n{{\n  return x;"
        for directive, instruction, why in (
                ('/**/#define twice solved\n/**/#include "gpt2/twice.cpp"', ".local _Z4halfi", "undefined"),
                ('%:define twice solved\n%:include "../../../source/gpt2/twice.cpp"', '.incbin "../build/libgpt2.a"', "file not found")):
            status, points, verdicts, output = self.grade(twice=included.format(directive),
                                                          half=assembled.format(instruction))
            self.assertEqual(points, 0, output)
            self.assertIn("No such file", verdicts["01.1"][1])
            self.assertIn(why, verdicts["01.2"][1])

    def test_a_missing_or_broken_body_costs_its_own_points_only(self):
        (self.copy / "test_twice.cpp").write_text("int main() { return 0; }\n")  # which is not read
        self.assertEqual(self.grade(twice="  return 7;", half="  return x / 2;")[1], 5)
        path = self.copy / "gpt2/twice.cpp"
        path.write_text(path.read_text().replace("BEGIN EXERCISE 01.1", "BEGIN EXERCISE 01.7"))
        for _ in ("another number", "no file"):
            status, output = self.run_script("grade", "01", *UNPROTECTED)
            self.assertEqual(status, 1, output)
            self.assertIn("01.1: refused\n01.2: passed\n", output)
            self.assertIn("5/15", output)
            path.unlink(missing_ok=True)
        status, output = self.run_script("grade", "01.2", *UNPROTECTED)
        self.assertEqual(status, 0, output)
        self.assertIn("5/5", output)

    def test_mutants_must_lose_their_points(self):
        status, output = self.run_script("mutants", "01")
        self.assertEqual(status, 0, output)
        self.assertTrue(output.endswith("9 passed, 0 failed\n"), output)
        self.assertIn("01_adds_two_first: adds two before all  [half: holds for 3]", output)

        inside = patch_of("inside", "   return x / 2;", "+  x += 2;")
        unnoticed = TREE["tests/mutants/01/01.patches"].replace("adds_two_first", "unnoticed").replace("x += 2", "x += 0")
        with self.more_mutants({"01/01.2.bodies": "// WRONG right\n// not wrong\n  return x >> 1;\n// WRONG broken\n// no C++\n  return y;\n"
                                               "// RIGHT style\n// shifts\n  return x >> 1;\n", "01/01.patches": unnoticed + inside}):
            status, output = self.run_script("mutants", "01")
        self.assertEqual(status, 1)
        for text in ("FAIL  01.2_right: not wrong [passed]", "FAIL  01.2_broken:", "PASS  01.2_style: shifts [passed]",
                     "01_unnoticed: is not noticed", "01_inside: breaks an exercise", "10 passed, 4 failed"):
            self.assertIn(text, output)

    def test_some_mutants_are_the_first_of_each_exercise_or_lesson_and_all_patches_fit(self):
        status, output = self.run_script("mutants", "--some", "01")
        self.assertEqual(status, 0, output)
        for text in ("patches: 3 of 3 fit", "01.1 stub: [not implemented]", "01.2_ends: ends", "01_adds_two_first: adds"):
            self.assertIn("PASS  " + text, output)
        self.assertTrue(output.endswith("8 passed, 0 failed\n"), output)
        status, output = self.run_script("mutants", "--some")
        self.assertEqual(status, 0, output)
        self.assertIn("PASS  01.1_adds_two: adds", output)
        self.assertIn("PASS  01_adds_two_first: adds", output)
        self.assertTrue(output.endswith("8 passed, 0 failed\n"), output)

        later = "// WRONG later\n// right, and not looked at\n  return x >> 1;\n"
        others = {"01/01.1.bodies": None, "01/01.2.bodies": later, "01/01.9.bodies": later, "02/02.patches": patch_of("what", " int half(int x)", "+//"),
                  "01/01.patches": patch_of("stale", " int third(int x)", "+//") + patch_of("inside", "   return x / 2;", "+  x += 2;")}
        with self.more_mutants(others):
            status, output = self.run_script("mutants", "--some")
        self.assertEqual(status, 1, output)
        told_first = output[:output.index("patches: 3 of 7 fit")]
        for text in ("01_stale: tests/mutants/01/01.patches:13: the patch does not apply", "01_inside: breaks an exercise",
                     "01.9_later: there is no exercise 01.9", "02_what: there is no lesson", "01.1: has no wrong solution"):
            self.assertIn("FAIL  " + text, told_first)
        self.assertTrue(output.endswith("7 passed, 5 failed\n"), output)

    def test_malformed_files_of_mutants_are_refused_with_file_and_line(self):
        for name, more, why in (("01/01.2.bodies", "// FALSE later\n// why\n  return 1;\n", ":4: expected: // WRONG name, or // RIGHT name"),
                                ("01/01.2.bodies", "// WRONG later\n  return 1;\n", ":5: expected: // a sentence about 01.2_later"),
                                ("01/01.2.bodies", "// WRONG ends\n// why\n  return 1;\n", ":4: 01.2_ends stands already above"),
                                ("01/01.2.bodies", "// WRONG later\n// why\n", ":4: 01.2_later has a sentence or its lines missing"),
                                ("01/01.patches", "// WRONG later\n// why\n  return 1;\n", ":9: expected: // BROKEN name"),
                                ("01/01.1_ends.patch", "", " is not named as")):
            with self.more_mutants({name: more}):
                status, output = self.run_script("mutants", "01", "--some")
            self.assertEqual(status, 2, output)
            self.assertIn(f"error: tests/mutants/{name}{why}", output)


if __name__ == "__main__":
    unittest.main()
