"""Grades a starter repository (scripts/course.py pack) with the tests that it has: what a student sees of the grade."""

import json
import re

from exercise_bench import Bench, first_error
from exercise_tree import Refused, all_regions, find_regions, read_tree, stubbed_files, write_whole
from grade_table import document_of, table_of

MANIFEST = "course.json"


def blamed(path, text, output, broken):
    """The exercise of a file whose body a compiler complains of: the last one, not known as broken, that begins above the line."""
    places = re.findall(rf"{re.escape(path)}:(\d+):\d+: +(?:error|required)", output)
    candidates = [region for region in find_regions(path, text) if region.exercise not in broken]
    above = [region for region in candidates if places and region.begin < int(places[0])]
    return (above or candidates)[-1].exercise if candidates else None


def build(bench, tree, regions, exercises):
    """Builds the tests of some exercises, with stubs for bodies that do not compile. Returns whether that was possible, the
    error of each such exercise, and what was printed."""
    paths = "|".join(re.escape(path) for path in {region.path for region in regions})
    broken, found = {}, True
    while found:
        files = {**tree, **stubbed_files(tree, [region for region in regions if region.exercise in broken])}
        built, output = bench.build(files, exercises)
        failed = None if built else re.search(rf"(?:FAILED: |\*\*\* ).*/({paths})\.o", output)
        found = failed and blamed(failed[1], files[failed[1]].decode(), output, broken)
        if found:
            broken[found] = first_error(output, bench.source)
    return built, broken, output


def judge(bench, tree, regions, exercises):
    """Tests some of the exercises in the clean tree and says each verdict as it is known: (verdict, detail) by exercise. A body
    that does not compile, or is missing, is a stub for the others."""
    built, broken, output = build(bench, tree, regions, exercises)
    verdicts = {}
    for exercise in exercises:
        if built and exercise not in broken:
            verdicts[exercise] = bench.run([exercise])[exercise]
        else:
            verdicts[exercise] = "does not compile", broken.get(exercise) or first_error(output, bench.source)
        print(f"{exercise}: {verdicts[exercise][0]}", flush=True)
    return verdicts


def grade_visible(root, json_file, wanted=""):
    """Builds and tests the repository of a student, or what `wanted` names of it, as 06.3 or 03,06; prints the points and writes
    grade.json. Exit status 0 if there are all points, else 1."""
    if not (root / MANIFEST).is_file():
        raise Refused(f"{root} is no starter repository: it has no {MANIFEST}. Name a submission: "
                      "scripts/course.py grade SUBMISSION --lessons=NN")
    manifest = json.loads((root / MANIFEST).read_text(encoding="utf-8"))
    lessons = manifest["lessons"]
    tree = read_tree(root)
    regions = [region for region in all_regions(tree) if region.exercise.split(".")[0] in lessons]
    names = wanted.split(",") if wanted else lessons
    chosen = [region for region in regions if {region.exercise, region.exercise[:2]} & set(names)]
    if not chosen:
        raise Refused(f"there is no exercise {wanted} here; there are {', '.join(region.exercise for region in regions)}")
    bench = Bench(root, root / "build/grade")
    print(f"Building the tests of {', '.join(region.exercise for region in chosen)} in {bench.folder}: some minutes the first time, "
          "later only what has changed.", flush=True)
    verdicts = judge(bench, tree, regions, [region.exercise for region in chosen])
    rows = []
    for region in chosen:
        verdict, detail = verdicts[region.exercise]
        rows.append(dict(exercise=region.exercise, kind="implement", title=region.title, verdict=verdict, detail=detail,
                         points=region.points if verdict == "passed" else 0, of=region.points))
    print("\n" + "\n".join(table_of(rows)))
    if json_file:
        document = document_of(lessons, manifest["student"], manifest["revision"], rows)
        write_whole(json_file, json.dumps(document, indent=2) + "\n")
    print(f"\nAll that the tests said: {bench.log}")
    return 0 if all(row["points"] == row["of"] for row in rows) else 1
