"""What students hand in: a folder, a .zip or a .tar.gz for each student.

Nothing is unpacked. Of each submission only the files that are asked for are read, regular files all of them, so neither
names (absolute ones, ..) nor links in it can reach anything else.
"""

import dataclasses
import hashlib
import gzip
import pathlib
import tarfile
import zipfile
import zlib

from exercise_tree import Refused

MOST_BYTES_OF_A_FILE = 1 << 20
MOST_BYTES_OF_AN_ARCHIVE = 256 << 20  # when it is expanded
MOST_FILES = 20000
ARCHIVES = (".zip", ".tar.gz", ".tgz")


@dataclasses.dataclass(frozen=True)
class Submission:
    """What one student handed in."""

    student: str
    path: pathlib.Path


def find_submissions(folder):
    """The submissions in a folder, by student: the name of the sub-folder, or of the archive without its ending."""
    if not folder.is_dir():
        raise Refused(f"there is no folder {folder}. Name the one that holds a sub-folder or an archive for each student")
    found = {}
    for path in sorted(folder.iterdir()):
        ending = next((ending for ending in ARCHIVES if path.name.endswith(ending)), None)
        if path.name.startswith(".") or not (path.is_dir() or ending):
            continue
        student = path.name if path.is_dir() else path.name[:-len(ending)]
        if student in found:
            raise Refused(f"{found[student].path} and {path} are both of {student}. Leave the one that counts")
        found[student] = Submission(student, path)
    if not found:
        raise Refused(f"{folder} has no submissions: neither sub-folders nor {', '.join(ARCHIVES)}")
    return list(found.values())


def submission_of(path):
    """The submission in a path that was named."""
    ending = next((ending for ending in ARCHIVES if path.name.endswith(ending)), "")
    if not path.exists():
        raise Refused(f"there is no {path}. Name a folder or an archive ({', '.join(ARCHIVES)})")
    return Submission(path.resolve().name.removesuffix(ending), path)


class Limited:
    """The bytes of a stream; more than the limit are refused."""

    def __init__(self, stream):
        self.stream, self.left = stream, MOST_BYTES_OF_AN_ARCHIVE

    def read(self, size):
        data = self.stream.read(min(size, self.left + 1))
        self.left -= len(data)
        if self.left < 0:
            raise Refused(f"expands to more than {MOST_BYTES_OF_AN_ARCHIVE >> 20} MiB")
        return data


def wanted_of(name, wanted):
    """The file asked for that a name in an archive may be, at any depth; None if it is none."""
    return next((path for path in wanted if name == path or name.endswith("/" + path)), None)


def from_zip(path, wanted):
    """name -> bytes of the regular files of a .zip that may be wanted; None for what is no regular file."""
    with zipfile.ZipFile(path) as archive:
        if len(archive.infolist()) > MOST_FILES:
            raise Refused(f"holds more than {MOST_FILES} files")
        found = {}
        for entry in archive.infolist():
            if wanted_of(entry.filename, wanted):
                is_link = (entry.external_attr >> 16) & 0o170000 not in (0, 0o100000)
                with archive.open(entry) as file:
                    found[entry.filename] = None if is_link else file.read(MOST_BYTES_OF_A_FILE + 1)
        return found


def from_tar(path, wanted):
    """The same of a .tar.gz."""
    found = {}
    with gzip.open(path) as stream, tarfile.open(fileobj=Limited(stream), mode="r|") as archive:
        for count, entry in enumerate(archive):
            if count >= MOST_FILES:
                raise Refused(f"holds more than {MOST_FILES} files")
            name = entry.name.removeprefix("./")
            if wanted_of(name, wanted):
                found[name] = archive.extractfile(entry).read(MOST_BYTES_OF_A_FILE + 1) if entry.isreg() else None
    return found


def from_folder(folder, wanted):
    """The same of a folder and of the folders in it."""
    found, top = {}, folder.resolve()
    prefixes = [""] + [f"{path.name}/" for path in sorted(folder.iterdir()) if path.is_dir()]
    for name in (prefix + path for prefix in prefixes for path in wanted):
        path = folder / name
        if path.is_symlink() or path.exists():
            regular = path.is_file() and path.resolve() == top / name  # no link on the way
            if regular:
                with path.open("rb") as file:
                    found[name] = file.read(MOST_BYTES_OF_A_FILE + 1)
            else:
                found[name] = None
    return found


def read_submission(submission, wanted):
    """The files asked for that a submission has, path -> bytes. Where it has several copies, as in a build folder, it is
    those nearest to its top. Refused says what is wrong with it."""
    path = submission.path
    try:
        read = from_folder if path.is_dir() else from_zip if path.name.endswith(".zip") else from_tar
        found = read(path, wanted)
    except Refused as refusal:
        raise Refused(f"{path.name}: {refusal}") from refusal
    except (OSError, EOFError, zlib.error, tarfile.TarError, zipfile.BadZipFile, NotImplementedError, RuntimeError,
            ValueError) as error:
        raise Refused(f"{path.name}: cannot be read: {error}") from error
    tops = {name[:len(name) - len(wanted_of(name, wanted))] for name in found}
    depth = min((top.count("/") for top in tops), default=0)
    nearest = sorted(top for top in tops if top.count("/") == depth)
    if len(nearest) > 1:
        raise Refused(f"{path.name}: holds several copies of the course: {', '.join(nearest)}")
    files = {path_: found[nearest[0] + path_] for path_ in wanted if nearest and nearest[0] + path_ in found}
    for name, content in files.items():
        if content is None:
            raise Refused(f"{path.name}: {name} is a link, or no file")
        if len(content) > MOST_BYTES_OF_A_FILE:
            raise Refused(f"{path.name}: {name} is larger than {MOST_BYTES_OF_A_FILE >> 20} MiB")
    return files


def digest_of(files):
    """SHA-256 over files, path -> bytes, as a hexadecimal text."""
    digest = hashlib.sha256()
    for path, content in sorted(files.items()):
        digest.update(f"{path}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()
