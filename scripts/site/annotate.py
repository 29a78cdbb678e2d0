"""A source as an annotated page: its comments beside the code that they explain, with the lines that are new since the lesson that it
builds on, and those that are gone."""

import collections
import dataclasses
import pathlib
import re
import subprocess
import sys
import tempfile
from html import escape

from lessons import TITLE, header_fields
from prose import slug, words_of
from sources import lines_of, numbered

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "course"))
from exercise_tree import MANIFEST, all_regions  # noqa: E402

COMMENT = re.compile(r"^\s*//[/!]?(?!<) ?(.*)$")
RULER = re.compile(r"^\s*// ---- (.*?) -*$")
EXERCISE = re.compile(r"^BEGIN EXERCISE (\S+)\n?")
TWIN = re.compile(r"^\s*// (BEGIN|END) TWIN")  # for scripts/course.py pack, not for readers
NOT_FUNCTIONS = ("if", "for", "while", "switch", "return", "sizeof", "throw", "declare", "static_assert")
Changes = collections.namedtuple("Changes", "parent new gone")  # numbers of lines; number of a line -> lines before it
HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


@dataclasses.dataclass
class Chunk:
    """A comment and the code after it, each as a range of lines, counted from 1."""

    first: int
    code: int   # where the code begins
    end: int    # one past the last line
    kind: str   # header, ruler, doc (of a declaration), note, or plain (no comment)


def kind_of(line):
    return "ruler" if RULER.match(line) else "doc" if line.lstrip().startswith("///") else "note"


def chunks(lines):
    """Cuts a source into chunks. Empty lines belong to the code before them."""
    found, i = [], 0
    while i < len(lines):
        first = i
        if COMMENT.match(lines[i]):
            kind = kind_of(lines[i])
            i += 1
            while kind != "ruler" and i < len(lines) and COMMENT.match(lines[i]) and kind_of(lines[i]) == kind:
                i += 1
        else:
            kind = "plain"
        code = i
        while i < len(lines) and not COMMENT.match(lines[i]):
            i += 1
        found.append(Chunk(first + 1, code + 1, i + 1, kind))
    if found and TITLE.match(lines[0]):
        found[0].kind = "header"
    return found


def declared_name(line):
    """Name of the function, class or alias that a line of code declares; or None."""
    if found := re.match(r"\s*(?:enum )?(?:class|struct) (\w+)(?!.*;$)", line):
        return found.group(1)
    found = re.match(r"\s*(?:[\w:<>,*&\[\] ]+[\s*&])?([\w~]+)\(", line)
    return found.group(1) if found and found.group(1) not in NOT_FUNCTIONS else None


class Annotated:
    """Makes the annotated pages of one tree."""

    def __init__(self, tree, reference, prose):
        self.tree, self.reference, self.prose = tree, reference, prose
        files = {path: tree.text(path).encode() for path in tree.files if path.endswith((".hpp", ".cpp", "/exercises.toml")) or path == MANIFEST}
        self.exercises = {region.exercise: region for region in all_regions(files)}

    def page(self, path, page, changed=None):
        """HTML of a source, names and lines of what it declares, and its sections for the search."""
        text = self.tree.text(path)
        lines = text.splitlines()
        changed = changed or Changes(None, set(), {})
        html = lines_of(path, text, page, self.tree, self.reference)
        rows, contents, sections = [], [], []
        named = {"search", "results", "theme", "changes"}  # anchors of the page itself
        for chunk in chunks(lines):
            words = self._words(chunk, lines, path, page)
            name = declared_name(lines[chunk.code - 1]) if chunk.code < chunk.end and chunk.kind == "doc" else None
            heading = RULER.match(lines[chunk.first - 1]).group(1) if chunk.kind == "ruler" else name
            if heading and (chunk.kind == "ruler" or (name and path.endswith(".cpp"))):
                contents.append((heading, chunk.first, chunk.kind))
            if words:
                sections.append((f"L{chunk.first}", heading or "", words_of(words)))
            target = name if name and name not in named else None  # file.cpp#function
            named.add(target)
            rows.append(self._row(chunk, words, html, changed, target))
        gone = self._gone(changed.gone, len(lines) + 1)
        rows.append(f'<section class="chunk"><div class="words"></div>{self._block(gone, False)}</section>' if gone else "")
        return '<div class="annotated">' + "\n".join(rows) + "</div>", contents, sections

    @staticmethod
    def _gone(gone, number):
        return [f'<span class="line gone" hidden><span class="n" aria-label="removed"></span>{escape(line)}\n</span>'
                for line in gone.get(number, [])]

    def _row(self, chunk, words, html, changed, target):
        def empty(n):
            return not html[n - 1] and n not in changed.gone
        begin, end = chunk.code, chunk.end
        while end > begin and empty(end - 1):
            end -= 1  # empty lines beside a comment only take room
        while begin < end and empty(begin):
            begin += 1
        anchors = "".join(f'<span id="L{n}"></span>' for n in [*range(chunk.first, begin), *range(end, chunk.end)])
        if target:
            anchors += f'<span id="{escape(target)}"></span>'
        lines = [line for n in range(chunk.first, begin) for line in self._gone(changed.gone, n)]
        for n in range(begin, end):
            lines += self._gone(changed.gone, n)
            lines.append(numbered(n, html[n - 1], "new" if n in changed.new else ""))
        new = " new" if changed.new.intersection(range(chunk.first, chunk.code)) else ""
        link = f'<a class="here" href="#L{chunk.first}" aria-label="line {chunk.first}">#</a>' if words else ""
        return (f'<section class="chunk {chunk.kind}"><div class="words{new}">{anchors}{link}{words}</div>'
                f'{self._block(lines, begin < end)}</section>')

    @staticmethod
    def _block(lines, shown):
        if not lines:
            return ""
        return f'<pre{"" if shown else " class=gone hidden"}><code>{"".join(lines)}</code></pre>'

    def _words(self, chunk, lines, path, page):
        if chunk.kind == "plain":
            return ""
        if chunk.kind == "ruler":
            name = RULER.match(lines[chunk.first - 1]).group(1)
            return f'<h2 id="{slug(name)}">{escape(name)}</h2>'
        if chunk.kind == "header":
            return self._header(lines[chunk.first - 1:chunk.code - 1], path, page)
        text = "\n".join(COMMENT.match(line).group(1) for line in lines[chunk.first - 1:chunk.code - 1]
                         if not TWIN.match(line))
        if text == "END EXERCISE":
            return '<p class="exercise end">End of the exercise.</p>'
        task = ""
        if found := EXERCISE.match(text):
            text, of = text[found.end():], self.exercises[found[1]]
            task = (f'<p class="exercise"><strong>Exercise {of.exercise}</strong> ({of.points} points): {escape(of.text)} '
                    f'The code beside it is the solution; <code>make exercise-{of.exercise[:2]}</code> writes a copy without it.</p>')
        html = self.prose.comment(text, path, page) if text else ""
        return task + re.sub(r"\bNEW:", '<span class="badge">NEW</span>', html)

    def _header(self, lines, path, page):
        """The header of a lesson's program: each of its fields, and the runs as a block to copy."""
        _, title, fields = header_fields(lines)
        parts = [f"<p><strong>{escape(title)}</strong></p><dl>"]
        for name, words in fields.items():
            if name == "Sample runs":
                body = "<pre><code>" + escape("\n".join(words)) + "</code></pre>"
            else:
                body = self.prose.comment(" ".join(words), path, page)
            parts.append(f"<dt>{escape(name)}</dt><dd>{body}</dd>")
        return "".join(parts) + "</dl>"


# ---- Changes: the comparison that scripts/course/diff.sh prints, section by section, each compared by git --------------------

def sections(text):
    """Name of each section -> its lines with their numbers. A section begins with a ruler, or with the lesson's class."""
    found = {"Beginning": []}
    name, in_class = "Beginning", False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("class "):
            name, in_class = "The step", True
        elif line.startswith("};"):
            in_class = False
        shown = line.removeprefix("  ") if in_class else line
        if shown.startswith("// ---- "):
            name = re.sub(r" -*$", "", shown.removeprefix("// ---- "))
        found.setdefault(name, []).append((number, shown, line))
    return found


def hunks(old, new):
    """Changes between two lists of lines: first line and number of lines in the old one, and in the new one."""
    with tempfile.TemporaryDirectory() as folder:
        names = []
        for name, lines in (("old", old), ("new", new)):
            names.append(pathlib.Path(folder, name))
            names[-1].write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        result = subprocess.run(["git", "diff", "--no-index", "--no-ext-diff", "--no-color", "--histogram",
                                 "--ignore-space-change", "-U0", *names], capture_output=True, text=True, check=False)
    if result.returncode not in (0, 1):
        raise SystemExit(f"error: git diff failed: {result.stderr.strip()}")
    for line in result.stdout.splitlines():
        if found := HUNK.match(line):
            first, count, new_first, new_count = (int(x) if x is not None else 1 for x in found.groups())
            yield first, count, new_first, new_count


def changes_of(parent, before, after):
    """The changes of the text `after` against the text `before`, which is from the lesson `parent`."""
    old, new = sections(before), sections(after)
    added, gone = set(), collections.defaultdict(list)
    for name, lines in new.items():
        if name not in old:
            added.update(number for number, _, _ in lines)
            continue
        numbers = [number for number, _, _ in lines]
        for first, count, new_first, new_count in hunks([x[1] for x in old[name]], [x[1] for x in lines]):
            added.update(numbers[new_first - 1:new_first - 1 + new_count])
            place = new_first - 1 if new_count else new_first  # git names the line after which lines are gone
            before_line = numbers[place] if place < len(numbers) else numbers[-1] + 1
            if count:
                gone[before_line] += [x[2] for x in old[name][first - 1:first - 1 + count]]
    last = len(after.splitlines()) + 1
    for name, lines in old.items():
        if name not in new:
            gone[last] += [line for _, _, line in lines]
    return Changes(parent, added, dict(gone))
