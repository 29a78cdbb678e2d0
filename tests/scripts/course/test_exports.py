#!/usr/bin/env python3
"""Tests scripts/course/exports.py: each format against what its documentation asks for."""

import base64
import csv
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree as ET

from fake_course import SCRIPTS, run_course
from exercise_tree import Refused
from exports import FORMATS, export, read_grade

EXPORTS = SCRIPTS / "course/exports"


def row(exercise, points, of, verdict, detail="", title="A | \"title\""):
    return dict(exercise=exercise, kind="implement", title=title, points=points, of=of, verdict=verdict, detail=detail)


def grade(student="alice", *rows):
    rows = rows or (row("03.1", 10, 10, "passed"), row("03.2", 0, 10, "failed", "first\n<second> & \"third\" \x1b[1m"),
                    row("03.10", 0, 5, "not implemented"), row("06.1", 3, 5, "does not compile", "a.cpp:1"))
    return dict(student=student, lessons=["03", "06"], revision="abc", date="2026-11-25T01:00:00Z",
                points=sum(r["points"] for r in rows), of=sum(r["of"] for r in rows), exercises=list(rows))


class Csv(unittest.TestCase):
    """RFC 4180: https://www.rfc-editor.org/rfc/rfc4180"""

    def test_a_line_a_student_and_a_column_an_exercise_in_order(self):
        other = grade("bob, \"jr\"", row("03.1", 7, 10, "passed"))
        text = export("csv", [other, grade()])
        self.assertTrue(text.endswith("\r\n"))
        table = list(csv.reader(io.StringIO(text)))
        self.assertEqual(table[0], ["student", "03.1", "03.2", "03.10", "06.1", "points", "of", "revision", "date", "unread"])
        self.assertEqual(table[1], ["alice", "10", "0", "0", "3", "13", "30", "abc", "2026-11-25T01:00:00Z", ""])
        self.assertEqual(table[2][:3], ["bob, \"jr\"", "7", ""])

    def test_no_name_is_a_formula(self):
        for name in ("=1+1", "+1", "-1", "@a", "\uff1d1"):
            self.assertEqual(list(csv.reader(io.StringIO(export("csv", [grade(name)]))))[1][0], "'" + name)
            cells = export("csv", [grade(f"a;{name}; {name}") | {"unread": f"not read;{name};\"{name}"}]).split("\n")[1].split(";")
            self.assertFalse([cell for cell in cells if re.match(f'[ "]*{re.escape(name[0])}', cell)], cells)


class Junit(unittest.TestCase):
    """Attributes that Jenkins's schema allows and requires, junit-10.xsd (the address is in exports.py)."""

    required = {"testsuites": set(), "testsuite": {"name", "tests", "failures", "errors"}, "testcase": {"name"},
                "failure": set(), "error": set(), "skipped": set()}
    allowed = {"testsuites": {"name", "time", "tests", "failures", "errors"},
               "testsuite": {"name", "tests", "failures", "errors", "group", "time", "skipped", "timestamp", "hostname", "id",
                             "package", "file", "log", "url"},
               "testcase": {"name", "time", "classname", "group"},
               "failure": {"type", "message"}, "error": {"type", "message"}, "skipped": {"type", "message"}}
    children = {"testsuites": {"testsuite"}, "testsuite": {"testcase"}, "testcase": {"failure", "error", "skipped"}}

    def test_elements_and_attributes_are_those_of_the_schema(self):
        text = export("junit", [grade(), grade("bob\0")])
        for element in ET.fromstring(text.split("\n", 1)[1]).iter():
            self.assertLessEqual(self.required[element.tag], set(element.attrib))
            self.assertLessEqual(set(element.attrib), self.allowed[element.tag])
            self.assertLessEqual({child.tag for child in element}, self.children.get(element.tag, set()))

    def test_counts_and_details(self):
        suite = ET.fromstring(export("junit", [grade()]).split("\n", 1)[1])[0]
        self.assertEqual([suite.get(key) for key in ("name", "tests", "failures", "errors", "skipped")], ["alice", "4", "1", "1", "1"])
        self.assertEqual([case[0].tag if len(case) else "" for case in suite], ["", "failure", "skipped", "error"])
        self.assertEqual(suite[1][0].text, "first\n<second> & \"third\" ?[1m")
        self.assertEqual(suite[3][0].get("message"), "does not compile, 3 of 5 points")


class Gradescope(unittest.TestCase):
    """https://gradescope-autograders.readthedocs.io/en/latest/specs/#output-format: "score", optional where each test has one,
    "overrides total of tests if specified"; "max_score", "status" ("passed" or "failed"), "name", "number", "output",
    "output_format", "tags", "visibility" ("hidden", "after_due_date", "after_published", "visible") of each test."""

    top = {"score", "execution_time", "output", "output_format", "test_output_format", "test_name_format", "visibility",
           "stdout_visibility", "extra_data", "tests", "leaderboard"}
    test = {"score", "max_score", "status", "name", "name_format", "number", "output", "output_format", "tags", "visibility",
            "extra_data"}
    visible = {"hidden", "after_due_date", "after_published", "visible"}

    def test_every_key_is_documented_and_the_scores_add_up(self):
        document = json.loads(export("gradescope", [grade()]))
        self.assertLessEqual(set(document), self.top)
        for test in document["tests"]:
            self.assertLessEqual(set(test), self.test)
            self.assertIn(test["status"], ("passed", "failed"))
            self.assertIn(test["visibility"], self.visible)
            self.assertIsInstance(test["tags"], list)
        self.assertLessEqual({document["visibility"], document["stdout_visibility"]}, self.visible)
        self.assertEqual((document["score"], sum(test["score"] for test in document["tests"])), (13, 13))
        self.assertEqual([test["status"] for test in document["tests"]], ["passed", "failed", "failed", "failed"])
        self.assertIn("a.cpp:1", document["tests"][3]["output"])

    def run_scripts(self, folder, *names, **variables):
        """Runs scripts of the image, with a folder in place of /autograder and a stand-in for each script of the course, which
        ends as grading an empty folder does; their command lines."""
        source = folder / "source/scripts"
        (source / "course/exports").mkdir(parents=True)
        shutil.copytree(EXPORTS / "gradescope", source / "course/exports/gradescope")
        for path in (source / "course/exports/gradescope").iterdir():
            path.write_text(path.read_text().replace("/autograder", str(folder)))
        for name in ("setup.sh", "build.sh", "course.py"):
            (source / name).write_text(f'#!/bin/sh\necho "{name} $*" >>{folder}/calls\ncase $2 in build/empty) exit 1 ;; esac\n')
            (source / name).chmod(0o755)
        (folder / "submission_metadata.json").write_text('{"users": [{"email": "a@b"}]}')
        for name in names:
            subprocess.run(["bash", source / "course/exports/gradescope" / name], env={**os.environ, "LESSONS": "03,06", **variables}, check=True)
        return (folder / "calls").read_text().replace(str(folder), "/autograder").splitlines()

    def test_the_image_has_a_sandbox_and_everything_built_before_a_submission_comes(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(self.run_scripts(pathlib.Path(folder), "setup.sh"), [
                "setup.sh --grading", "build.sh release", "course.py grade build/empty --lessons=03,06 --no-sandbox"])
            self.assertTrue(os.access(f"{folder}/run_autograder", os.X_OK))

    def test_a_submission_is_graded_in_a_sandbox_unless_the_image_says_that_there_is_none(self):
        grade = "course.py grade /autograder/submission --lessons=03,06 --student=a@b"
        for variables, option in (({}, ""), ({"GRADING": ""}, ""), ({"GRADING": "--no-sandbox"}, " --no-sandbox")):
            with tempfile.TemporaryDirectory() as folder:
                self.assertEqual(self.run_scripts(pathlib.Path(folder), "run_autograder", **variables), [
                    f"{grade}{option} --json=/autograder/grade.json",
                    "course.py export gradescope /autograder/grade.json --to=/autograder/results/results.json"])
        self.assertIn('ENV GRADING=""\n', (EXPORTS / "gradescope/Dockerfile").read_text())

    def test_the_files_name_gradescopes_paths(self):
        run = (EXPORTS / "gradescope/run_autograder").read_text()
        for path in ("/autograder/submission", "/autograder/results/results.json", "/autograder/submission_metadata.json"):
            self.assertIn(path, run)


class PrairieLearn(unittest.TestCase):
    """https://prairielearn.readthedocs.io/en/latest/externalGrading/#grading-results: "a floating point number in the range
    [0.0, 1.0]"; "if the submission is not gradable then the score field is unneeded"; "limited to 1 MB"; format_errors is
    "either a string or an array of strings"."""

    def test_the_score_is_a_share_and_tests_have_points(self):
        document = json.loads(export("prairielearn", [grade()]))
        self.assertIs(document["gradable"], True)
        self.assertAlmostEqual(document["score"], 13 / 30)
        for test in document["tests"]:
            self.assertEqual(set(test), {"name", "description", "points", "max_points", "message", "output"})
            self.assertLessEqual(test["points"], test["max_points"])

    def test_nothing_that_can_be_read_is_not_gradable(self):
        document = json.loads(export("prairielearn", [grade("a", row("03.1", 0, 10, "refused", "why"), row("03.2", 0, 1, "refused", "why"))]))
        self.assertEqual((document["gradable"], document["format_errors"]), (False, ["why"]))
        self.assertNotIn("score", document)

    def test_the_file_stays_small(self):
        rows = [row(f"03.{number}", 0, 1, "failed", "x" * 10**6) for number in range(1, 60)]
        self.assertLess(len(export("prairielearn", [grade("a", *rows)])), 10**6)


class Classroom(unittest.TestCase):
    """Fields that the reporter reads (the address is in classroom_format.py): "status" and "max_score" of a runner, "name",
    "status" (pass, fail or error), "message" and "score" of its tests; from the variable RUNNER_RESULTS, in base64."""

    def test_the_reporter_can_add_up_the_points(self):
        text = export("classroom", [grade()])
        self.assertEqual(text.count("\n"), 1)
        document = json.loads(base64.b64decode(text))
        self.assertEqual((document["status"], document["max_score"], sum(test["score"] for test in document["tests"])), ("fail", 30, 13))
        self.assertLessEqual({test["status"] for test in document["tests"]}, {"pass", "fail", "error"})
        self.assertEqual(json.loads(base64.b64decode(export("classroom", [grade("a", row("03.1", 1, 1, "passed"))])))["status"], "pass")

    def test_the_workflow_hands_the_result_over_under_the_runners_name(self):
        workflow = (EXPORTS / "github/classroom.yml").read_text()
        self.assertIn("runners: rankwise", workflow)
        self.assertIn("RANKWISE_RESULTS", workflow)
        self.assertIn("classroom-resources/autograding-grading-reporter@v1", workflow)


class Command(unittest.TestCase):
    def test_formats_from_the_command_line(self):
        with tempfile.TemporaryDirectory() as folder:
            path, target = pathlib.Path(folder) / "grade.json", pathlib.Path(folder) / "out"
            path.write_text(json.dumps(grade()))
            for name in FORMATS:
                status, output = run_course(SCRIPTS.parent, "export", name, path, f"--to={target}")
                self.assertEqual((status, output), (0, ""))
                self.assertNotIn("u001b", target.read_text())
                self.assertEqual(target.read_text().replace("\r", "").strip(), export(name, [read_grade(path)]).replace("\r\n", "\n").strip())
            self.assertEqual(run_course(SCRIPTS.parent, "export", "gradescope", path, path)[0], 2)
            self.assertIn("Choose one of csv", run_course(SCRIPTS.parent, "export", "xls", path)[1])

    def test_what_is_no_grade_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "grade.json"
            for text in ("", "[]", "{}", '{"exercises": 1}', json.dumps({**grade(), "exercises": [{}]})):
                path.write_text(text)
                with self.assertRaisesRegex(Refused, "is no grade.json"):
                    read_grade(path)

    def test_an_export_is_at_most_40_lines(self):
        for path in EXPORTS.rglob("*"):
            if path.is_file() and path.suffix != ".pyc":
                self.assertLessEqual(len(path.read_text().splitlines()), 40, path)


if __name__ == "__main__":
    unittest.main()
