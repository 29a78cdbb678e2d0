"""Grades a starter repository (scripts/course.py pack) with the tests that it has: what a student sees of the grade."""

import json

from exercise_bench import Bench
from exercise_tree import Refused, all_regions, read_tree, stubbed_files, write_whole
from grade_table import document_of, table_of

MANIFEST = "course.json"


def judge(bench, tree, regions, files):
    """Tests the student's files in the clean tree; a list of {exercise, points, of, verdict, detail}."""
    stubs, exercises = stubbed_files(tree, regions), [region.exercise for region in regions]
    built, output = bench.build({**tree, **files}, exercises)
    broken = {}
    if not built:  # each file beside stubs of the others: which one is it?
        for path in files:
            alone, output_alone = bench.build({**tree, **stubs, path: files[path]}, exercises)
            if not alone:
                broken[path] = bench.first_error(output_alone)
        good = {path: content for path, content in files.items() if path not in broken}
        built, output = bench.build({**tree, **stubs, **good}, exercises)
    outcomes = bench.run(exercises) if built else {}
    verdicts = []
    for region in regions:
        if not built or region.path in broken:
            verdict, detail = "does not compile", broken.get(region.path) or bench.first_error(output)
        else:
            verdict, detail = outcomes[region.exercise]
        points = region.points if verdict == "passed" else 0
        verdicts.append(dict(exercise=region.exercise, points=points, of=region.points, verdict=verdict, detail=detail))
    return verdicts


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
    rows = judge(bench, tree, regions, {region.path: tree[region.path] for region in regions})
    titles = {region.exercise: region.title for region in regions}
    rows = [{**row, "kind": "implement", "title": titles[row["exercise"]]} for row in rows]
    print("\n".join(table_of(rows)))
    if json_file:
        document = document_of(lessons, manifest["student"], manifest["revision"], rows)
        write_whole(json_file, json.dumps(document, indent=2) + "\n")
    print(f"\nAll that the tests said: {bench.log}")
    return 0 if all(row["points"] == row["of"] for row in rows) else 1
