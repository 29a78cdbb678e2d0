"""The index that the search of the site reads: a script, since a page from file:// may read nothing else."""

import json
import re

from prose import Glossary


def entry(url, title, heading, text, kind):
    return [url, title, heading, re.sub(r"\s+", " ", text).strip(), kind]


class Index:
    """Collects what can be found: address, title of the page, heading, text, and a letter for the kind.

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
