"""The exercises of a lesson, those to implement and those that are answered, and the students who do them."""

import importlib.util
import os
import pathlib
import unicodedata

from exercise_tree import all_regions, tables_of
from documents import decoded, shown

TABLES = ("grades.md", "changes.md")  # beside the folders of students
LONGEST_NAME = 200                    # bytes of a student's name
SHOWN = ("number", "kind", "points", "minutes", "title", "hints")  # what students may see of a table; the rest has answers


def entries_of(tree, lessons):
    """All exercises of these lessons in the order of the files, in which each needs only those before it: {number, kind, points,
    title, text, minutes, hints}, the last two where the file has them."""
    entries, regions = [], {region.exercise: region for region in all_regions(tree)}
    for lesson in sorted(lessons):
        for number, table in tables_of(tree, lesson).items():
            entry = {key: table[key] for key in SHOWN if key in table}
            if region := regions.get(number):
                entries.append({**entry, "title": region.title, "text": region.text})
            else:
                entries.append({"text": f"The question and room for the answer are in `{sheet_of(lesson)}`.", **entry})
    return entries


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
