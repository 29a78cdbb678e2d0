"""The tree of two exercises of test_exercise.py, as a course in a folder, and students who hand something in."""

import pathlib
import subprocess
import sys

SCRIPTS = pathlib.Path(__file__).resolve().parents[3] / "scripts"
sys.path.insert(0, str(SCRIPTS / "course"))
sys.dont_write_bytecode = True

from exercise_tree import find_regions, write_tree  # noqa: E402
from test_exercise import TREE, encoded  # noqa: E402

RIGHT = {"twice": "  return x + x;", "half": "  return x / 2;"}


def write_course(root):
    """Writes the course; its scripts are those of this repository."""
    write_tree(root, encoded(TREE), root)


def run_course(root, *arguments):
    """Exit status and all output of scripts/course.py."""
    done = subprocess.run([sys.executable, "-B", str(SCRIPTS / "course.py"), "--root", str(root), *map(str, arguments)],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return done.returncode, done.stdout.decode()


def files_of(**bodies):
    """The files with regions of a student who wrote these bodies, path -> text."""
    files = {}
    for name, body in bodies.items():
        text = TREE[f"gpt2/{name}.cpp"]
        region = find_regions(name, text)[0]
        lines = text.split("\n")
        files[f"gpt2/{name}.cpp"] = "\n".join(lines[:region.body] + [body] + lines[region.end:])
    return files


def hand_in(folder, **bodies):
    """Writes a student's folder."""
    for path, text in files_of(**bodies).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
