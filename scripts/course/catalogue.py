"""Additions of lessons/NN_name/exercises.toml to the regions: minutes, hints, and the exercises that are answered."""

import importlib.util
import os
import pathlib
import unicodedata

from exercise_tree import Refused, all_regions
from documents import decoded, shown

try:
    import tomllib
except ModuleNotFoundError:  # before Python 3.11
    try:
        import tomli as tomllib
    except ModuleNotFoundError:
        tomllib = None

TABLES = ("grades.md", "changes.md")  # beside the folders of students
LONGEST_NAME = 200                    # bytes of a student's name
SHOWN = ("number", "kind", "points", "minutes", "title", "hints")  # what students may see of a table; the rest has answers


def read_toml(text, path):
    """The document; Refused names the file, and the line where there is one."""
    if tomllib is None:
        raise Refused(f"{path} is TOML, which Python reads from 3.11 on; use that, or install the package tomli (python3-tomli)")
    try:
        return tomllib.loads(text)
    except ValueError as error:
        raise Refused(f"{path}: {error}") from None


def tables_of(tree, lesson):
    """The [[exercise]] tables of a lesson, number -> table; none where there is no file."""
    found = {}
    for path in tree:
        if path.startswith(f"lessons/{lesson}_") and path.endswith("/exercises.toml"):
            for table in read_toml(tree[path].decode(), path).get("exercise", []):
                if "number" not in table:
                    raise Refused(f"{path}: an exercise has no number")
                found[table["number"]] = table
    return found


def entries_of(tree, lessons):
    """All exercises of these lessons in the order of the files, in which each needs only those before it: {number, kind, points,
    title, text, minutes, hints}, the last two where the file has them."""
    entries, order = [], {}
    for lesson in lessons:
        tables = tables_of(tree, lesson)
        order.update({number: place for place, number in enumerate(tables)})
        for region in all_regions(tree):
            if region.exercise.startswith(lesson + "."):
                table = tables.pop(region.exercise, {})
                entries.append({**{key: table[key] for key in ("minutes", "hints") if key in table}, "number": region.exercise,
                                "kind": "implement", "points": region.points, "title": region.title, "text": region.text})
        entries += [{"text": f"The question and room for the answer are in `{sheet_of(lesson)}`.",
                     **{key: table[key] for key in SHOWN if key in table}} for table in tables.values()]
    return sorted(entries, key=lambda entry: (entry["number"][:2], order.get(entry["number"], len(order)), entry["number"]))


def answers_module():
    """scripts/course/answers.py, or None where there is none: it grades the exercises that are answered."""
    if not (pathlib.Path(__file__).parent / "answers.py").exists() or importlib.util.find_spec("answers") is None:
        return None
    import answers  # pylint: disable=import-outside-toplevel
    return answers


def is_answered(tree, lesson):
    """True if a lesson has exercises that are answered."""
    return any(table.get("kind") != "implement" for table in tables_of(tree, lesson).values())


def sheet_of(lesson):
    """The file in which a student writes the answers of a lesson."""
    return f"answers-{lesson}.toml"


def person(name):
    """The name of a student as it is compared and shown, and as a folder is called: NFC, in one line, without control characters."""
    text = unicodedata.normalize("NFC", decoded(os.fsencode(name)))
    text = shown(" ".join(text.split())).replace("/", "_").encode()[:LONGEST_NAME].decode(errors="ignore")
    return "_" + text if text.startswith(".") or text in ("", *TABLES) else text


def figures_of(student, secret):
    """Whose figures a student's questions have: without a secret everybody could compute those of the others, so all have
    the same ones, those of a student without a name."""
    return person(student) if secret else ""
