"""Reads the files that are asked for out of one submission: a process of its own, with limits, whatever an archive does to it.

    archives.py <REQUEST >ANSWER    [path, [file, ...]] -> {file: [its bytes in base64, ""] or [a sentence, true]}, or why all is unread

A submission is a folder, an archive in it or alone, or a single file. Nothing is unpacked: only regular files are read, so neither
names (absolute ones, ..) nor links reach anything else. A file is found at any depth, where its name can mean only one.
"""

import base64
import bz2
import functools
import gzip
import io
import itertools
import json
import lzma
import os
import re
import resource
import sys
import tarfile
import zipfile

sys.path.append(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "lib"))
from documents import shown  # noqa: E402

MOST_BYTES_OF_A_FILE = 1 << 20
MOST_BYTES_OF_AN_ARCHIVE = 256 << 20  # when it is expanded
MOST_BYTES_INSIDE = 64 << 20          # of an archive in another one
MOST_ARCHIVES_DEEP = 2
MOST_FILES = 100_000
LIMITS = {resource.RLIMIT_AS: 1 << 30, resource.RLIMIT_CPU: 20, resource.RLIMIT_FSIZE: 256 << 20, resource.RLIMIT_CORE: 0}
COMPRESSED = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}
OTHERS = {b"7z\xbc\xaf": "7z", b"Rar!": "RAR", b"(\xb5/\xfd": "zstd", b"\x1f\x9d": ".Z"}
ENDING = re.compile(r"\.(zip|tar|tgz|txz|tzst|tbz2?|(tar\.)?(gz|xz|bz2|zst|z)|7z|rar)$", re.IGNORECASE)
OF_MOODLE = re.compile(r"^.*_assignsubmission_file_", re.DOTALL)  # in front of a file's own name
OF_COPIES = re.compile(r"(\s*\(\d{1,3}\)|(\s-)?\s\(?(copy|kopie)\)?)(?=\.|\s\(|$)", re.IGNORECASE)  # answers-03 (1).toml, answers-03 - Copy (2).toml


class Unread(Exception):
    """Nothing can be read of a submission, or of an archive in it; the text is the end of a sentence."""


class Limited:
    """The bytes of a stream; more than the limit are refused."""

    def __init__(self, stream):
        self.stream, self.left = stream, MOST_BYTES_OF_AN_ARCHIVE

    def read(self, size):
        data = self.stream.read(min(size, self.left + 1))
        self.left -= len(data)
        if self.left < 0:
            raise Unread(f"expands to more than {MOST_BYTES_OF_AN_ARCHIVE >> 20} MiB")
        return data


# Each of the following yields (name, read) for what there is: read(n) gives the first n bytes, and is None for what is no regular file.

def of_folder(folder):
    todo = [("", folder)]
    while todo:
        prefix, place = todo.pop()
        try:
            inside = sorted(os.scandir(place), key=lambda entry: entry.name)
        except OSError as error:
            yield f"{prefix}, which cannot be read: {error.strerror}", None
            continue
        for entry in inside:
            if entry.is_dir(follow_symlinks=False):
                todo.append((f"{prefix}{entry.name}/", entry.path))
            else:
                yield prefix + entry.name, of_file(entry.path) if entry.is_file(follow_symlinks=False) else None


def of_file(path):
    def read(most):
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            return file.read(most)
    return read


def of_zip(file):
    with zipfile.ZipFile(file) as archive:
        for entry in archive.infolist():
            if not entry.filename.endswith(("/", "\\")):
                regular = (entry.external_attr >> 16) & 0o170000 in (0, 0o100000)
                yield entry.filename, functools.partial(of_member, archive, entry) if regular else None


def of_member(archive, entry, most):
    with archive.open(entry) as file:
        return file.read(most)


def of_tar(stream):
    with tarfile.open(fileobj=Limited(stream), mode="r|") as archive:
        for entry in archive:
            if not entry.isdir():
                yield entry.name, archive.extractfile(entry).read if entry.isreg() else None


def of_archive(file, name):
    first = file.read(262)
    file.seek(0)
    if kind := next((kind for magic, kind in OTHERS.items() if first.startswith(magic)), None):
        raise Unread(f"is a {kind} archive: hand in a .zip or a .tar.gz")
    if first.startswith(b"PK"):
        yield from of_zip(file)
    elif opened := next((opened for magic, opened in COMPRESSED.items() if first.startswith(magic)), None):
        with opened(file) as stream:
            yield from of_tar(stream)
    elif first[257:] == b"ustar":
        yield from of_tar(file)
    elif ENDING.search(name):
        raise Unread(f"is no archive, whatever its name: it is {'damaged' if first else 'empty'}")
    else:
        yield name, file.read


def unpacked(found, depth=MOST_ARCHIVES_DEEP):
    """The files with the contents of archives in place of them."""
    for name, read in found:
        if not (depth and read and ENDING.search(name)):
            yield name, read
            continue
        try:
            content = read(MOST_BYTES_INSIDE + 1)
            if len(content) > MOST_BYTES_INSIDE:
                raise Unread(f"is larger than {MOST_BYTES_INSIDE >> 20} MiB")
            yield from ((f"{name}/{inner}", of_inner) for inner, of_inner in unpacked(of_archive(io.BytesIO(content), name), depth - 1))
        except Exception as error:  # pylint: disable=broad-except
            yield f"{name}, which {why(error)}", None


def entries_of(path):
    if os.path.isdir(path):
        yield from unpacked(of_folder(path))
    elif os.path.isfile(path):
        with open(path, "rb") as file:
            yield from unpacked(of_archive(file, os.path.basename(path)))


def why(error):
    """The reason of an error, as the end of a sentence."""
    if isinstance(error, MemoryError):
        return "needs too much memory"
    if isinstance(error, UnicodeDecodeError):
        return "has names that it calls UTF-8 and are not: pack it anew"
    if isinstance(error, tarfile.ReadError):
        return f"holds no whole tar archive ({shown(str(error))}): hand in a .zip or a .tar.gz"
    if "is encrypted" in str(error):
        return "is encrypted: hand it in without a password"
    return shown(str(error) if isinstance(error, Unread) else f"cannot be read: {error or type(error).__name__}")[:500]


# ---- Which of them is meant ---------------------------------------------------------------------------------------------

def parts_of(name):
    """The folders and the file of a name, without what Windows and careless programs add."""
    return [part for part in (part.strip() for part in name.replace("\\", "/").split("/")) if part not in ("", ".")]


def plain(part):
    """The name without the additions of editors and browsers."""
    return OF_COPIES.sub("", OF_MOODLE.sub("", part)).lower().removesuffix(".txt").removesuffix(".toml")


def ranks_of(names, wanted):
    """For each file asked for, by how well they fit: (rank, depth) -> the names."""
    files, found = {}, {path: {} for path in wanted}
    for path in wanted:
        files.setdefault(plain(parts_of(path)[-1]), []).append((path, parts_of(path)))
    for name in names:
        parts = parts_of(name)
        meant = files.get(plain(parts[-1]), []) if parts and not ("__MACOSX" in parts or parts[-1].startswith("._")) else []
        for path, full in meant:
            end = parts[-len(full):]
            rank = 0 if end == full else 1 if list(map(plain, end)) == list(map(plain, full)) else 2
            if rank < 2 or len(meant) == 1:  # a name alone, where no other file has it
                found[path].setdefault((rank, len(parts)), []).append(name)
    return found


def listed(names):
    """The first names of many, in one line."""
    first = sorted(names, key=lambda name: (name.count("/"), name))[:8]
    return ", ".join(shown(" ".join(name.split()))[-80:] or "a file without a name" for name in first) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def chosen_of(names, wanted):
    """The names that are meant by the files asked for, name -> file, and sentences about those that have none or several."""
    chosen, missing, several = {}, {}, {}
    for path, ranks in ranks_of(names, wanted).items():
        if not ranks:
            missing[path] = f"{path} is missing. The submission holds {listed(names)}"
            continue
        chosen |= dict.fromkeys(nearest := ranks[min(ranks)], path)
        if len(nearest) > 1:
            several[path] = f"{path} is there {len(nearest)} times: {listed(nearest)}. Leave one"
    return chosen, missing, several


def read(path, wanted):
    """The files asked for, each with "", or a sentence about it. Unread if there is none."""
    names = list(dict.fromkeys(name for name, _ in itertools.islice(entries_of(path), MOST_FILES + 1)))
    if len(names) > MOST_FILES:
        raise Unread(f"holds more than {MOST_FILES:,} files: hand in those with exercises and answers")
    if not names:
        raise Unread("is empty")
    chosen, missing, several = chosen_of(names, wanted)
    if len(missing) == len(wanted):
        raise Unread(f"has none of the files that are graded, as {listed(wanted)}. It holds {listed(names)}")
    answer, digests = {}, {}
    for name, of_entry in entries_of(path) if chosen else []:
        if name in chosen:  # the last one of a name counts, as when an archive is unpacked
            answer[chosen[name]] = content_of(name, of_entry)
            digests[name] = hash(answer[chosen[name]])
    answer |= {path: (several[path], True) for path in several if len({digests[name] for name in chosen if chosen[name] == path}) > 1}
    if all(why for _, why in answer.values()):
        raise Unread(f"has nothing that can be graded: {'; '.join(sentence for sentence, _ in answer.values())}")
    return answer | {path: (sentence, True) for path, sentence in missing.items()}


def content_of(name, of_entry):
    if of_entry is None:
        return f"{listed([name])} is a link, or no file", True
    try:
        content = of_entry(MOST_BYTES_OF_A_FILE + 1)
    except Exception as error:  # pylint: disable=broad-except  # it is this file's own
        return f"{listed([name])} {why(error)}", True
    if len(content) > MOST_BYTES_OF_A_FILE:
        return f"{listed([name])} is larger than {MOST_BYTES_OF_A_FILE >> 20} MiB", True
    return base64.b64encode(content).decode(), ""


def limit_this_process():
    """Sets the limits, or those of the machine where they are lower."""
    for limit, most in LIMITS.items():
        machines = resource.getrlimit(limit)[1]
        hard = most + 1 if machines == resource.RLIM_INFINITY else min(most + 1, machines)
        resource.setrlimit(limit, (min(most, hard), hard))  # at the hard one there is no signal that says why


def main():
    try:
        limit_this_process()
        answer = read(*json.load(sys.stdin))
    except Exception as error:  # pylint: disable=broad-except  # a damaged archive may raise anything
        answer = why(error)
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
