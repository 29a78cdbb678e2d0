"""Checks that every link of a site leads to a file of it and to an anchor that exists.

A finding names the page, the link, and where it is known the source and its line. Links to other sites are not followed."""

import pathlib
import posixpath
import re
from html import unescape
from urllib.parse import unquote

TAG = re.compile(r"<(?:!--.*?-->|script\b[^>]*>.*?</script>|[a-zA-Z][^<>]*>)", re.DOTALL)
ATTRIBUTE = re.compile(r"""([\w:-]+)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s>"']+))""")
IN_STYLE = re.compile(r"""url\(\s*["']?([^"')]+)["']?\s*\)""")
LINKS = ("href", "src", "xlink:href")
ELSEWHERE = re.compile(r"https?://|mailto:")
INSIDE = re.compile(r"data:|javascript:void\(0\)")


class Page:
    """Anchors and links of one page. A link: its address, the line of the page, and that of the source or None."""

    def __init__(self, text):
        self.anchors, self.links, self.source = set(), [], None
        line, seen, source_line = 1, 0, None
        for tag in TAG.finditer(text):
            opening = tag.group().split(">")[0]
            if opening.startswith("<!--"):
                continue
            line += text.count("\n", seen, tag.start())
            seen = tag.start()
            values = {name.lower(): unescape(a or b or c) for name, a, b, c in ATTRIBUTE.findall(opening)}
            for name in ("id", "name"):
                if name in values:
                    self.anchors.add(values[name])
            self.source = values.get("data-source", self.source)
            if re.fullmatch(r"L\d+", values.get("id", "")):
                source_line = int(values["id"][1:])
            of_link = int(values["data-line"]) if "data-line" in values else source_line
            must_be_here = not opening.startswith("<a ")
            self.links += [(values[name], line, of_link, must_be_here) for name in LINKS if name in values]


def broken(link, must_be_here, page, folder, pages):
    """The fault of a link of a page; None if there is none."""
    if INSIDE.match(link):
        return None
    if ELSEWHERE.match(link):
        return "is loaded from another site" if must_be_here else None
    if re.match(r"[a-z][a-z+.-]*:|//|/", link):
        return "leaves the site"
    path, _, anchor = link.partition("#")
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), unquote(path.split("?")[0]))) if path else page
    if path.startswith(".."):
        return "leaves the site"
    if not (folder / path).is_file():
        return "leads to no file"
    if anchor and path in pages and unquote(anchor) not in pages[path].anchors:
        return "leads to an anchor that does not exist"
    return None


def findings(folder):
    """One line for each broken link of the site in a folder."""
    folder = pathlib.Path(folder)
    pages = {path.relative_to(folder).as_posix(): Page(path.read_text(encoding="utf-8")) for path in folder.rglob("*.html")}
    for path in folder.rglob("*.css"):
        if path.name == "doxygen.css":
            continue  # Doxygen's own: it names pictures of menus that these pages do not have
        sheet = Page("")
        sheet.links = [(url, 1, None, True) for url in IN_STYLE.findall(path.read_text(encoding="utf-8"))]
        pages[path.relative_to(folder).as_posix()] = sheet
    for name in sorted(pages):
        for link, line, source_line, must_be_here in pages[name].links:
            if what := broken(link, must_be_here, name, folder, pages):
                source = pages[name].source
                where = f" (from {source}{f':{source_line}' if source_line else ''})" if source else ""
                yield f"{name}:{line}: the link {link} {what}{where}"
