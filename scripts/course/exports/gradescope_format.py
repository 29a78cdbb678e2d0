"""Gradescope's results.json: https://gradescope-autograders.readthedocs.io/en/latest/specs/#output-format

The files of an autograder are in exports/gradescope/: Dockerfile, setup.sh and run_autograder.
"""

import json


def text_of(grades):
    (grade,) = grades
    tests = [dict(name=f"{row['exercise']} {row['title']}", number=row["exercise"], score=row["points"], max_score=row["of"],
                  status="passed" if row["verdict"] == "passed" else "failed",
                  output="\n".join(filter(None, [row["verdict"], row["detail"]])), output_format="text",
                  tags=[row["kind"]], visibility="visible") for row in grade["exercises"]]
    return json.dumps(dict(score=grade["points"], output=f"Graded by revision {grade['revision']}.", output_format="text",
                           visibility="visible", stdout_visibility="hidden", tests=tests), indent=2) + "\n"
