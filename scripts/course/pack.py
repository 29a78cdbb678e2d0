"""Starter repositories for students: the course without the solutions of some lessons, and with pages of their own; one commit, no
history.

Which regions are stubs: those of the packed lessons, and those of later lessons, unless a packed lesson includes what that
lesson teaches. A later lesson's region in common/ or gpt2/ keeps its solution, because the programs of all lessons run it.
Lines that repeat a solution elsewhere stand between `// BEGIN TWIN 03.3` and `// END TWIN`, and are left out with it.
"""

import json
import os
import pathlib
import posixpath
import re
import subprocess
import sys

import catalogue
from exercise_bench import Bench, first_error
from exercise_tree import FOLDERS, MANIFEST, Refused, all_regions, read_tree, stubbed_files, write_tree
from includes import lesson_files, reached, teachers
from leaks import find_leaks
from prebuilt import ARCHIVE, pack_objects

# What only instructors have, and the project's own CI. Of scripts/course a pack has what `scripts/course.py grade` imports.
INSTRUCTORS = re.compile(r"^(\.github/|\.ci/|(CONTRIBUTING|CHANGELOG|docs/museum)\.md$|docs/instructor/|lessons/[^/]+/exercises\.toml$"
                         r"|tests/(mutants|judge|hidden|museum|scripts/course|scripts/museum)/|scripts/(course|museum)/)")
KEPT_SCRIPTS = re.compile(r"^scripts/course/(diff\.sh$|exports\.py$|exports/github/)")
ENTRY = "scripts/course/visible.py"
IMPORT = re.compile(r"^(?:from|import) (\w+)", re.MULTILINE)
WARNINGS_OPTION = re.compile(r"(option\(RANKWISE_WARNINGS_AS_ERRORS .*) ON\)")
TWIN = re.compile(r"^( *)// BEGIN TWIN (\d\d\.\d+)\n.*?^ *// END TWIN$", re.DOTALL | re.MULTILINE)

# Code is left as it is: in a label it is part of the link, elsewhere brackets in it are none.
LINK_OR_CODE = re.compile(r"\[(?P<label>(?:`[^`\n]*`|[^\[\]`])*)\]\((?P<target>[^()\s]+)\)|```.*?```|`[^`\n]*`", re.DOTALL)
MADE_BY = re.compile(r"<!-- text of: (?P<script>\S+).*?-->\n(?P<text>.*?)<!-- end of text -->\n", re.DOTALL)
RULE = re.compile(r"^[\w%-]+:.*\n(?:\t.*\n)+\n?", re.MULTILINE)
SCRIPT = re.compile(r"\bscripts/[\w./-]+")
# What stands in a pack in place of sections that tell of the course's own scripts.
SECTIONS = {("README.md", "Teach with it"): "", ("docs/design.md", "Exercises"): "", ("README.md", "Do the exercises"): """\
## Do the exercises

[EXERCISES.md](EXERCISES.md) says what there is to write, in an order that works, with points and hints.

    make grade               tests what you wrote, prints your points
    make grade EX=NN.N       one exercise alone, which takes less time

Questions are in `answers-NN.toml`: an *account* of bytes, memory or messages before anything runs, a *measure* of a run, or a formula that you
*derive*. Your instructors compare the answers with what the lesson's program reports.

"""}


def lessons_of(tree):
    """The lessons that have exercises."""
    return sorted({region.lesson for region in all_regions(tree)})


def check_lessons(tree, lessons):
    """Refuses lessons without exercises."""
    known = lessons_of(tree)
    if not lessons or not set(lessons) <= set(known):
        raise Refused(f"--lessons={','.join(lessons)}: these lessons have exercises: {', '.join(known)}. Name some of them, as "
                      f"--lessons={','.join(known[:2])}")


def built_on(tree, lessons):
    """The lessons whose files the given ones include, directly or not, and they themselves."""
    def text_of(path):
        return tree[path].decode(errors="replace") if path in tree else None

    sources = [path for lesson in lessons for path in lesson_files(tree, lesson)]
    teacher = teachers(tree, text_of)
    return {*lessons, *(teacher[path] for path in reached(sources, text_of) if path in teacher)}


def stubbed_regions(tree, lessons):
    """The regions that are stubs in a pack of these lessons."""
    needed = built_on(tree, lessons)

    def is_stub(region):
        return region.lesson in lessons or (region.lesson > min(lessons) and region.lesson not in needed and region.path.startswith("lessons/"))

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


def without_solutions(tree, regions):
    """A tree with stubs for these regions and their twins. A warning does not end its build: stubs leave variables unused."""
    copy = {**tree, **stubbed_files(tree, regions)}
    copy.update(without_twins(copy, {region.exercise for region in regions}))
    if "CMakeLists.txt" in copy:
        text, count = WARNINGS_OPTION.subn(r"\1 OFF)", copy["CMakeLists.txt"].decode())
        if count != 1:
            raise Refused("CMakeLists.txt: expected one line option(RANKWISE_WARNINGS_AS_ERRORS \"...\" ON)")
        copy["CMakeLists.txt"] = text.encode()
    return copy


def solutions_left_out(tree, lessons):
    """The files of a pack, before the check for leaks and without its pages."""
    kept = script_closure(tree, ENTRY)
    return without_solutions({path: content for path, content in tree.items()
                              if path in kept or KEPT_SCRIPTS.match(path) or not INSTRUCTORS.match(path)}, stubbed_regions(tree, lessons))


def leaks_of(tree, lessons):
    """The leaks of a pack of these lessons."""
    return find_leaks(tree, stubbed_regions(tree, lessons), solutions_left_out(tree, lessons))


# ---- Pages: EXERCISES.md, and the course's own without what only the course has -------------------------------------------

def without_dead_links(page, text, places):
    """A page in which a link to what a pack does not hold is its label alone."""
    def kept(link):
        target = link["target"]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page), (target or "").split("#")[0]))
        alive = target is None or target.startswith("#") or re.match(r"\w+:", target) or path in places
        return link[0] if alive else link["label"]

    return LINK_OR_CODE.sub(kept, text)


def own_pages(copy):
    """The course's pages and its Makefile without what the pack does not hold, path -> bytes."""
    places = {".", *copy, *(path[:at] for path in copy for at in range(len(path)) if path[at] == "/"), "EXERCISES.md"}
    changed = {}
    for (page, heading), other in SECTIONS.items():
        if page in copy:
            section = re.compile(rf"^## {heading}\n.*?(?=^## |\Z)", re.DOTALL | re.MULTILINE)
            changed[page], count = section.subn(other, changed.get(page) or copy[page].decode())
            if count != 1:
                raise Refused(f"{page}: expected one section '{heading}', which a pack leaves out (scripts/course/pack.py)")
    for page in (path for path in copy if path.endswith(".md")):
        text = MADE_BY.sub(lambda block: block[0] if block["script"] in places else block["text"], changed.get(page) or copy[page].decode())
        changed[page] = without_dead_links(page, text, places)
    if "Makefile" in copy:
        changed["Makefile"] = RULE.sub(lambda rule: rule[0] if places.issuperset(SCRIPT.findall(rule[0])) else "",
                                       copy["Makefile"].decode())
    return {path: text.encode() for path, text in changed.items()}


def unfolding(hints):
    """Hints, each inside the one before it, so that the next is seen only by who unfolds the last."""
    page = []
    for number, hint in enumerate(hints, 1):
        page += ["<details>", f"<summary>Hint {number} of {len(hints)}</summary>", "", hint.strip(), ""]
    return page + ["</details>"] * len(hints) + ([""] if hints else [])


def places(copy):
    """Places of the regions of a tree, exercise -> "path:line"."""
    return {region.exercise: f"{region.path}:{region.begin + 1}" for region in all_regions(copy)}


def exercises_page(tree, copy, lessons):
    """EXERCISES.md: all exercises of the lessons with points, minutes and hints."""
    entries, where = catalogue.entries_of(tree, lessons), places(copy)
    total = sum(entry["points"] for entry in entries)
    minutes = sum(entry.get("minutes", 0) for entry in entries)
    first = next(entry["number"] for entry in entries if entry["kind"] == "implement")
    page = ["# Exercises", "", f"{len(entries)} exercises of the lessons {', '.join(lessons)}, {total} points"
            + (f", about {minutes} minutes." if minutes else "."), "",
            "Write the bodies between `BEGIN EXERCISE` and `END EXERCISE`; leave these two lines as they are, and do the exercises "
            "in this order: later ones call what earlier ones write, and are tested with it. A few are tested together; `make grade` "
            "then says which one is needed first. Now", "", "    make grade", "",
            "builds what the tests that you have need, runs them and prints the points that these give; `make grade EX="
            f"{first}` does so with one exercise. The first time that takes half a minute on two cores: `objects.tar.gz` has the object "
            "files of what you do not write. Where the compiler or MPI are others than those that made them, the first line says so, and "
            "everything is compiled, for some minutes. The final grade comes from "
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

def git(folder, *words, **settings):
    """Runs git and returns its output. Refused with git's own words if it fails, or if there is none."""
    try:
        return subprocess.run(["git", "-C", str(folder), *words], capture_output=True, check=True, **settings).stdout.decode()
    except FileNotFoundError:
        why = "git is not on the path. Install it: scripts/setup.sh"
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip()
        why = f"git ends in {folder} with status {error.returncode}: {said}"
    raise Refused(why)


def described(root):
    """The git revision of the course, with -dirty where files differ from it. Refused if git knows none."""
    return git(root, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*").strip()


def revision_of(root):
    """The revision for grades, which do not depend on it: "unknown" where git knows none, and a note that says why."""
    try:
        return described(root)
    except Refused as why:
        print(f"note: the revision of the course will be unknown in grades: {why}", file=sys.stderr)
        return "unknown"


def tracked_tree(root):
    """The files of the course that git knows, path -> bytes, so that no secret and no grade is packed that was left in its
    folder. A link is refused, for it can lead to such a file."""
    tracked = set(git(root, "ls-files", "-z").split("\0"))
    tree = {path: content for path, content in read_tree(root).items() if path in tracked}
    if not tree:
        raise Refused(f"git knows no file in {root}, and nothing else is packed. Use a clone of the course")
    for path in tree:
        if (root / path).resolve() != root.resolve() / path:
            raise Refused(f"{path} is a link, or in a folder that is one. Put the file itself there: what a link leads to git "
                          "need not know")
    return tree


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
    tasks = {region.exercise: dict(points=region.points, text="\n".join(region.task)) for region in all_regions(tree)}
    manifest = dict(lessons=lessons, revision=described(root), student=student, exercises=tasks)
    copy[MANIFEST] = (json.dumps(manifest, indent=2) + "\n").encode()
    copy.update(own_pages(copy))
    copy["EXERCISES.md"] = exercises_page(tree, copy, lessons).encode()
    answers = catalogue.answers_module()
    for lesson in lessons if answers else []:
        if catalogue.is_answered(tree, lesson):
            sheet = answers.questions_file(root, lesson, catalogue.figures_of(student, secret), secret)
            copy[catalogue.sheet_of(lesson)] = sheet.encode()
    return copy


def objects_of(root, copy, lessons):
    """The object files of a pack. They are made from its own files, so no solution is in them that these do not have."""
    bench = Bench(root, root / "build" / f"pack-{'-'.join(lessons)}", keeps=True)
    built, output = bench.build(copy, [region.exercise for region in all_regions(copy) if region.lesson in lessons])
    if not built:
        raise Refused(f"the pack does not compile: {first_error(output, bench.source)}")
    return pack_objects(bench.objects)


def pack(root, lessons, folder, student="", secret=""):
    """Writes a pack into a new folder, as a repository of one commit."""
    if student and not secret:
        raise Refused(f"--student={student}: figures of one student's own need a secret, or anybody can compute them. Add "
                      "--secret-file, or leave --student out")
    if folder.exists():
        raise Refused(f"--to={folder}: it exists. Name a new folder, or remove this one")
    copy = packed_tree(root, lessons, student, secret)
    print(f"Building the object files of these lessons in {root}/build: some minutes the first time.", flush=True)
    write_tree(folder, {**copy, ARCHIVE: objects_of(root, copy, lessons)}, root)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}  # of another repository
    environment |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    who = ["-c", "user.name=Rankwise", "-c", "user.email=course@rankwise.invalid"]
    for words in (["-c", "init.defaultBranch=main", "init", "--quiet"], ["add", "--all", "--force"],
                  [*who, "commit", "--quiet", "--message", f"Exercises of the lessons {', '.join(lessons)}"]):
        git(folder, *words, env=environment)
