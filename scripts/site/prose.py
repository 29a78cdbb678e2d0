"""Texts as HTML: Markdown as GitHub shows it, and the comments of sources. Links lead to pages of the site."""

import collections
import posixpath
import re
from html import escape, unescape

from markdown_it import MarkdownIt
from markdown_it.token import Token
from mdit_py_plugins.dollarmath import dollarmath_plugin

from sources import fragment
from tree import relative

Heading = collections.namedtuple("Heading", "level text anchor")
Section = collections.namedtuple("Section", "anchor title text")  # for the search
GLOSSARY, REFERENCES = "docs/glossary.md", "docs/references.md"
FILE = re.compile(r"(?<![\w./-])(?:[\w-]+/)+[\w-]+\.(?:hpp|cpp|cu|md|sh|py)\b")
LESSON = re.compile(r"\blesson (\d\d)\b")
PAPER = re.compile(r"arXiv:(\d{4}\.\d{4,5})|doi:(10\.\d{4,9}/[^\s,;|]*[^\s,;|.)])")


def plain(text):
    """A text without Markdown's marks for code, emphasis and links."""
    return re.sub(r"[`*]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text))


def slug(text):
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", plain(text).strip().lower()).replace(" ", "-")


def table_rows(text):
    """The rows of a table in Markdown: first cell and second cell."""
    rows = [re.split(r" \| ", line.strip().strip("|").strip(), maxsplit=1) for line in text.splitlines() if line.startswith("| ")]
    return [(row[0].strip(), row[1].strip()) for row in rows[1:] if len(row) == 2]


class Glossary:
    """Terms and papers: where they are explained, and where a text names them."""

    def __init__(self, tree):
        self.meanings, self.terms, self.papers = {}, set(), {}
        for term, meaning in table_rows(tree.text(GLOSSARY)) if GLOSSARY in tree.files else ():
            self.meanings[term] = plain(meaning)
            # What begins with "Of a pipeline:" has that meaning in one context only, so a text is not searched for it.
            if not re.match(r"(Of|In) ", meaning) and not re.search(r"[,(]", term):
                self.terms.add(term)
        for work, _ in table_rows(tree.text(REFERENCES)) if REFERENCES in tree.files else ():
            self.papers.setdefault(re.sub(r",[^,]*\*.*", "", work), f"paper-{slug(work.split(', *')[0])}")
        self.term_pattern = self._pattern(self.terms, r"(?:s|es)?")
        self.paper_pattern = self._pattern(self.papers, "")

    @staticmethod
    def _pattern(names, ending):
        """Finds one of the names. A name without capitals may begin with one."""
        def words(name):
            first = re.escape(name[0])
            if name == name.lower() and name[0].isalpha():
                first = f"[{name[0]}{name[0].upper()}]"
            return first + re.escape(name[1:]).replace(r"\ ", r"\s+")
        longest_first = sorted(names, key=len, reverse=True)
        return re.compile(rf"(?<![\w-])({'|'.join(map(words, longest_first)) or '(?!)'}){ending}(?![\w-])")

    @staticmethod
    def anchor(term):
        return f"term-{slug(term)}"


class Prose:
    """Makes HTML of the texts of one tree."""

    def __init__(self, tree, reference, glossary):
        self.tree, self.reference, self.glossary = tree, reference, glossary
        self.markdown = MarkdownIt("commonmark").enable(["table", "strikethrough"])
        self.markdown.use(dollarmath_plugin, allow_labels=False, allow_space=False, allow_digits=False, double_inline=True)
        self.comments = MarkdownIt("zero").enable(["paragraph", "code", "fence", "backticks", "list"])
        for parser in (self.markdown, self.comments):
            parser.add_render_rule("fence", fence)
            parser.add_render_rule("code_block", code_block)
            parser.add_render_rule("math_inline", lambda _, tokens, i, *rest: math("span", "math", tokens[i]))
            parser.add_render_rule("math_inline_double", lambda _, tokens, i, *rest: math("span", "math display", tokens[i]))
            parser.add_render_rule("math_block", lambda _, tokens, i, *rest: math("div", "math display", tokens[i]))

    def page(self, path, text, page):
        """HTML of a text in Markdown, its headings, and its sections for the search."""
        tokens = self.markdown.parse(text)
        return Text(self, path, page).render(self.markdown, tokens)

    def comment(self, text, path, page):
        """HTML of the comment of a source, whose marks `//` are gone."""
        text = re.sub(r"^@file\s*|^@brief\s*", "", text, flags=re.MULTILINE)
        text = re.sub(r"^@t?param(?:\[\w+(?:,\w+)?\])?\s+(\S+)", r"- `\1`: ", text, flags=re.MULTILINE)
        text = re.sub(r"^@throws\s+(\S+)", r"- throws `\1`: ", text, flags=re.MULTILINE)
        text = re.sub(r"^@(return|cost|failure|source)s?\b", r"- \1:", text, flags=re.MULTILINE)
        text = re.sub(r"@p (\w+)", r"`\1`", text)
        html, _, _ = Text(self, path, page, terms=False).render(self.comments, self.comments.parse(text))
        return html


def math(tag, kind, token):
    return f'<{tag} class="{kind}">{escape(token.content.strip(), quote=False)}</{tag}>'


def fence(_renderer, tokens, i, *_rest):
    language = tokens[i].info.strip().split(" ")[0]
    if language == "math":
        return math("div", "math display", tokens[i])
    return f"<pre><code>{fragment(language, tokens[i].content) if language else escape(tokens[i].content)}</code></pre>\n"


def code_block(_renderer, tokens, i, *_rest):
    return f"<pre><code>{escape(tokens[i].content)}</code></pre>\n"


def html_token(html):
    token = Token("html_inline", "", 0)
    token.content = html
    return token


class Text:
    """One text that becomes a page, or a part of one."""

    def __init__(self, prose, path, page, terms=True):
        self.prose, self.path, self.page = prose, path, page
        self.linked = None if not terms or path == GLOSSARY else set()
        self.headings, self.sections, self.anchors = [], [], collections.Counter()

    def render(self, parser, tokens):
        line, in_heading, row = 1, False, None
        for i, token in enumerate(tokens):
            if token.map:
                line = token.map[0] + 1
            if token.type == "html_block":
                token.content = re.sub(r"<!--.*?-->", "", token.content, flags=re.DOTALL)
            elif token.type == "heading_open":
                in_heading = True
                self._heading(token, tokens[i + 1])
            elif token.type == "heading_close":
                in_heading = False
            elif token.type == "tr_open":
                row = token
            elif token.type == "table_open":
                tokens[i].attrSet("class", "table")
            elif token.type == "inline":
                if row is not None:
                    self._row(row, token)
                    row = None
                self._inline(token, line, in_heading)
            if token.type in ("fence", "code_block", "math_block") or (token.type == "inline" and not in_heading):
                self._note(token.content)
        html = parser.renderer.render(tokens, parser.options, {})
        html = html.replace('<table class="table">', '<div class="scroll"><table>').replace("</table>", "</table></div>")
        return html, self.headings, self.sections

    def _note(self, text):
        if not self.sections:
            self.sections.append(Section("", "", []))
        self.sections[-1].text.append(plain(text))

    def _heading(self, token, inline):
        anchor = slug(inline.content)
        self.anchors[anchor] += 1
        if self.anchors[anchor] > 1:
            anchor += f"-{self.anchors[anchor] - 1}"
        token.attrSet("id", anchor)
        self.headings.append(Heading(int(token.tag[1]), plain(inline.content), anchor))
        self.sections.append(Section(anchor, plain(inline.content), []))

    def _row(self, token, first_cell):
        """Rows of the glossary and of the references have anchors, by which other pages refer to them."""
        anchor = None
        if self.path == GLOSSARY and first_cell.content in self.prose.glossary.meanings:
            anchor = Glossary.anchor(first_cell.content)
        elif self.path == REFERENCES:
            anchor = self.prose.glossary.papers.get(re.sub(r",[^,]*\*.*", "", first_cell.content))
        if anchor and not self.anchors[anchor]:
            self.anchors[anchor] += 1
            token.attrSet("id", anchor)
            self.sections.append(Section(anchor, plain(first_cell.content), []))

    def _inline(self, token, line, in_heading):
        out, depth = [], 0
        for child in token.children:
            if child.type in ("softbreak", "hardbreak"):
                line += 1
            elif child.type == "link_open":
                depth += 1
                self._link(child, "href", line)
            elif child.type == "link_close":
                depth -= 1
            elif child.type == "image":
                self._link(child, "src", line)
                child.attrSet("loading", "lazy")
            elif depth == 0 and not in_heading and child.type == "text":
                out += self._words(child.content, line)
                continue
            elif depth == 0 and child.type == "code_inline" and (url := self.prose.reference.word(child.content)):
                out.append(html_token(self._open(url, line)[:-1] + f"><code>{escape(child.content)}</code></a>"))
                continue
            out.append(child)
        token.children = out

    def _open(self, url, line, extra=""):
        return f'<a href="{escape(relative(url, self.page))}" data-line="{line}"{extra}>'

    def _link(self, token, attribute, line):
        """Turns the path of a file into the address of its page. What cannot be found stays, for the check of links to find."""
        token.attrSet("data-line", str(line))
        target = token.attrGet(attribute)
        if re.match(r"[a-z]+:|#|//", target):
            return
        path, _, anchor = target.partition("#")
        url = self.prose.tree.url(posixpath.join(posixpath.dirname(self.path), path))
        if url:
            token.attrSet(attribute, relative(url + (f"#{anchor}" if anchor else ""), self.page))

    def _words(self, text, line):
        """The words of a text, with links to the papers and, at their first place, to the terms that they name."""
        glossary = self.prose.glossary
        found = [(m.start(), m.end(), self._paper(m, line)) for m in glossary.paper_pattern.finditer(text)]
        if self.path == REFERENCES:
            found = [(m.start(), m.end(), self._published(m, line)) for m in PAPER.finditer(text)]
        elif self.linked is not None:
            for m in glossary.term_pattern.finditer(text):
                term = re.sub(r"\s+", " ", m.group(1))
                term = term if term in glossary.terms else term[0].lower() + term[1:]
                if term not in self.linked and not any(first < m.end() and m.start() < last for first, last, _ in found):
                    self.linked.add(term)
                    found.append((m.start(), m.end(), self._term(m, term, line)))
        else:
            found += self._places(text, line)
        tokens, end = [], 0
        for first, last, html in sorted(found):
            tokens += [self._text(text[end:first]), html_token(html)]
            end = last
        return tokens + [self._text(text[end:])]

    def _places(self, text, line):
        """The files and the lessons that a comment names."""
        tree = self.prose.tree
        lessons = {m.group(1): folder for folder in tree.folders if (m := re.match(r"lessons/(\d\d)_\w+$", folder))}
        for m in FILE.finditer(text):
            if m.group() in tree.files:
                yield m.start(), m.end(), self._open(tree.url(m.group()), line) + f"{escape(m.group())}</a>"
        for m in LESSON.finditer(text):
            if m.group(1) in lessons:
                yield m.start(), m.end(), self._open(tree.url(lessons[m.group(1)]), line) + f"{m.group()}</a>"

    @staticmethod
    def _text(content):
        token = Token("text", "", 0)
        token.content = content
        return token

    def _paper(self, match, line):
        anchor = self.prose.glossary.papers[re.sub(r"\s+", " ", match.group(1))]
        return self._open(f"{self.prose.tree.url(REFERENCES)}#{anchor}", line) + f"{escape(match.group())}</a>"

    @staticmethod
    def _published(match, line):
        url = f"https://arxiv.org/abs/{match.group(1)}" if match.group(1) else f"https://doi.org/{match.group(2)}"
        return f'<a href="{escape(url)}" data-line="{line}">{escape(match.group())}</a>'

    def _term(self, match, term, line):
        url = f"{self.prose.tree.url(GLOSSARY)}#{Glossary.anchor(term)}"
        extra = f' class="term" title="{escape(self.prose.glossary.meanings[term])}"'
        return self._open(url, line, extra) + f"{escape(match.group())}</a>"


def words_of(html):
    """The text of some HTML."""
    return unescape(re.sub(r"<[^>]+>", "", html))
