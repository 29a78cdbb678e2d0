"""Object files that a starter repository brings along, made from its own files, so that only what a student writes is compiled.

As a program it stands in front of the compiler, in the folder of the build. It compiles, and in FOLDER it keeps the object file and
what it is made of; or takes it from there, if it was made of the same command and files:

    prebuilt.py keep|use FOLDER COMPILER ARGUMENT...
"""

import hashlib
import io
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tarfile

ARCHIVE = "objects.tar.gz"  # at the root of a starter repository
WORK = "@work@"             # stands for the folder around the build, which is another one on each machine


def makers():
    """The kind of processor, and the first line that the compiler, and MPI, say of themselves."""
    said = [platform.machine()]
    for command in (os.environ.get("CXX") or "c++", "mpirun"):
        done = subprocess.run(f"{command} --version", shell=True, capture_output=True, check=False, text=True)
        said.append(done.stdout.split("\n")[0] or f"no {command}")
    return ", ".join(said)


def pack_objects(folder):
    """The archive of what was kept in a folder."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz", compresslevel=6, pax_headers={"comment": makers()}) as archive:
        archive.add(folder, "objects")
    return content.getvalue()


def unpack_objects(archive, folder):
    """Unpacks it once, where the same compiler and MPI are here. Returns "", or in words why it is of no use."""
    if folder.is_dir():
        return ""
    if not archive.is_file():
        return "not here"
    with tarfile.open(archive) as file:
        if (made_by := file.pax_headers["comment"]) != makers():
            return f"made by {made_by}; here is {makers()}"
        file.extractall(folder.parent)
    return ""


def digest_of(words, work, rules):
    """The digest of a command and of all files that it reads, as rules of make name them."""
    digest = hashlib.sha256(" ".join(words).replace(work, WORK).encode())
    for name in re.split(r"(?<!\\)\s+", "".join(rule.read_text(encoding="utf-8").partition(":")[2].replace("\\\n", "") for rule in rules)):
        if name and not name.endswith(".gch"):
            path = pathlib.Path(name.replace("\\ ", " ").replace(WORK, work))
            digest.update(path.read_bytes().replace(work.encode(), WORK.encode()))
    return digest.hexdigest()


def main():
    mode, folder, *words = sys.argv[1:]
    work, (output, rule) = str(pathlib.Path.cwd().parent), (pathlib.Path(words[words.index(word) + 1]) for word in ("-o", "-MF"))
    kept, escaped = folder / output, work.replace(" ", "\\ ")
    digest, kept_rule = (kept.with_suffix(end) for end in (".digest", ".rule"))
    rules = [kept_rule, *(folder / pathlib.Path(os.path.relpath(word) + ".rule") for word in words if word.endswith("cmake_pch.hxx"))]
    try:
        if mode == "use" and kept.is_file() and digest_of(words, work, rules) == digest.read_text(encoding="ascii"):
            shutil.copyfile(kept, output)
            rule.write_text(kept_rule.read_text(encoding="utf-8").replace(WORK, escaped), encoding="utf-8")
            return 0
    except FileNotFoundError:  # a file that it was made of is not here
        pass
    status = subprocess.run(words, check=False).returncode
    if mode == "keep" and status == 0:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept_rule.write_text(rule.read_text(encoding="utf-8").replace(escaped, WORK), encoding="utf-8")
        if kept.suffix == ".o":  # of a precompiled header only what it is made of is kept, for it is larger than all else
            digest.write_text(digest_of(words, work, rules), encoding="ascii")
            shutil.copyfile(output, kept)
    return status


if __name__ == "__main__":
    sys.exit(main())
