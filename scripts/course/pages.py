"""The pages of a starter repository: EXERCISES.md, and the course's own pages without what only the course has."""

import posixpath
import re

import catalogue
from exercise_tree import Refused, all_regions

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
                raise Refused(f"{page}: expected one section '{heading}', which a pack leaves out (scripts/course/pages.py)")
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
