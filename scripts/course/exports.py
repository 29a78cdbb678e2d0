"""Grades in the formats of other programs, each made from grade.json alone."""

import base64
import csv
import io
import json
import re
import xml.etree.ElementTree as ET

from exercise_tree import Refused, in_order
from documents import shown

KEYS = {"student", "lessons", "revision", "date", "points", "of", "exercises"}
KEYS_OF_A_ROW = {"exercise", "kind", "title", "points", "of", "verdict", "detail"}
ELEMENT = {"not implemented": "skipped", "not answered": "skipped", "failed": "failure"}  # of JUnit; anything else: error
FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")          # in XML 1.0
MOST_CHARACTERS = 10000                                                                   # of a detail: all of PrairieLearn's file may have 1 MB


def harmless(table):
    return {key: shown(value) if isinstance(value, str) else value for key, value in table.items()}


def read_grade(path):
    """One grade.json, without control characters in its texts."""
    try:
        grade = json.loads(path.read_text(encoding="utf-8"), object_hook=harmless)
        complete = KEYS <= grade.keys() and all(KEYS_OF_A_ROW <= row.keys() for row in grade["exercises"])
    except (ValueError, AttributeError, RecursionError, TypeError) as error:
        raise Refused(f"{path} is no grade.json: {error}") from error
    if not complete:
        raise Refused(f"{path} is no grade.json: it lacks some of {', '.join(sorted(KEYS | KEYS_OF_A_ROW))}")
    return grade


def no_formula(text):
    """A text that no spreadsheet takes for a formula: https://owasp.org/www-community/attacks/CSV_Injection
    Where a comma is in decimals, Excel begins a cell at each semicolon."""
    return re.sub("(^|;[ \"]*)([=+@\uff1d\uff0b\uff0d\uff20-])", r"\1'\2", " ".join(text.split()))


def csv_of(grades):
    """CSV (RFC 4180): a line for each student, a column for each exercise, for spreadsheets and gradebooks."""
    exercises = sorted({row["exercise"] for grade in grades for row in grade["exercises"]}, key=in_order)
    table = io.StringIO()
    writer = csv.writer(table)
    writer.writerow(["student", *exercises, "points", "of", "revision", "date", "unread"])
    for grade in sorted(grades, key=lambda grade: grade["student"]):
        points = {row["exercise"]: row["points"] for row in grade["exercises"]}
        writer.writerow([no_formula(grade["student"]), *[points.get(exercise, "") for exercise in exercises],
                         grade["points"], grade["of"], grade["revision"], grade["date"], no_formula(grade.get("unread", ""))])
    return table.getvalue()


def junit_of(grades):
    """JUnit XML, which GitLab, Jenkins and others show: a suite for each student, a case for each exercise. Elements and attributes are
    those of Jenkins's schema:
    https://github.com/jenkinsci/xunit-plugin/blob/master/src/main/resources/org/jenkinsci/plugins/xunit/types/model/xsd/junit-10.xsd"""
    suites = ET.Element("testsuites", name="rankwise")
    for grade in grades:
        kinds = [ELEMENT.get(row["verdict"], "error") for row in grade["exercises"] if row["verdict"] != "passed"]
        suite = ET.SubElement(suites, "testsuite", name=FORBIDDEN.sub("?", grade["student"]), tests=str(len(grade["exercises"])),
                              failures=str(kinds.count("failure")), errors=str(kinds.count("error")),
                              skipped=str(kinds.count("skipped")), timestamp=grade["date"].rstrip("Z"))
        for row in grade["exercises"]:
            case = ET.SubElement(suite, "testcase", name=FORBIDDEN.sub("?", f"{row['exercise']} {row['title']}"),
                                 classname=f"lesson-{row['exercise'].split('.')[0]}")
            if row["verdict"] != "passed":
                what = ET.SubElement(case, ELEMENT.get(row["verdict"], "error"), type=row["verdict"],
                                     message=f"{row['verdict']}, {row['points']} of {row['of']} points")
                what.text = FORBIDDEN.sub("?", row["detail"])
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(suites, encoding="unicode") + "\n"


def gradescope_of(grade):
    """Gradescope's results.json: https://gradescope-autograders.readthedocs.io/en/latest/specs/#output-format
    The files of an autograder are in exports/gradescope/."""
    tests = [dict(name=f"{row['exercise']} {row['title']}", number=row["exercise"], score=row["points"], max_score=row["of"],
                  status="passed" if row["verdict"] == "passed" else "failed",
                  output="\n".join(filter(None, [row["verdict"], row["detail"]])), output_format="text",
                  tags=[row["kind"]], visibility="visible") for row in grade["exercises"]]
    return json.dumps(dict(score=grade["points"], output=f"Graded by revision {grade['revision']}.", output_format="text",
                           visibility="visible", stdout_visibility="hidden", tests=tests), indent=2) + "\n"


def prairielearn_of(grade):
    """results.json of an external grader of PrairieLearn: https://prairielearn.readthedocs.io/en/latest/externalGrading/
    A submission of which nothing could be read is "not gradable", so that it uses up no attempt."""
    if grade["exercises"] and all(row["verdict"] == "refused" for row in grade["exercises"]):
        reasons = sorted({row["detail"] for row in grade["exercises"]})
        return json.dumps(dict(gradable=False, format_errors=reasons, message="Nothing could be graded."), indent=2) + "\n"
    tests = [dict(name=f"{row['exercise']} {row['title']}", description=row["kind"], points=row["points"], max_points=row["of"],
                  message=row["verdict"], output=row["detail"][:MOST_CHARACTERS]) for row in grade["exercises"]]
    score = grade["points"] / grade["of"] if grade["of"] else 0.0
    return json.dumps(dict(gradable=True, score=score, message=f"{grade['points']} of {grade['of']} points", tests=tests),
                      indent=2) + "\n"


def classroom_of(grade):
    """GitHub Classroom: what its reporter reads from a step's output, JSON in base64. It turns the points into annotations.
    https://github.com/classroom-resources/autograding-grading-reporter/blob/main/src/main.js
    exports/github/classroom.yml is the workflow, for .github/workflows/ of a starter repository."""
    tests = [dict(name=f"{row['exercise']} {row['title']}", status="pass" if row["verdict"] == "passed" else "fail",
                  score=row["points"], message="\n".join(filter(None, [row["verdict"], row["detail"]])), test_code="", filename="",
                  line_no=0, execution_time="0s") for row in grade["exercises"]]
    status = "pass" if all(test["status"] == "pass" for test in tests) else "fail"
    document = dict(version=1, status=status, max_score=grade["of"], tests=tests)
    return base64.b64encode(json.dumps(document).encode()).decode() + "\n"


OF_MANY = {"csv": csv_of, "junit": junit_of}  # students
OF_ONE = {"gradescope": gradescope_of, "prairielearn": prairielearn_of, "classroom": classroom_of}
FORMATS = (*OF_MANY, *OF_ONE)


def export(name, grades):
    """Grades in one of the formats, as a text."""
    if name not in FORMATS:
        raise Refused(f"there is no format {name}. Choose one of {', '.join(FORMATS)}")
    if name in OF_MANY:
        return OF_MANY[name](grades)
    if len(grades) != 1:
        raise Refused(f"{name} is about one student, and there are {len(grades)} grades. Export them one by one")
    return OF_ONE[name](*grades)
