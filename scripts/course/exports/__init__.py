"""Grades in the formats of other programs, each made from grade.json alone."""

import importlib
import json

from exercise_tree import Refused
from documents import shown

FORMATS = ("csv", "junit", "gradescope", "prairielearn", "classroom")
KEYS = {"student", "lessons", "revision", "date", "points", "of", "exercises"}
KEYS_OF_A_ROW = {"exercise", "kind", "title", "points", "of", "verdict", "detail"}


def harmless(table):
    return {key: shown(value) if isinstance(value, str) else value for key, value in table.items()}


def read_grade(path):
    """One grade.json, without control characters in its texts."""
    try:
        grade = json.loads(path.read_text(encoding="utf-8"), object_hook=harmless)
        complete = KEYS <= grade.keys() and all(KEYS_OF_A_ROW <= row.keys() for row in grade["exercises"])
    except (ValueError, AttributeError, RecursionError, TypeError) as error:
        raise Refused(f"{path} is no grade.json: {error}") from error
    if not complete:
        raise Refused(f"{path} is no grade.json: it lacks some of {', '.join(sorted(KEYS | KEYS_OF_A_ROW))}")
    return grade


def export(name, grades):
    """Grades in one of the formats, as a text. csv and junit take any number of students, the others one."""
    if name not in FORMATS:
        raise Refused(f"there is no format {name}. Choose one of {', '.join(FORMATS)}")
    if name not in ("csv", "junit") and len(grades) != 1:
        raise Refused(f"{name} is about one student, and there are {len(grades)} grades. Export them one by one")
    return importlib.import_module(f"exports.{name}_format").text_of(grades)
