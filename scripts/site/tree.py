"""The files of the repository, and which page of the site each has."""

import os
import pathlib
import posixpath

SKIPPED = ("build", "student", "__pycache__", ".")  # how the names of folders begin that are not part of the project
IMAGES = (".svg", ".png")


def relative(url, page):
    """Link from a page to an address, both given from the root of the site."""
    path, mark, anchor = url.partition("#")
    if path == page:
        return mark + anchor if anchor else posixpath.basename(path)
    return posixpath.relpath(path, posixpath.dirname(page) or ".") + mark + anchor


class Tree:
    """Files and folders under a root. Asking for the address of one puts it on the list of what the site must contain."""

    def __init__(self, root):
        self.root = pathlib.Path(root).resolve()
        self.files, self.folders = set(), {""}
        for folder, folders, files in os.walk(self.root):
            folders[:] = sorted(name for name in folders if not name.startswith(SKIPPED))
            place = pathlib.Path(folder).relative_to(self.root).as_posix()
            place = "" if place == "." else place
            self.folders.add(place)
            self.files.update(posixpath.join(place, name) for name in files if not name.endswith(".pyc"))
        self.headers = {}  # headers that are documented in the reference: the address of their page there
        self.wanted = {}   # what pages link to, in the order of being asked for: path -> address

    def text(self, path):
        return (self.root / path).read_text(encoding="utf-8")

    def names_in(self, folder):
        """Names of the folders and of the files in a folder."""
        def inside(paths):
            return sorted(path[len(folder):].lstrip("/") for path in paths if posixpath.dirname(path) == folder and path)
        return inside(self.folders), inside(self.files)

    def url(self, path):
        """Address of the page of a file or a folder, of a picture the picture itself; None if there is no such file."""
        path = posixpath.normpath(path) if path else ""
        if path == ".":
            path = ""
        if path in self.folders:
            readme = posixpath.join(path, "README.md")
            if readme in self.files:
                return self.url(readme)
            url = posixpath.join(path, "folder.html")
        elif path not in self.files:
            return None
        elif path.endswith(IMAGES):
            url = path
        elif path in self.headers:
            return self.headers[path]
        else:
            url = (path.removesuffix(".md") if path.endswith(".md") else path) + ".html"
        self.wanted.setdefault(path, url)
        return url
