"""What lessons/NN_name/exercises.toml adds to the regions: minutes, hints, and the exercises that are answered."""

import importlib.util
import pathlib

from exercise_tree import Refused, all_regions

try:
    import tomllib
except ModuleNotFoundError:  # before Python 3.11
    try:
        import tomli as tomllib
    except ModuleNotFoundError:
        tomllib = None

SHOWN = ("number", "kind", "points", "minutes", "title", "hints")  # what students may see of a table; the rest has answers


def tables_of(tree, lesson):
    """The [[exercise]] tables of a lesson, number -> table; none where there is no file."""
    found = {}
    for path in tree:
        if path.startswith(f"lessons/{lesson}_") and path.endswith("/exercises.toml"):
            if tomllib is None:
                raise Refused("Python older than 3.11 needs the package tomli to read exercises.toml (python3-tomli)")
            try:
                for table in tomllib.loads(tree[path].decode()).get("exercise", []):
                    found[table["number"]] = table
            except (tomllib.TOMLDecodeError, KeyError) as error:
                raise Refused(f"{path}: {error}") from error
    return found


def entries_of(tree, lessons):
    """All exercises of these lessons in order: {number, kind, points, title, text, minutes, hints}, the last two where the
    file has them."""
    entries = []
    for lesson in lessons:
        tables = tables_of(tree, lesson)
        for region in all_regions(tree):
            if region.exercise.startswith(lesson + "."):
                table = tables.pop(region.exercise, {})
                entries.append({**{key: table[key] for key in ("minutes", "hints") if key in table}, "number": region.exercise,
                                "kind": "implement", "points": region.points, "title": region.title, "text": region.text})
        entries += [{"text": f"The question and room for the answer are in `{sheet_of(lesson)}`.",
                     **{key: table[key] for key in SHOWN if key in table}} for table in tables.values()]
    return sorted(entries, key=lambda entry: [int(part) for part in entry["number"].split(".")])


def answers_module():
    """scripts/course/answers.py, or None where there is none: it grades the exercises that are answered."""
    if not (pathlib.Path(__file__).parent / "answers.py").exists() or importlib.util.find_spec("answers") is None:
        return None
    import answers  # pylint: disable=import-outside-toplevel
    return answers


def is_answered(tree, lesson):
    """Whether a lesson has exercises that are answered."""
    return any(table.get("kind") != "implement" for table in tables_of(tree, lesson).values())


def sheet_of(lesson):
    """The file in which a student writes the answers of a lesson."""
    return f"answers-{lesson}.toml"


def figures_of(student, secret):
    """Whose figures a student's questions have: without a secret everybody could compute those of the others, so all have
    the same ones, those of a student without a name."""
    return student if secret else ""
