#!/usr/bin/env python3
"""Makes the site of the documentation:  build.py OUT [ROOT]  ->  OUT/html/index.html

The texts, the programs of the lessons with their comments beside the code, and the reference that Doxygen makes of the
headers. A link that leads nowhere is an error. scripts/docs.sh calls this."""

import argparse
import json
import pathlib
import re
import shutil
import sys

import jinja2
from markupsafe import Markup

import check_links
from annotate import Annotated, changes_of
from lessons import ladder, read_lessons, role
from prose import GLOSSARY, Glossary, Prose
from reference import FOLDER, Reference, run_doxygen
from sources import source_page
from tree import Tree, relative

HERE = pathlib.Path(__file__).resolve().parent
KATEX = pathlib.Path("/usr/share/javascript/katex")
TEXTS = (("README.md", "Read me"), ("docs/install.md", "Installing"), ("docs/clusters.md", "On a cluster"),
         ("docs/instructor/guide.md", "Guide for instructors"), ("docs/dependencies.md", "Dependencies"),
         ("docs/design.md", "Design"), ("docs/performance.md", "Performance"), ("docs/utilisation.md", "Utilisation"),
         ("docs/planner.md", "The planner"), ("docs/film.md", "The film of a step"), ("docs/pages.md", "Pages of runs"),
         ("docs/prefix_mask.md", "Prefix mask"), ("docs/elastic.md", "Runs that lose ranks"),
         ("docs/records.md", "The first wrong number"), ("docs/museum.md", "A museum of real bugs"),
         ("docs/baselines.md", "The same run in PyTorch"), ("docs/conformance.md", "Conformance"),
         ("docs/notation.md", "Notation"), (GLOSSARY, "Glossary"), ("docs/platforms.md", "Platforms"), ("docs/references.md", "References"))

TEMPLATE = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined).from_string(
    (HERE / "page.html").read_text(encoding="utf-8"))
FRAME = {"menu": None, "source": "", "previous": None, "next": None, "headings": [], "kind": "text", "math": False, "contents": [],
         "changes": None}  # what a page has unless it says otherwise


def entry(url, title, heading, text, kind):
    return [url, title, heading, re.sub(r"\s+", " ", text).strip(), kind]


class Index:
    """What the search of the site reads, a script, since a page from file:// may read nothing else: address, title of the page, heading,
    text, and a letter for the kind.

    g: a term of the glossary, d: a declaration, t: a section of a text, c: a comment of a source."""

    def __init__(self):
        self.entries = []

    def add_text(self, url, title, sections, glossary_page):
        for section in sections:
            kind = "g" if glossary_page and section.anchor.startswith(Glossary.anchor("")) else "t"
            anchor = f"#{section.anchor}" if section.anchor else ""
            self.entries.append(entry(url + anchor, title, section.title, " ".join(section.text), kind))

    def add_source(self, url, title, sections):
        self.entries += [entry(f"{url}#{anchor}", title, heading, text, "c") for anchor, heading, text in sections if text]

    def add_reference(self, reference):
        self.entries += [entry(d.url, "Reference", d.name, d.declaration, "d") for d in reference.all]

    def write(self, path):
        rows = ",\n".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in self.entries)
        path.write_text(f"window.rankwiseIndex = [\n{rows}\n];\n", encoding="utf-8")


class Site:
    """The pages of one tree.
    @param films  folder with films of lessons, which scripts/film/films.sh makes; it need not exist."""

    def __init__(self, root, html, reference, films):
        self.tree, self.html, self.reference, self.films = Tree(root), pathlib.Path(html), reference, films
        self.lessons = read_lessons(self.tree)
        self.tree.headers = {path: url for path, url in reference.headers.items() if not path.startswith("lessons/")}
        self.prose = Prose(self.tree, reference, Glossary(self.tree))
        self.annotated = Annotated(self.tree, reference, self.prose)
        self.index = Index()
        self.texts = [(path, title) for path, title in TEXTS if path in self.tree.files]

    def make(self):
        """Writes every page that can be reached from the first one."""
        self.front_page()
        for lesson in self.lessons:
            for path in (f"{lesson.folder}/README.md", lesson.program, *lesson.sources):
                self.tree.url(path)
        done = set()
        while waiting := [path for path in self.tree.wanted if path not in done]:
            for path in waiting:
                self.write_page(path, self.tree.wanted[path])
                done.add(path)
        self.index.add_reference(self.reference)
        self.assets()
        return len(done) + 1

    def assets(self):
        (self.html / "site").mkdir(exist_ok=True)
        for name in ("style.css", "site.js"):
            shutil.copy(HERE / name, self.html / "site")
        self.index.write(self.html / "site/search_index.js")
        for lesson in self.lessons:
            for _, page in self.drawn(lesson):
                (self.html / "films").mkdir(exist_ok=True)
                shutil.copy(self.films / pathlib.Path(page).name, self.html / page)

    def drawn(self, lesson):
        """(words, address) of the pages that scripts/film/films.sh has made of a lesson."""
        pages = (("Film of a step", f"{pathlib.Path(lesson.folder).name}.html"), ("Runs side by side", "runs.html"))
        return [(words, f"films/{name}") for words, name in pages if (self.films / name).is_file()]

    def math(self):
        """Copies KaTeX with its fonts into the site, once."""
        if not (KATEX / "katex.min.js").exists():
            raise SystemExit(f"error: there are formulas, and {KATEX} is missing. Run scripts/setup.sh --documentation.")
        folder = self.html / "site/katex"
        if folder.exists():
            return
        (folder / "fonts").mkdir(parents=True)
        shutil.copy(KATEX / "katex.min.js", folder)
        style = (KATEX / "katex.min.css").read_text(encoding="utf-8")
        # Of each font the newest format is enough.
        style = re.sub(r',url\(fonts/[^)]*\.(?:woff|ttf)\) format\("\w+"\)', "", style)
        for name in sorted(set(re.findall(r"url\(fonts/([^)]+)\)", style))):
            shutil.copy(KATEX / "fonts" / name, folder / "fonts")
        (folder / "katex.min.css").write_text(style, encoding="utf-8")

    # ---- Frames of pages ----

    def lesson_of(self, path):
        return next((lesson for lesson in self.lessons if path.startswith(lesson.folder + "/") or path in lesson.sources), None)

    def menu(self, page, lesson):
        """Menu beside every page: lessons, the pages of this lesson, texts."""
        def link(path, title):
            url = self.tree.url(path)
            return {"url": relative(url, page), "title": title, "here": url == page}
        menu = {"lessons": [], "texts": [link(path, title) for path, title in self.texts]}
        for other in self.lessons:
            item = link(f"{other.folder}/README.md", f"{other.number} {other.short_title}") | {"pages": []}
            if other is lesson:
                item["pages"] = [link(other.program, "the program")]
                item["pages"] += [link(source, source.split("/")[-1]) for source in other.sources]
            menu["lessons"].append(item)
        return menu

    def frame(self, page, lesson=None, neighbours=False):
        """Values that the template of every page needs."""
        values = FRAME | {"root": "../" * page.count("/"), "menu": self.menu(page, lesson), "lesson": lesson,
                          "reference": f"{FOLDER}/index.html" if self.reference.headers else ""}
        if lesson and neighbours:
            at = self.lessons.index(lesson)
            for name, place in (("previous", at - 1), ("next", at + 1)):
                if 0 <= place < len(self.lessons):
                    other = self.lessons[place]
                    url = relative(self.tree.url(f"{other.folder}/README.md"), page)
                    values[name] = {"url": url, "title": f"{other.number} {other.short_title}"}
        return values

    def write(self, page, **values):
        path = self.html / page
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(TEMPLATE.render(**values), encoding="utf-8")

    # ---- Kinds of pages ----

    def write_page(self, path, page):
        if path in self.tree.folders:
            self.folder_page(path, page)
        elif path == page:  # a picture
            (self.html / page).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(self.tree.root / path, self.html / page)
        elif path.endswith(".md"):
            self.text_page(path, page)
        elif path.startswith("lessons/") and path.endswith((".cpp", ".hpp")):
            self.annotated_page(path, page)
        else:
            body = source_page(path, page, self.tree, self.reference)
            self.write(page, **self.frame(page, self.lesson_of(path)) | {
                "title": path, "body": Markup(f"<h1>{path}</h1>" + body), "source": path, "kind": "wide"})

    def text_page(self, path, page):
        lesson = self.lesson_of(path)
        html, headings, sections = self.prose.page(path, self.tree.text(path), page)
        title = headings[0].text if headings else path
        math = 'class="math' in html
        if math:
            self.math()
        self.index.add_text(page, title, sections, path == GLOSSARY)
        extra = {"title": title, "body": Markup(html), "source": path, "math": math,
                 "headings": [h for h in headings if h.level in (2, 3)]}
        if lesson:
            extra["lesson_links"] = self.lesson_links(lesson, page)
        self.write(page, **self.frame(page, lesson, neighbours=True) | extra)

    def lesson_links(self, lesson, page):
        """From one page of a lesson to the others."""
        links = [("Text", self.tree.url(f"{lesson.folder}/README.md")), ("Program, annotated", self.tree.url(lesson.program))]
        if lesson.builds_on:
            links.append((f"Changes from lesson {lesson.builds_on[0]}", self.tree.url(lesson.program) + "#changes"))
        links += self.drawn(lesson)
        return [{"title": title, "url": relative(url, page), "here": url == page} for title, url in links]

    def changes(self, path, lesson):
        """Changes of a file against the one of the same role in the parent; None where there is no such file."""
        parent = next((x for x in self.lessons if lesson and x.number in lesson.builds_on[:1]), None)
        if parent is None:
            return None
        same_role = [source for source in parent.sources if role(source) == role(path)]
        before = parent.program if path == lesson.program else next(iter(same_role), None)
        if before is None:
            return None
        return changes_of(parent, self.tree.text(before), self.tree.text(path))

    def annotated_page(self, path, page):
        lesson = self.lesson_of(path)
        changed = self.changes(path, lesson)
        body, contents, sections = self.annotated.page(path, page, changed)
        title = f"{lesson.number} {lesson.short_title}: the program" if lesson and path == lesson.program else path.split("/")[-1]
        self.index.add_source(page, title, sections)
        extra = {"title": title, "body": Markup(body), "source": path, "kind": "code", "contents": contents}
        if lesson:
            extra["lesson_links"] = self.lesson_links(lesson, page)
        if changed:
            gone = sum(len(lines) for lines in changed.gone.values())
            extra["changes"] = {"parent": changed.parent.number, "new": len(changed.new), "gone": gone}
        self.write(page, **self.frame(page, lesson, neighbours=True) | extra)

    def folder_page(self, path, page):
        folders, files = self.tree.names_in(path)
        items = []
        for name in [name + "/" for name in folders] + files:
            url = self.tree.url(f"{path}/{name}".strip("/"))
            items.append({"name": name, "url": relative(url, page)})
        self.write(page, **self.frame(page, self.lesson_of(path + "/")) | {
            "title": f"{path}/", "items": items, "source": path})

    def front_page(self):
        """Writes the front page: the introduction of README.md, the ladder, the two commands."""
        page, text = "index.html", self.tree.text("README.md")
        up_to_commands = re.match(r"(?:.*\n)*?(?:    .*\n)+", text)
        introduction = up_to_commands.group() if up_to_commands else text.split("\n## ")[0]
        html, headings, _ = self.prose.page("README.md", introduction, page)
        lessons = [{"number": x.number, "title": x.title, "idea": x.idea, "builds_on": x.builds_on,
                    "text": self.tree.url(f"{x.folder}/README.md"), "program": self.tree.url(x.program)} for x in self.lessons]
        picture = ladder(self.lessons, lambda lesson: self.tree.url(f"{lesson.folder}/README.md"))
        self.write(page, **self.frame(page) | {
            "title": headings[0].text if headings else "Documentation", "body": Markup(html), "ladder": Markup(picture),
            "lessons": lessons, "source": "README.md", "kind": "front"})


def doxygen_frame():
    """Header and footer of Doxygen's pages, which look like the others."""
    page = TEMPLATE.render(FRAME | {"root": "$relpath^../", "reference": f"{FOLDER}/index.html", "title": "$title", "kind": "reference",
                                    "body": Markup('<div id="top">\n<!-- Doxygen -->\n')})
    return page.split("<!-- Doxygen -->\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("root", type=pathlib.Path, nargs="?", default=HERE.parents[1])
    arguments = parser.parse_args()
    html = arguments.out / "html"
    shutil.rmtree(html, ignore_errors=True)
    html.mkdir(parents=True)
    reference = Reference()
    if (arguments.root / "docs/Doxyfile").exists():
        reference = Reference(run_doxygen(arguments.root, arguments.out, *doxygen_frame()), arguments.root)
    pages = Site(arguments.root, html, reference, arguments.out.parent / "films").make()
    found = list(check_links.findings(html))
    if found:
        print("\n".join(found), file=sys.stderr)
        raise SystemExit(f"error: {len(found)} links of the documentation lead nowhere.")
    print(f"{pages} pages, {len(reference.all)} declarations", file=sys.stderr)


if __name__ == "__main__":
    main()
