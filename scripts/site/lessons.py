"""Lessons: what the headers of their programs say, in which order they are read, and the ladder as a picture."""

import dataclasses
import re
from html import escape

FIELD = re.compile(r"^// ([A-Z][\w ]*): +(.*)$")
TITLE = re.compile(r"^// Lesson (\d\d): *(.*)$")
# Beside the program: files with these names come after those that are the idea.
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


def read_lesson(tree, folder):
    name = folder.split("/")[-1]
    program = f"{folder}/{name}.cpp"
    number, title, fields = header_fields(tree.text(program).splitlines())
    beside = [f for f in tree.names_in(folder)[1] if f.endswith((".hpp", ".cpp")) and f != f"{name}.cpp"]

    def place(source):
        stem, ending = source.rsplit(".", 1)
        return stem in LAST, LAST.index(stem) if stem in LAST else 0, stem, ending == "cpp"

    builds_on = re.findall(r"lesson (\d\d)", " ".join(fields.get("Builds on", [])))
    return Lesson(number, title, folder, program, [f"{folder}/{f}" for f in sorted(beside, key=place)], fields, builds_on)


def read_lessons(tree):
    """All lessons in the order of reading: each after those that it builds on, and by number as far as that allows."""
    folders = [f for f in tree.folders if re.fullmatch(r"lessons/\d\d_\w+", f)]
    waiting = sorted((read_lesson(tree, folder) for folder in folders), key=lambda lesson: lesson.number)
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

BOX, GAP = (150, 70), (22, 24)  # width and height


def places(lessons):
    """Column and row of each lesson: the first that builds on another stands below it, the others in columns to the right."""
    children = {lesson.number: [c for c in lessons if c.builds_on[:1] == [lesson.number]] for lesson in lessons}
    found, columns = {}, 0

    def put(lesson, row):
        nonlocal columns
        found[lesson.number] = (columns, row)
        for i, child in enumerate(children[lesson.number]):
            columns += i > 0
            put(child, row + 1)

    roots = [lesson for lesson in lessons if not lesson.builds_on]
    for root in sorted(roots, key=lambda lesson: not children[lesson.number]):  # those that stand alone come last
        put(root, 0)
        columns += 1
    return found


def words_in_lines(words, width):
    lines = [""]
    for word in words.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def box(lesson, x, y, url):
    lines = words_in_lines(lesson.short_title, 21)
    first = y + 35 + 7 * (3 - len(lines))
    parts = [f'<a href="{escape(url)}"><title>{escape(lesson.title)}</title>',
             f'<rect class="step" x="{x}" y="{y}" width="{BOX[0]}" height="{BOX[1]}" rx="6"/>',
             f'<text class="number" x="{x + 8}" y="{y + 15}">{lesson.number}</text>']
    parts += [f'<text x="{x + BOX[0] / 2:.0f}" y="{first + 14 * i}" text-anchor="middle">{escape(line)}</text>'
              for i, line in enumerate(lines)]
    return "".join(parts) + "</a>"


def arrow(parent, child):
    """From the lower edge of the parent to the upper one of what stands below it; from its right edge to other columns."""
    (x1, y1), (x2, y2) = parent, child
    middle = x2 + BOX[0] // 2
    if x1 == x2:
        return f'<path class="arrow" d="M{middle} {y1 + BOX[1]}V{y2 - 2}" marker-end="url(#tip)"/>'
    return f'<path class="arrow" d="M{x1 + BOX[0]} {y1 + BOX[1] // 2}H{middle}V{y2 - 2}" marker-end="url(#tip)"/>'


def ladder(lessons, url_of):
    """The picture of which lesson builds on which, as SVG for a page: it takes its colours from the page's style."""
    at = {number: (1 + column * (BOX[0] + GAP[0]), 1 + row * (BOX[1] + GAP[1]))
          for number, (column, row) in places(lessons).items()}
    width = max(x for x, _ in at.values()) + BOX[0] + 1
    height = max(y for _, y in at.values()) + BOX[1] + 1
    arrows = [arrow(at[parent], at[lesson.number]) for lesson in lessons for parent in lesson.builds_on]
    boxes = [box(lesson, *at[lesson.number], url_of(lesson)) for lesson in lessons]
    tip = ('<defs><marker id="tip" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
           '<path class="tip" d="M0 0L8 4L0 8Z"/></marker></defs>')
    return (f'<svg class="ladder" role="img" aria-label="Which lesson builds on which" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}">{tip}{"".join(arrows)}{"".join(boxes)}</svg>')
