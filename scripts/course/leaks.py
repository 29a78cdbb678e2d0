"""Finds solutions of exercises that stand elsewhere in a tree, whatever their names are there.

Two runs of lines are the same if they are equal after comments and white space are dropped and identifiers are numbered in the
order in which they appear; keywords and literals have to be equal. Lines that hold only braces or return one name do not
count. A leak is a run of WINDOW lines, of which one between the first and the last may differ. So a solution of fewer lines
cannot leak.
"""

import dataclasses
import functools
import re

from exercise_tree import in_order

WINDOW = 5
SOURCES = (".cpp", ".hpp", ".cu", ".h")
TOKEN = re.compile(r"""(?P<name>[A-Za-z_]\w*)|\d[\w.']*|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)+'|::|->|[^\s\w]""")
COMMENT_OR_TEXT = re.compile(r'//[^\n]*|/\*.*?(?:\*/|\Z)|"(?:[^"\\\n]|\\.)*(?:"|(?=\n)|\Z)', re.DOTALL)
BLOCK_COMMENT = re.compile(r"/\*.*?\*/")
QUOTE_MARKS = re.compile(r"^\s*(?:[>#*+/-]+(?=\s|$))?")  # of Markdown, of comments, of a diff
KEYWORDS = frozenset("""
    alignas alignof and asm auto bool break case catch char class concept const consteval constexpr constinit const_cast
    continue decltype default delete do double dynamic_cast else enum explicit extern false float for friend goto if inline
    int long mutable namespace new noexcept nullptr operator or private protected public register reinterpret_cast requires
    return short signed sizeof static static_assert static_cast struct switch template this thread_local throw true try
    typedef typeid typename union unsigned using virtual void volatile while""".split())


@dataclasses.dataclass(frozen=True)
class Leak:
    """Lines of a file that are the solution of an exercise; numbers count from 1."""

    exercise: str
    path: str
    first: int
    last: int

    def __str__(self):
        return f"{self.path}:{self.first}-{self.last}: the solution of exercise {self.exercise}"


@functools.lru_cache(maxsize=None)
def tokens_of(line):
    """The tokens of a line: (text, whether it is an identifier). Braces stand at the end of a line or on one of their own, so
    they are left out."""
    return tuple((match[0], match["name"] is not None and match[0] not in KEYWORDS) for match in TOKEN.finditer(line)
                 if match[0] not in "{}")


@functools.lru_cache(maxsize=None)
def shape_of(line):
    """A line in which all identifiers look the same; empty if the line is trivial."""
    shape = tuple("name" if is_name else text for text, is_name in tokens_of(line))
    trivial = shape == ("return", "name", ";") or not set(shape) - set("();,")
    return () if trivial else shape


def normalised(lines):
    """The tokens of a run of lines, identifiers numbered in the order of their first appearance."""
    numbers = {}
    return tuple(numbers.setdefault(text, len(numbers)) if is_name else text
                 for line in lines for text, is_name in tokens_of(line))


def without_comments(text):
    """C++ without its comments, line by line as before."""
    return COMMENT_OR_TEXT.sub(lambda match: match[0] if match[0][0] == '"' else "\n" * match[0].count("\n"), text)


def readings(path, text):
    """The parts of a file that may hold code, each reading a list of lines: of a source the code and the comments, of any
    other file its lines without the marks of quotations."""
    plain = [QUOTE_MARKS.sub("", BLOCK_COMMENT.sub("", line)) for line in text.split("\n")]
    if not path.endswith(SOURCES):
        return [[line.split("//")[0] for line in plain]]
    comments = [line if marked.lstrip().startswith(("//", "*")) else "" for line, marked in zip(plain, text.split("\n"))]
    return [without_comments(text).split("\n"), comments]


def windows(lines):
    """Each run of WINDOW lines that are not trivial: (the run, number of its first and of its last line, from 1)."""
    kept = [(number, line) for number, line in enumerate(lines, 1) if shape_of(line)]
    for at in range(len(kept) - WINDOW + 1):
        numbers, run = zip(*kept[at:at + WINDOW])
        yield run, numbers[0], numbers[-1]


def ends_of(run):
    """A quick test before forms_of(): equal for runs that are the same."""
    return shape_of(run[0]), shape_of(run[-1])


@functools.lru_cache(maxsize=None)
def runs_by_ends(path, content):
    """All runs of lines of a file: ends -> [(the run, number of its first and of its last line)]. The packs of a course have
    most files in common."""
    found = {}
    if b"\0" not in content:
        for lines in readings(path, content.decode(errors="replace")):
            for run, first, last in windows(lines):
                found.setdefault(ends_of(run), []).append((run, first, last))
    return found


def forms_of(run):
    """The normalised forms of a run, each without one of the lines between the first and the last."""
    return [(left_out, normalised(run[:left_out] + run[left_out + 1:])) for left_out in range(1, WINDOW - 1)]


def solution_forms(tree, regions):
    """The runs of lines of all solutions: ends -> {form: {exercises}}."""
    found = {}
    for region in regions:
        body = "\n".join(tree[region.path].decode().split("\n")[region.body:region.end])
        for run, _, _ in windows(without_comments(body).split("\n")):
            for form in forms_of(run):
                found.setdefault(ends_of(run), {}).setdefault(form, set()).add(region.exercise)
    return found


def joined(runs):
    """Runs of lines (first, last), those that overlap joined."""
    found = []
    for first, last in sorted(runs):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return found


def find_leaks(tree, regions, searched):
    """The leaks of the solutions that stand in `regions` of `tree`, in the files of another tree, in which these regions are
    stubs, path -> bytes; sorted."""
    solutions, hits = solution_forms(tree, regions), {}
    for path, content in searched.items():
        runs = runs_by_ends(path, content)
        for ends in runs.keys() & solutions.keys():
            for run, first, last in runs[ends]:
                for exercise in set().union(*(solutions[ends].get(form, ()) for form in forms_of(run))):
                    hits.setdefault((exercise, path), []).append((first, last))
    leaks = [Leak(exercise, path, *run) for (exercise, path), runs in hits.items() for run in joined(runs)]
    return sorted(leaks, key=lambda leak: (in_order(leak.exercise), leak.path, leak.first))
