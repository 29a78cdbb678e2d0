"""GitHub Classroom: what its reporter reads from a step's output, JSON in base64. It turns the points into annotations.
https://github.com/classroom-resources/autograding-grading-reporter/blob/main/src/main.js

exports/github/classroom.yml is the workflow, for .github/workflows/ of a starter repository.
"""

import base64
import json


def text_of(grades):
    (grade,) = grades
    tests = [dict(name=f"{row['exercise']} {row['title']}", status="pass" if row["verdict"] == "passed" else "fail",
                  score=row["points"], message="\n".join(filter(None, [row["verdict"], row["detail"]])), test_code="", filename="",
                  line_no=0, execution_time="0s") for row in grade["exercises"]]
    status = "pass" if all(test["status"] == "pass" for test in tests) else "fail"
    document = dict(version=1, status=status, max_score=grade["of"], tests=tests)
    return base64.b64encode(json.dumps(document).encode()).decode() + "\n"
