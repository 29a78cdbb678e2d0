"""Files that scripts write: each has its old content or its new one, whatever happens."""

import contextlib
import errno
import os
import pathlib
import secrets
import stat
import sys
import time

MOST_LINKS = 40  # the limit of Linux
PATIENCE_S = 60  # until a pipe has a reader
KEPT = set()  # paths of the files that are not replaced


def keep(path):
    """From now on write_whole() replaces this file under no name: it is what something else is made of."""
    KEPT.add(os.path.abspath(path))


def write_whole(path, content):
    """Replaces a file by text or bytes, which are on the disk before they get its name; it keeps its owner, permissions and
    access list (ACL). A link leads to the file that is replaced; a device or a pipe, as /dev/stdout, is written to.
    @throws OSError  that names the file; what was there is kept."""
    data = content.encode("utf-8", "replace") if isinstance(content, str) else content
    try:
        chain = links(path)
        old = os.stat(path) if os.path.exists(path) else None
        file_or_none = old is None or stat.S_ISREG(old.st_mode) or stat.S_ISDIR(old.st_mode)
        if not file_or_none or any(name.is_relative_to(place) for name in chain for place in ("/proc", "/dev/fd")):
            with open(path, "ab", opener=to_add_to) as file:
                file.write(data)
                if sys.stdout and os.path.sameopenfile(file.fileno(), 1):
                    sys.stdout = sys.stderr  # what the script says of the file is no part of it
        else:
            replace(os.path.realpath(path), data, old)
    except OSError as error:
        raise OSError(f"{path} cannot be written: {error.strerror}") from error


def to_add_to(path, flags):
    """Opens a device or a pipe, for open(). For a reader of the pipe it waits a minute."""
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            descriptor = os.open(path, flags | os.O_NONBLOCK)
            os.set_blocking(descriptor, True)
            return descriptor
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            if time.monotonic() > end:
                raise OSError(errno.ENXIO, "no program has opened this pipe to read for a minute") from None
            time.sleep(0.01)


def without_links(path, flags):
    """Opens a file, for open(); a link instead of the file is an OSError."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def links(path):
    """A path and the target of each link in the chain that begins there.
    @throws OSError  for a link of another user in a folder where everybody may make one, who would choose the file."""
    chain = [pathlib.Path(path).absolute()]
    while chain[-1].is_symlink():
        if len(chain) > MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        chain.append(chain[-1].parent / os.readlink(chain[-1]))
    for place in {place for name in chain for place in (name, *name.parents) if place.is_symlink()}:
        folder, owner = place.parent.stat(), place.lstat().st_uid
        if folder.st_mode & stat.S_IWOTH and owner not in (os.geteuid(), folder.st_uid):
            raise PermissionError(errno.EACCES, f"{place} is a link of another user")
    return chain


def copy_attributes(path, descriptor):
    """Gives the open file the access list and the users' attributes of another, where the system has such."""
    try:
        names = os.listxattr(path) if sys.platform == "linux" else []
    except OSError as error:
        if error.errno != errno.ENOTSUP:
            raise
        names = []
    for name in names:
        if name.startswith("user.") or name == "system.posix_acl_access":
            os.setxattr(descriptor, name, os.getxattr(path, name))


def replace(path, data, old):
    """Replaces a file that is no link; old is its status, None if it does not exist."""
    if old and not (old.st_mode & 0o222 and os.access(path, os.W_OK)):
        raise PermissionError(errno.EACCES, "It is write-protected")
    if old and any(os.path.exists(kept) and os.path.samefile(kept, path) for kept in KEPT):
        raise FileExistsError(errno.EEXIST, "It is read here, and would be lost")
    folder = os.path.dirname(path)
    temporary = os.path.join(folder, f".{secrets.token_hex(8)}.tmp")
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)  # it may not be readable: found out before anything is replaced
    try:
        descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_WRONLY, 0o600 if old else 0o666)
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                own = os.fstat(descriptor)
                if old and (old.st_uid, old.st_gid) != (own.st_uid, own.st_gid):
                    os.fchown(descriptor, old.st_uid, old.st_gid)
                if old:
                    os.fchmod(descriptor, stat.S_IMODE(old.st_mode))
                    copy_attributes(path, descriptor)
                os.fsync(descriptor)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.remove(temporary)
            raise
        os.fsync(place)
    finally:
        os.close(place)
