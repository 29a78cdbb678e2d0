"""Grades a starter repository (scripts/course.py pack) with the tests that it has: what a student sees of the grade."""

import json

import exercise
from exercise_bench import Bench
from exercise_tree import Refused, all_regions, read_tree
from grade_table import document_of, table_of

MANIFEST = "course.json"


def grade_visible(root, json_file):
    """Builds and tests the repository of a student, prints the points and writes grade.json. Exit status 0 if there are all points, else 1."""
    if not (root / MANIFEST).is_file():
        raise Refused(f"{root} is no starter repository: it has no {MANIFEST}. Name a submission: "
                      "scripts/course.py grade SUBMISSION --lessons=NN")
    manifest = json.loads((root / MANIFEST).read_text(encoding="utf-8"))
    lessons = manifest["lessons"]
    tree = read_tree(root)
    regions = [region for region in all_regions(tree) if region.exercise.split(".")[0] in lessons]
    bench = Bench(root, root / "build/grade")
    rows = exercise.judge(bench, tree, regions, {region.path: tree[region.path] for region in regions})
    titles = {region.exercise: region.title for region in regions}
    rows = [{**row, "kind": "implement", "title": titles[row["exercise"]]} for row in rows]
    print("\n".join(table_of(rows)))
    if json_file:
        document = document_of(lessons, manifest["student"], manifest["revision"], rows)
        json_file.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    print(f"\nAll that the tests said: {bench.log}")
    return 0 if all(row["points"] == row["of"] for row in rows) else 1
