"""Files as scripts/course/exercise.py sees them: regions of exercises with their tasks, a tree in memory, patches.

A region stands between `// BEGIN EXERCISE 06.4` and `// END EXERCISE`. Its points and its text stand in the [[exercise]] table of
that number in lessons/NN_name/exercises.toml; each line of the text is a line of the stub.
"""

import dataclasses
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
from documents import Refused  # noqa: E402, F401  for all of the course
from whole_file import without_links, write_whole  # noqa: E402, F401

FOLDERS = ("lessons", "gpt2", "common")  # regions stand only here
MANIFEST = "course.json"  # at the root of a pack: its lessons, revision and student, and the tasks, because exercises.toml has answers
TABLES = re.compile(r"lessons/(\d\d)_\w+/exercises\.toml$")
BEGIN = re.compile(r"^(\s*)// BEGIN EXERCISE (\d\d\.\d+)\s*$")
END = re.compile(r"^\s*// END EXERCISE\s*$")
HUNK = re.compile(r"^@@ -(\d+)(?:,\d+)? \+\d+(?:,\d+)? @@")


@dataclasses.dataclass
class Region:
    """One marked region of a source file; line numbers count from 0."""

    exercise: str     # "01.1"
    indent: str
    path: str
    begin: int        # the BEGIN line
    end: int = -1     # the END line
    points: int = 0   # as all_regions() knows it, and
    task: tuple = ()  # the lines of its text

    @property
    def lesson(self):
        return self.exercise[:2]

    @property
    def body(self):
        """The first line of the body."""
        return self.begin + 1

    @property
    def text(self):
        """The task, as one sentence or more."""
        return " ".join(self.task)

    @property
    def title(self):
        """The text up to its first colon or full stop."""
        return re.split(r"[:.](?:\s|$)", self.text, maxsplit=1)[0]


def in_order(exercise):
    """The key by which numbers of exercises are sorted: 03.2 before 03.10."""
    return [int(part) for part in exercise.split(".")]


def find_regions(path, text):
    """The regions of one file, in order, without their tasks; Refused names file and line of a malformed one."""
    regions, opened = [], None

    def refuse(number, why):
        raise Refused(f"{path}:{number + 1}: {why}")

    for number, line in enumerate(text.split("\n")):
        if "BEGIN EXERCISE" in line:
            if opened:
                refuse(number, f"exercise {opened.exercise} has not ended yet; regions cannot be nested")
            match = BEGIN.match(line)
            if not match:
                refuse(number, "expected: // BEGIN EXERCISE 01.1")
            opened = Region(match[2], match[1], path, number)
        elif "END EXERCISE" in line:
            if not opened or not END.match(line):
                refuse(number, "an END EXERCISE without its BEGIN, or not alone on its line")
            opened.end = number
            regions.append(opened)
            opened = None
    if opened:
        refuse(opened.begin, f"exercise {opened.exercise} has no END EXERCISE")
    return regions


def read_toml(text, path):
    """The document; Refused names the file, and the line where there is one."""
    reader = next(filter(importlib.util.find_spec, ("tomllib", "tomli")), None)
    if reader is None:
        raise Refused(f"{path} is TOML, which Python reads from 3.11 on; use that, or install the package tomli (python3-tomli)")
    try:
        return importlib.import_module(reader).loads(text)
    except ValueError as error:
        raise Refused(f"{path}: {error}") from None


def tables_of(tree, lesson=""):
    """The [[exercise]] tables of a lesson, or of all, number -> table; none where there is no file."""
    found = {}
    for path in sorted(tree):
        if (match := TABLES.match(path)) and match[1].startswith(lesson):
            for table in read_toml(tree[path].decode(), path).get("exercise", []):
                if "number" not in table:
                    raise Refused(f"{path}: an exercise has no number")
                if found.setdefault(table["number"], table) is not table:
                    raise Refused(f"{place_of(tree, table['number'])}: exercise {table['number']} stands twice")
    return found


def place_of(tree, number):
    """File and line of the table of an exercise; of the file of a pack the name."""
    for path in filter(TABLES.match, tree):
        text = tree[path].decode()
        if match := re.search(rf"number\s*=\s*.{re.escape(number)}\b", text):
            line = text.count("\n", 0, match.start()) + 1
            return f"{path}:{line}"
    return MANIFEST


def tasks_of(tree):
    """The tasks of exercises to implement: number -> (points, lines of the text)."""
    tables = (json.loads(tree[MANIFEST]).get("exercises", {}) if MANIFEST in tree else
              {number: table for number, table in tables_of(tree).items() if table.get("kind") == "implement"})
    for number, table in tables.items():
        points, text = table.get("points"), table.get("text")
        if not (isinstance(points, int) and points > 0 and isinstance(text, str) and text.strip()):
            raise Refused(f'{place_of(tree, number)}: exercise {number}: expected points = 10 and text = "What to write."')
    return {number: (table["points"], tuple(table["text"].strip().split("\n"))) for number, table in tables.items()}


def all_regions(tree, lesson=""):
    """All regions of a tree, or those of a lesson, with their tasks, sorted by number. A number that stands twice is refused, and so
    is a region without a task, or a task without a region."""
    found, tasks = {}, tasks_of(tree)
    for path in sorted(tree):
        if path.startswith(tuple(folder + "/" for folder in FOLDERS)) and path.endswith((".hpp", ".cpp")):
            try:
                text = tree[path].decode()
            except UnicodeDecodeError:
                raise Refused(f"{path} is not UTF-8. Save it as UTF-8") from None
            for region in find_regions(path, text):
                place, first = f"{path}:{region.begin + 1}", found.setdefault(region.exercise, region)
                if first is not region:
                    raise Refused(f"{place}: exercise {region.exercise} stands already in {first.path}:{first.begin + 1}")
                if region.exercise not in tasks:
                    raise Refused(f"{place}: exercise {region.exercise} has no points and text, an [[exercise]] in the exercises.toml "
                                  f"of lesson {region.lesson}")
                region.points, region.task = tasks[region.exercise]
    for number in sorted(set(tasks) - set(found)):
        raise Refused(f"{place_of(tree, number)}: exercise {number} has no region in a source: // BEGIN EXERCISE {number}")
    return sorted((region for region in found.values() if region.lesson.startswith(lesson)), key=lambda region: in_order(region.exercise))


def replace_bodies(text, regions, body_of):
    """The text of a file in which body_of(region), a list of lines, stands in place of each region's body."""
    lines = text.split("\n")
    for region in sorted(regions, key=lambda region: -region.begin):
        lines[region.body:region.end] = body_of(region)
    return "\n".join(lines)


def stub(region):
    """The body of an exercise that has not been written: it compiles, and says what to write when it runs."""
    under = region.indent + " " * len("not_implemented(")
    lines = [f"{region.indent}// Write this.", f'{region.indent}not_implemented("{region.exercise}",']
    quoted = [line.replace("\\", r"\\").replace('"', r'\"') for line in region.task]
    lines += [f'{under}"{line} "' for line in quoted[:-1]]
    return [*lines, f'{under}"{quoted[-1]}");']


def stubbed_files(tree, regions):
    """The files of the given regions with stubs in place of the solutions, by path."""
    files = {}
    for path in {region.path for region in regions}:
        mine = [region for region in regions if region.path == path]
        files[path] = replace_bodies(tree[path].decode(), mine, stub).encode()
    return files


def without_bodies(path, content):
    """The text of a file without the bodies of its exercises."""
    text = content.decode()
    return replace_bodies(text, find_regions(path, text), lambda region: [])


def read_tree(root):
    """All files that belong to the repository (tracked, or new and not ignored), path -> bytes."""
    root = pathlib.Path(root).resolve()

    def git(*arguments):
        try:
            return subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, check=True).stdout.decode()
        except (OSError, subprocess.CalledProcessError):
            return ""

    if git("rev-parse", "--show-toplevel").strip() == str(root):
        paths = git("ls-files", "-z", "--cached", "--others", "--exclude-standard").rstrip("\0").split("\0")
    else:  # not a checkout: everything but what is built or written by students
        paths = [path.relative_to(root).as_posix() for path in root.rglob("*")]
        left_out = re.compile(r"^(\.git|student|build[^/]*)/|(^|/)__pycache__/|\.h5$")
        paths = [path for path in paths if not left_out.search(path)]
    return {path: (root / path).read_bytes() for path in sorted(paths) if (root / path).is_file()}


def write_tree(folder, tree, root):
    """Makes a folder hold exactly this tree. Files of the same content are not touched, so that builds stay
    incremental; permissions are those of the files in root, where they exist."""
    folder = pathlib.Path(folder)
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        if path.relative_to(folder).as_posix() not in tree:
            path.unlink()
    for path, content in tree.items():
        target = folder / path
        if target.is_file() and target.read_bytes() == content:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        if (pathlib.Path(root) / path).is_file():
            os.chmod(target, (pathlib.Path(root) / path).stat().st_mode & 0o777)


def apply_patch(tree, patch, name):
    """The files that a unified diff (-p1) changes, path -> bytes. A hunk is placed where its old lines stand; when
    they have moved they must stand at one place only. Refused says which hunk does not apply."""
    changed, path, lines = {}, None, patch.split("\n")
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        if line.startswith("+++ "):
            path = line[4:].split("\t")[0].split("/", 1)[-1]
            if path not in tree:
                raise Refused(f"{name}:{number}: there is no file {path}")
            changed.setdefault(path, tree[path].decode().split("\n"))
        match = HUNK.match(line)
        if not match:
            continue
        if path is None:
            raise Refused(f"{name}:{number}: a hunk before its +++ line")
        old, new, here = [], [], number
        while number < len(lines) and lines[number][:1] in (" ", "+", "-") and not lines[number].startswith("--- "):
            if lines[number][0] != "+":
                old.append(lines[number][1:])
            if lines[number][0] != "-":
                new.append(lines[number][1:])
            number += 1
        text, first = changed[path], int(match.group(1)) - 1
        places = [at for at in range(len(text) - len(old) + 1) if text[at:at + len(old)] == old]
        places = [first] if first in places else places
        if len(places) != 1 or not old:
            raise Refused(f"{name}:{here}: the patch does not apply to {path} (its old lines stand at "
                          f"{len(places)} places)")
        text[places[0]:places[0] + len(old)] = new
    if not changed:
        raise Refused(f"{name}: holds no change")
    return {path: "\n".join(text).encode() for path, text in changed.items()}
