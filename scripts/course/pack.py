"""Starter repositories for students: the course without the solutions of some lessons, one commit, no history.

Which regions are stubs: those of the packed lessons, and those in the folders of later lessons, unless a packed lesson builds
on that lesson. A later lesson's region in common/ or gpt2/ keeps its solution, because the programs of all lessons run it.
Lines that repeat a solution elsewhere stand between `// BEGIN TWIN 03.3` and `// END TWIN`, and are left out with it.
"""

import functools
import json
import os
import pathlib
import re
import subprocess

import catalogue
from exercise_tree import FOLDERS, Refused, all_regions, find_regions, read_tree, stubbed_files, write_tree
from leaks import find_leaks

# What only instructors have, and the project's own CI. Of scripts/course a pack has what `scripts/course.py grade` imports.
INSTRUCTORS = re.compile(r"^(\.github/|\.ci/|tests/mutants/|tests/judge/|tests/hidden/|tests/scripts/course/|docs/instructor/|scripts/course/"
                         r"|tests/museum/|tests/scripts/test_(museum|located)\.py$|scripts/(museum|locate_mutants)\.py$|docs/museum\.md$|lessons/[^/]+/exercises\.toml$)")
KEPT_SCRIPTS = re.compile(r"^scripts/course/(diff\.sh$|exports/(\w+\.py|github/.*)$)")
ENTRY = "scripts/course/visible.py"
IMPORT = re.compile(r"^(?:from|import) (\w+)", re.MULTILINE)
LESSON_INCLUDE = re.compile(rb'#include "lessons/(\d\d)_')
WARNINGS_OPTION = re.compile(r"(option\(RANKWISE_WARNINGS_AS_ERRORS .*) ON\)")
TWIN = re.compile(r"^( *)// BEGIN TWIN (\d\d\.\d+)\n.*?^ *// END TWIN$", re.DOTALL | re.MULTILINE)
MANIFEST = "course.json"  # at the root of a pack: which lessons and which revision it is of


def lessons_of(tree):
    """The lessons that have exercises."""
    return sorted({region.exercise.split(".")[0] for region in all_regions(tree)})


def check_lessons(tree, lessons):
    """Refuses lessons without exercises."""
    known = lessons_of(tree)
    if not lessons or not set(lessons) <= set(known):
        raise Refused(f"--lessons={','.join(lessons)}: these lessons have exercises: {', '.join(known)}. Name some of them, as "
                      f"--lessons={','.join(known[:2])}")


def built_on(tree, lessons):
    """The lessons whose files the given ones include, directly or not, and they themselves."""
    found, todo = set(), list(lessons)
    while todo:
        lesson = todo.pop()
        if lesson not in found:
            found.add(lesson)
            for path, content in tree.items():
                if path.startswith(f"lessons/{lesson}_"):
                    todo += [match.decode() for match in LESSON_INCLUDE.findall(content)]
    return found


def stubbed_regions(tree, lessons):
    """The regions that are stubs in a pack of these lessons."""
    needed = built_on(tree, lessons)

    def is_stub(region):
        lesson = region.exercise.split(".")[0]
        return lesson in lessons or (lesson > min(lessons) and lesson not in needed and region.path.startswith("lessons/"))

    return [region for region in all_regions(tree) if is_stub(region)]


def without_twins(tree, exercises):
    """The files in which twins of these exercises are left out, path -> bytes."""
    def stub(match):
        if match[2] not in exercises:
            return match[0]
        return (f"{match[1]}// Write this.\n{match[1]}not_implemented(\"{match[2]}\", \"The lines of exercise {match[2]}, "
                "once more.\");")

    changed = {}
    for path, content in tree.items():
        if path.startswith(tuple(folder + "/" for folder in FOLDERS)) and b"// BEGIN TWIN" in content:
            changed[path] = TWIN.sub(stub, content.decode()).encode()
    return changed


def script_closure(tree, entry):
    """A script and those beside it that it imports, directly or not; what functions import is left out."""
    found, todo = set(), [entry]
    while todo:
        path = todo.pop()
        if path in tree and path not in found:
            found.add(path)
            todo += [str(pathlib.PurePosixPath(path).with_name(f"{name}.py")) for name in IMPORT.findall(tree[path].decode())]
    return found


def solutions_left_out(tree, lessons):
    """The files of a pack, before the check for leaks and without its pages."""
    regions = stubbed_regions(tree, lessons)
    kept = script_closure(tree, ENTRY)
    copy = {path: content for path, content in tree.items()
            if path in kept or KEPT_SCRIPTS.match(path) or not INSTRUCTORS.match(path)}
    copy.update(stubbed_files(tree, regions))
    copy.update(without_twins(copy, {region.exercise for region in regions}))
    if "CMakeLists.txt" in copy:  # a stub leaves variables unused
        text, count = WARNINGS_OPTION.subn(r"\1 OFF)", copy["CMakeLists.txt"].decode())
        if count != 1:
            raise Refused("CMakeLists.txt: expected one line option(RANKWISE_WARNINGS_AS_ERRORS \"...\" ON)")
        copy["CMakeLists.txt"] = text.encode()
    return copy


def leaks_of(tree, lessons):
    """The leaks of a pack of these lessons."""
    return find_leaks(tree, stubbed_regions(tree, lessons), solutions_left_out(tree, lessons))


# ---- EXERCISES.md -----------------------------------------------------------------------------------------------------

def unfolding(hints):
    """Hints, each inside the one before it, so that the next is seen only by who unfolds the last."""
    page = []
    for number, hint in enumerate(hints, 1):
        page += ["<details>", f"<summary>Hint {number} of {len(hints)}</summary>", "", hint.strip(), ""]
    return page + ["</details>"] * len(hints) + ([""] if hints else [])


def places(copy):
    """Where the regions of a tree are, exercise -> "path:line"."""
    return {region.exercise: f"{region.path}:{region.begin + 1}"
            for path, content in copy.items() if b"BEGIN EXERCISE" in content and path.endswith((".hpp", ".cpp"))
            and path.startswith(tuple(folder + "/" for folder in FOLDERS))
            for region in find_regions(path, content.decode())}


def exercises_page(tree, copy, lessons):
    """EXERCISES.md: all exercises of the lessons with points, minutes and hints."""
    entries, where = catalogue.entries_of(tree, lessons), places(copy)
    total = sum(entry["points"] for entry in entries)
    minutes = sum(entry.get("minutes", 0) for entry in entries)
    page = ["# Exercises", "", f"{len(entries)} exercises of the lessons {', '.join(lessons)}, {total} points"
            + (f", about {minutes} minutes." if minutes else "."), "",
            "Write the bodies between `BEGIN EXERCISE` and `END EXERCISE`; leave these two lines as they are, and do the exercises "
            "in this order: later ones call what earlier ones write. Then", "", "    make grade", "",
            "builds, runs the tests that you have and prints the points that these give. The final grade comes from "
            "your instructors: they have further tests, grade what is answered in `answers-NN.toml`, and read nothing else of your "
            "files.", ""]
    twins = sorted({match[1] for content in copy.values() if b"once more." in content
                    for match in re.finditer(r'not_implemented\("(\S+)", "The lines of exercise', content.decode())
                    if match[1][:2] in lessons})
    if twins:
        page += [f"The lines of {', '.join(twins)} are needed at other places too, in lessons that build on it: copy yours to where "
                 "it says `once more`. These places give no points.", ""]
    for entry in entries:
        facts = [entry["kind"], f"{entry['points']} points"]
        facts += [f"{entry['minutes']} minutes"] if entry.get("minutes") else []
        page += [f"## {entry['number']} {entry['title']}", "", f"*{', '.join(facts)}*"
                 + (f" — `{where[entry['number']]}`" if entry["number"] in where else ""), "", entry["text"], ""]
        page += unfolding(entry.get("hints", []))
    return "\n".join(page).rstrip() + "\n"


# ---- pack -------------------------------------------------------------------------------------------------------------

def revision_of(root):
    """The git revision of the course, with -dirty where files differ from it; "unknown" outside of git."""
    done = subprocess.run(["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    return done.stdout.decode().strip() or "unknown"


def tracked_tree(root):
    """The files of the course that git knows, path -> bytes, so that no secret and no grade is packed that was left in its
    folder; where the course is no repository, all files."""
    done = subprocess.run(["git", "-C", str(root), "ls-files", "-z"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    tracked = set(done.stdout.decode().split("\0")) - {""}
    return {path: content for path, content in read_tree(root).items() if path in tracked or not tracked}


def packed_tree(root, lessons, student="", secret=""):
    """All files of a pack, path -> bytes. Refused if a solution, or the secret, stands in it."""
    tree = tracked_tree(root)
    check_lessons(tree, lessons)
    leaks = leaks_of(tree, lessons)
    if leaks:
        raise Refused("solutions stand in the pack. Share the code, or mark the lines as a twin (CONTRIBUTING.md):\n  "
                      + "\n  ".join(map(str, leaks)))
    copy = solutions_left_out(tree, lessons)
    if secret:
        for path in [path for path, content in copy.items() if secret.encode() in content]:
            raise Refused(f"the secret stands in {path}. Move it out of the repository")
    copy["EXERCISES.md"] = exercises_page(tree, copy, lessons).encode()
    copy[MANIFEST] = (json.dumps(dict(lessons=lessons, revision=revision_of(root), student=student), indent=2) + "\n").encode()
    answers = catalogue.answers_module()
    for lesson in lessons if answers else []:
        if catalogue.is_answered(tree, lesson):
            sheet = answers.questions_file(root, lesson, catalogue.figures_of(student, secret), secret)
            copy[catalogue.sheet_of(lesson)] = sheet.encode()
    return copy


def pack(root, lessons, folder, student="", secret=""):
    """Writes a pack into a new folder, as a repository of one commit."""
    if student and not secret:
        raise Refused(f"--student={student}: figures of one student's own need a secret, or anybody can compute them. Add "
                      "--secret-file, or leave --student out")
    if folder.exists():
        raise Refused(f"--to={folder}: it exists. Name a new folder, or remove this one")
    write_tree(folder, packed_tree(root, lessons, student, secret), root)
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    who = ["-c", "user.name=Rankwise", "-c", "user.email=course@rankwise.invalid"]
    git = functools.partial(subprocess.run, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    git(["git", "-c", "init.defaultBranch=main", "init", "--quiet"])
    git(["git", "add", "--all", "--force"])
    git(["git", *who, "commit", "--quiet", "--message", f"Exercises of the lessons {', '.join(lessons)}"])
