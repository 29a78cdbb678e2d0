"""Lessons: what the headers of their programs say, in which order they are read, and the ladder as a picture."""

import dataclasses
import pathlib
import re
import shutil
import subprocess
import sys
import textwrap
from html import escape

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
from includes import lesson_files, teachers  # noqa: E402

FIELD = re.compile(r"^// ([A-Z][\w ]*): +(.*)$")
TITLE = re.compile(r"^// Lesson (\d\d): *(.*)$")
# Beside the program: files whose names end so come after those that are the idea.
LAST = ("options", "costs")


def header_fields(lines):
    """Title and fields of the comment that a program begins with: ("06", "Sharded parameters", {"Memory": [line, ...]})."""
    number, title = TITLE.match(lines[0]).groups()
    fields, current = {}, None
    for line in lines[1:]:
        if not line.startswith("//"):
            break
        if found := FIELD.match(line):
            current = fields.setdefault(found.group(1), [])
            current.append(found.group(2))
        elif current is not None and line.startswith("//  "):
            current.append(line[2:].strip())
        else:
            current = None
    return number, title[:1].upper() + title[1:], fields


@dataclasses.dataclass
class Lesson:
    """One lesson. `builds_on` holds the numbers of lessons, the one that it is compared with first."""

    number: str
    title: str
    folder: str
    program: str
    sources: list
    fields: dict
    builds_on: list

    @property
    def short_title(self):
        """The title up to its first comma or parenthesis."""
        return re.split(r"[,(]", self.title)[0].strip()

    @property
    def idea(self):
        """The new idea as one text."""
        text = " ".join(self.fields.get("New idea", []))
        return text[:1].upper() + text[1:]


def role(source):
    """What a file is for: options and costs, whichever lesson's they are, or its own name."""
    stem, ending = source.split("/")[-1].rsplit(".", 1)
    return f"{next((name for name in LAST if stem.endswith(name)), stem)}.{ending}"


def read_lesson(tree, folder, taught):
    """A lesson in a folder; taught: file of lessons/parallel -> number of the lesson that teaches it."""
    name = folder.split("/")[-1]
    program = f"{folder}/{name}.cpp"
    number, title, fields = header_fields(tree.text(program).splitlines())
    sources = [path for path in lesson_files(tree.files, number) if path != program]
    sources += [path for path, lesson in taught.items() if lesson == number]

    def place(source):
        stem, ending = role(source).rsplit(".", 1)
        return stem in LAST, LAST.index(stem) if stem in LAST else 0, source.split("/")[-1].rsplit(".", 1)[0], ending == "cpp"

    builds_on = re.findall(r"lesson (\d\d)", " ".join(fields.get("Builds on", [])))
    return Lesson(number, title, folder, program, sorted(sources, key=place), fields, builds_on)


def read_lessons(tree):
    """All lessons in the order of reading: each after those that it builds on, and by number as far as that allows."""
    folders = [f for f in tree.folders if re.fullmatch(r"lessons/\d\d_\w+", f)]
    taught = teachers(tree.files, lambda path: tree.text(path) if path in tree.files else None)
    waiting = sorted((read_lesson(tree, folder, taught) for folder in folders), key=lambda lesson: lesson.number)
    numbers = {lesson.number for lesson in waiting}
    for lesson in waiting:
        for parent in lesson.builds_on:
            if parent not in numbers:
                raise SystemExit(f"error: {lesson.program} builds on lesson {parent}, which does not exist.")
    order, read = [], set()
    while waiting:
        following = next((lesson for lesson in waiting if read.issuperset(lesson.builds_on)), None)
        if following is None:
            raise SystemExit("error: lessons build on each other in a circle: " + ", ".join(x.program for x in waiting))
        waiting.remove(following)
        order.append(following)
        read.add(following.number)
    return order


# ---- The ladder ----------------------------------------------------------------------------------------------------------

BOX, GAP = (150, 70), (22, 30)  # width and height, in points


def nearest(lesson, lessons):
    """Its parents, without those on which another of them builds."""
    def ancestors(number):
        parents = next(other.builds_on for other in lessons if other.number == number)
        return set(parents).union(*map(ancestors, parents))

    return [parent for parent in lesson.builds_on if not any(parent in ancestors(other) for other in lesson.builds_on)]


def drawing(lessons):
    """Positions from Graphviz, in points: width and height, the middle of each lesson, the control points of each arrow."""
    lines = [f"ranksep={GAP[1] / 72}; nodesep={GAP[0] / 72}; edge [arrowhead=none];",
             f"node [shape=box, fixedsize=true, width={BOX[0] / 72}, height={BOX[1] / 72}];"]
    lines += [f'"{lesson.number}";' for lesson in lessons]
    lines += [f'"{parent}" -> "{lesson.number}";' for lesson in lessons for parent in nearest(lesson, lessons)]
    if shutil.which("dot") is None:
        raise SystemExit("error: Graphviz is missing, which draws the ladder. Run scripts/setup.sh --documentation.")
    done = subprocess.run(["dot", "-Tplain"], input=f"digraph {{ {' '.join(lines)} }}", check=True, capture_output=True, text=True)
    size, middles, curves = (0, 0), {}, []
    for kind, *words in map(str.split, done.stdout.splitlines()):
        if kind == "graph":  # scale, width, height
            size = 72 * float(words[1]), 72 * float(words[2])
        elif kind == "node":  # name, x, y
            middles[words[0]] = 72 * float(words[1]), size[1] - 72 * float(words[2])
        elif kind == "edge":  # from, to, points, x, y, x, y, ...
            at = [72 * float(word) for word in words[3:3 + 2 * int(words[2])]]
            curves.append([(x, size[1] - y) for x, y in zip(at[::2], at[1::2])])
    return size, middles, curves


def box(lesson, middle, url):
    x, y = round(middle[0] - BOX[0] / 2), round(middle[1] - BOX[1] / 2)
    lines = textwrap.wrap(lesson.short_title, 20, break_long_words=False, break_on_hyphens=False)
    first = y + 35 + 7 * (3 - len(lines))
    parts = [f'<a href="{escape(url)}"><title>{escape(lesson.title)}</title>',
             f'<rect class="step" x="{x}" y="{y}" width="{BOX[0]}" height="{BOX[1]}" rx="6"/>',
             f'<text class="number" x="{x + 8}" y="{y + 15}">{lesson.number}</text>']
    parts += [f'<text x="{x + BOX[0] // 2}" y="{first + 14 * i}" text-anchor="middle">{escape(line)}</text>'
              for i, line in enumerate(lines)]
    return "".join(parts) + "</a>"


def arrow(points):
    """A Bezier curve: its first point, then three for each piece."""
    start, *others = [f"{x:.0f} {y:.0f}" for x, y in points]
    return f'<path class="arrow" d="M{start}C{" ".join(others)}" marker-end="url(#tip)"/>'


def ladder(lessons, url_of):
    """The picture of which lesson builds on which, as SVG for a page: it takes its colours from the page's style."""
    size, middles, curves = drawing(lessons)
    width, height = round(size[0]) + 2, round(size[1]) + 2
    boxes = [box(lesson, middles[lesson.number], url_of(lesson)) for lesson in lessons]
    tip = ('<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
           '<path class="tip" d="M0 0L8 4L0 8Z"/></marker></defs>')
    return (f'<svg class="ladder" role="img" aria-label="Which lesson builds on which" viewBox="-1 -1 {width} {height}" '
            f'width="{width}" height="{height}">{tip}{"".join(map(arrow, curves))}{"".join(boxes)}</svg>')
