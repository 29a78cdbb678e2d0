"""Sources as HTML: coloured lines with anchors, names linked to where they are declared."""

import re
from html import escape

import pygments.lexers
import pygments.util
from pygments.token import Comment, Keyword, Literal, Name, Operator, Text

from tree import relative

COLOURS = ((Comment.Preproc, "cp"), (Comment.PreprocFile, "s"), (Comment, "c"), (Keyword, "k"), (Literal.Number, "m"),
           (Literal.String, "s"), (Operator.Word, "k"), (Name.Tag, "k"), (Name.Builtin, "k"))


def colour(kind):
    return next((name for token, name in COLOURS if kind in token), "")


def lexer_of(path, text):
    """Lexer of the language of a text; that of plain text where the language is unknown."""
    try:
        if path.endswith((".cu", ".cuh")):
            path = "kernel.cpp"
        return pygments.lexers.get_lexer_for_filename(path, text, stripnl=False, ensurenl=False)
    except pygments.util.ClassNotFound:
        return pygments.lexers.TextLexer(stripnl=False, ensurenl=False)


class Names:
    """Finds where the names in one C++ file are declared, as far as its text alone shows it.

    A type is linked wherever it stands, a function where it is called, a member where the type of the object or the class
    in front of it is known from a declaration in the same file."""

    def __init__(self, text, reference):
        self.reference = reference
        code = re.sub(r"//.*", "", text)
        self.own = set(re.findall(r"^ *[\w:<>&*, ]+[ &*](\w+)\([^;]*\)(?: const)?(?: noexcept)?\s*\{?$", code, re.MULTILINE))
        self.objects = {}
        for kind, name in re.findall(r"\b([A-Z]\w+)\s*[&*]?\s+(\w+)\b(?!\()", code):
            if kind in reference.members:
                self.objects[name] = kind if self.objects.get(name, kind) == kind else None

    def url(self, before, name, after):
        """Address of the declaration of a name between two texts, each the two tokens next to it; or None."""
        if before[-1:] in (["."], ["->"]):
            kind = self.objects.get(before[-2]) if len(before) > 1 else None
            return self.reference.members.get(kind, {}).get(name)
        if before[-1:] == ["::"]:
            owner = before[-2] if len(before) > 1 else ""
            if owner in self.reference.members:
                return self.reference.members[owner].get(name)
            if owner != "rankwise":
                return None
        if name in self.reference.types and name[:1].isupper():
            return self.reference.types[name]
        if after in ("(", "<") and name in self.reference.functions and name not in self.own:
            declares = before and re.fullmatch(r"\w+|>|&|\*", before[-1]) and before[-1] not in (
                "return", "co_return", "case", "else", "throw") and len(before) > 1 and before[-2] in (";", "}", "{", "static")
            return None if declares else self.reference.functions[name]
        return None


def tokens_of(path, text):
    """Kind and text of all tokens; `::` and `->` are one token each."""
    joined = []
    for kind, value in pygments.lex(text, lexer_of(path, text)):
        if joined and (joined[-1][1] + value) in ("::", "->"):
            joined[-1] = (kind, joined[-1][1] + value)
        else:
            joined.append((kind, value))
    return joined


def linked_tokens(path, text, tree, reference):
    """Kind, text and address of each token; the address is mostly None."""
    tokens = tokens_of(path, text)
    if not path.endswith((".cpp", ".hpp", ".cu")):
        yield from ((kind, value, None) for kind, value in tokens)
        return
    names = Names(text, reference)
    meaning = [i for i, (kind, value) in enumerate(tokens) if value.strip() and kind not in Comment and kind not in Text]
    place = {i: n for n, i in enumerate(meaning)}
    for i, (kind, value) in enumerate(tokens):
        url = None
        if kind in Comment.PreprocFile and value.startswith('"'):
            url = tree.url(value.strip('"'))
        elif kind in Name and i in place:
            n = place[i]
            before = [tokens[j][1] for j in meaning[max(0, n - 2):n]]
            url = names.url(before, value, tokens[meaning[n + 1]][1] if n + 1 < len(meaning) else "")
        yield kind, value, url


def lines_of(path, text, page, tree, reference):
    """The lines of a file as HTML, each complete in itself."""
    lines = [""]
    for kind, value, url in linked_tokens(path, text, tree, reference):
        name = colour(kind)
        for number, piece in enumerate(value.split("\n")):
            if number:
                lines.append("")
            if not piece:
                continue
            html = escape(piece, quote=False)
            if url:
                html = f'<a href="{escape(relative(url, page))}">{html}</a>'
            lines[-1] += f'<span class="{name}">{html}</span>' if name else html
    if lines[-1] == "":
        lines.pop()
    return lines


def numbered(number, html, kinds=""):
    """A line with its number, which is its anchor and a link to it."""
    mark = f" {kinds}" if kinds else ""
    return (f'<span class="line{mark}" id="L{number}"><a class="n" href="#L{number}" data-n="{number}" '
            f'aria-label="line {number}"></a>{html}\n</span>')


def source_page(path, page, tree, reference):
    """A file as it is, with colours: the body of its page."""
    lines = lines_of(path, tree.text(path), page, tree, reference)
    return '<pre class="source"><code>' + "".join(numbered(n, line) for n, line in enumerate(lines, 1)) + "</code></pre>"


def fragment(language, text):
    """A fenced block of a text as HTML."""
    try:
        lexer = pygments.lexers.get_lexer_by_name(language)
    except pygments.util.ClassNotFound:
        return escape(text)
    return "".join(f'<span class="{colour(kind)}">{escape(value)}</span>' if colour(kind) else escape(value)
                   for kind, value in pygments.lex(text, lexer))
