"""results.json of an external grader of PrairieLearn: https://prairielearn.readthedocs.io/en/latest/externalGrading/

A submission of which nothing could be read is "not gradable", so that it uses up no attempt.
"""

import json

MOST_CHARACTERS = 10000  # of a detail: the whole file may have 1 MB


def text_of(grades):
    (grade,) = grades
    if grade["exercises"] and all(row["verdict"] == "refused" for row in grade["exercises"]):
        reasons = sorted({row["detail"] for row in grade["exercises"]})
        return json.dumps(dict(gradable=False, format_errors=reasons, message="Nothing could be graded."), indent=2) + "\n"
    tests = [dict(name=f"{row['exercise']} {row['title']}", description=row["kind"], points=row["points"], max_points=row["of"],
                  message=row["verdict"], output=row["detail"][:MOST_CHARACTERS]) for row in grade["exercises"]]
    score = grade["points"] / grade["of"] if grade["of"] else 0.0
    return json.dumps(dict(gradable=True, score=score, message=f"{grade['points']} of {grade['of']} points", tests=tests),
                      indent=2) + "\n"
