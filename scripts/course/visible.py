"""Grades a starter repository (scripts/course.py pack) with the tests that it has: what a student sees of the grade."""

import json
import re

from exercise_bench import Bench, first_error
from exercise_tree import MANIFEST, Refused, all_regions, find_regions, read_tree, stubbed_files, write_whole
from documents import read_json
from grade_table import document_of, lines_of
from prebuilt import ARCHIVE, unpack_objects


def blamed(path, text, output, broken):
    """The exercise of a file whose body a compiler complains of: the last one, not known as broken, that begins above the line."""
    places = re.findall(rf"{re.escape(path)}:(\d+):\d+: +(?:error|required)", output)
    candidates = [region for region in find_regions(path, text) if region.exercise not in broken]
    above = [region for region in candidates if places and region.begin < int(places[0])]
    return (above or candidates)[-1].exercise if candidates else None


def build(bench, tree, regions, exercise, broken):
    """Builds the tests of an exercise, with stubs for bodies that do not compile, whose errors are added to `broken`, by exercise.
    Returns whether that was possible, and what was printed."""
    paths = "|".join(re.escape(path) for path in {region.path for region in regions})
    while True:
        files = {**tree, **stubbed_files(tree, [region for region in regions if region.exercise in broken])}
        built, output = bench.build(files, [exercise])
        failed = None if built else re.search(rf"(?:FAILED: |\*\*\* ).*/({paths})\.o", output)
        found = failed and blamed(failed[1], files[failed[1]].decode(), output, broken)
        if not found:
            return built, output
        broken[found] = first_error(output, bench.source)


def rows_of(bench, tree, regions, wanted, log):
    """Tests the wanted ones of the student's regions one after the other, each as soon as what it needs is built; yields the
    rows of grade.json. A body that does not compile, or is missing, is a stub for the others. What the tests say is added to `log`."""
    broken = {}
    for region in wanted:
        built, output = build(bench, tree, regions, region.exercise, broken)
        if built and region.exercise not in broken:
            verdict, detail = bench.run([region.exercise])[region.exercise]
            log.append(bench.log.read_text(errors="replace"))
        else:
            verdict, detail = "does not compile", broken.get(region.exercise) or first_error(output, bench.source)
        yield dict(exercise=region.exercise, kind="implement", title=region.title, points=region.points if verdict == "passed" else 0,
                   of=region.points, verdict=verdict, detail=detail)


def chosen(regions, names):
    """The regions of some lessons or exercises, as "03,06.3"; all where it is empty."""
    wanted = names.split(",") if names else []
    for name in wanted:
        if not any(name in (region.exercise, region.lesson) for region in regions):
            raise Refused(f"there is no exercise {name} to implement here. There are {', '.join(region.exercise for region in regions)}")
    return [region for region in regions if not wanted or {region.exercise, region.lesson} & set(wanted)]


def grade_visible(root, json_file, names=""):
    """Builds and tests the repository of a student, or what `names` has of it, prints the points and writes grade.json. Exit status 0
    if there are all points, else 1."""
    try:
        manifest = read_json(root / MANIFEST)
    except (OSError, ValueError) as error:
        raise Refused(f"{root} is no starter repository, or its {MANIFEST} is damaged: {error}. Name a submission: "
                      "scripts/course.py grade SUBMISSION --lessons=NN") from None
    tree, rows = read_tree(root), []
    regions = [region for region in all_regions(tree) if region.lesson in manifest["lessons"]]
    wanted = chosen(regions, names)
    bench = Bench(root, root / "build/grade")
    useless = unpack_objects(root / ARCHIVE, bench.objects)
    print(f"Building in {bench.folder}: " + (f"some minutes the first time, since {ARCHIVE} is {useless}" if useless else
          f"what you have changed, and the first time what is not in {ARCHIVE}, half a minute on two cores") + ".", flush=True)
    bench.folder.mkdir(parents=True, exist_ok=True)
    log = []
    tested = (rows.append(row) or row for row in rows_of(bench, tree, regions, wanted, log))
    for line in lines_of(tested, [region.title for region in wanted]):
        print(line, flush=True)
    write_whole(bench.folder / "tests.log", "".join(log))
    if json_file:
        document = document_of(manifest["lessons"], manifest["student"], manifest["revision"], rows)
        write_whole(json_file, json.dumps(document, indent=2) + "\n")
    print(f"\nAll that the tests said: {bench.folder / 'tests.log'}")
    return 0 if all(row["points"] == row["of"] for row in rows) else 1
