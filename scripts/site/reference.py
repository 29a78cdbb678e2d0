"""The reference that Doxygen makes of all headers, and the addresses of what they declare."""

import collections
import pathlib
import re
import subprocess
import xml.etree.ElementTree as xml

FOLDER = "reference"  # of the site
TYPES = ("class", "struct", "union", "enumeration", "typedef", "concept")


def run_doxygen(root, out, header, footer):
    """Makes the reference in out/html/reference; a warning of Doxygen ends the run. Returns the path of its tag file."""
    out = pathlib.Path(out).resolve()
    (out / "header.html").write_text(header, encoding="utf-8")
    (out / "footer.html").write_text(footer, encoding="utf-8")
    settings = (pathlib.Path(root) / "docs/Doxyfile").read_text(encoding="utf-8")
    settings += "".join(f'{name} = "{value}"\n' for name, value in {
        "OUTPUT_DIRECTORY": out, "HTML_OUTPUT": f"html/{FOLDER}", "HTML_HEADER": out / "header.html",
        "HTML_FOOTER": out / "footer.html", "GENERATE_TAGFILE": out / "tags.xml"}.items())
    with open(out / "doxygen.log", "w", encoding="utf-8") as log:
        if subprocess.run(["doxygen", "-"], input=settings, text=True, cwd=root, stdout=log, check=False).returncode:
            raise SystemExit("error: Doxygen has warnings; each of them counts as an error.")
    for page in (out / "html" / FOLDER).glob("*.html"):
        mend(page)
    return out / "tags.xml"


def mend(page):
    """Removes links to a missing list: Doxygen 1.9 refers to the nested classes of a class even if all are private."""
    text = page.read_text(encoding="utf-8")
    if '"#nested-classes"' in text and 'id="nested-classes"' not in text:
        page.write_text(re.sub(r'<a href="#nested-classes">.*?</a>(?: &#124;)?\n?', "", text), encoding="utf-8")


Declared = collections.namedtuple("Declared", "name kind url declaration file")


class Reference:
    """Declarations in headers: types, functions and members, by name."""

    def __init__(self, tags=None, root="/"):
        self.headers = {}                           # path of a header -> address of its page
        self.types, self.functions = {}, {}         # name without namespaces -> address
        self.members = collections.defaultdict(dict)  # name of a class -> name of a member -> address
        self.all = []                               # for the search
        if tags:
            for compound in xml.parse(tags).getroot().iter("compound"):
                self._add(compound, pathlib.Path(root).resolve())

    def _add(self, compound, root):
        kind, name, filename = compound.get("kind"), compound.findtext("name"), compound.findtext("filename")
        if kind == "file":
            path = pathlib.Path(compound.findtext("path"), name)
            name = (path.relative_to(root) if path.is_absolute() else path).as_posix()
            self.headers[name] = f"{FOLDER}/{filename}"
        elif kind in TYPES:
            short = name.removeprefix("rankwise::")
            self.types.setdefault(short, f"{FOLDER}/{filename}")
            self.all.append(Declared(short, kind, f"{FOLDER}/{filename}", f"{kind} {short}", ""))
        elif kind != "namespace":
            return
        for member in compound.findall("member"):
            self._add_member(kind, name.removeprefix("rankwise::"), member)

    def _add_member(self, kind, owner, member):
        name = member.findtext("name")
        url = f"{FOLDER}/{member.findtext('anchorfile')}#{member.findtext('anchor')}"
        if kind in TYPES:
            if name in self.members[owner]:
                return
            self.members[owner][name] = url
            name = f"{owner}::{name}"
        elif member.get("kind") in TYPES:
            if name in self.types:
                return
            self.types[name] = url
            for value in member.findall("enumvalue"):
                self.members[name][value.text] = url  # a value without a comment has no entry of its own
        elif member.get("kind") == "function":
            if name in self.functions:
                return
            self.functions[name] = url
        declaration = f"{member.findtext('type') or ''} {name}{member.findtext('arglist') or ''}".strip()
        entry = Declared(name, member.get("kind"), url, re.sub(r"\s+", " ", declaration), "")
        if not any(entry.url == other.url for other in self.all[-40:]):  # a file and a namespace list the same members
            self.all.append(entry)

    def word(self, text):
        """Address of what a word of prose names: `Type`, `function()` or `Type::member()`; None if it is not declared."""
        found = re.fullmatch(r"(?:rankwise::)?(?:(\w+)::)?(\w+)(\(\))?", text)
        if not found:
            return None
        owner, name, called = found.groups()
        if owner:
            return self.members.get(owner, {}).get(name)
        return self.functions.get(name) if called else self.types.get(name) if name[:1].isupper() else None
