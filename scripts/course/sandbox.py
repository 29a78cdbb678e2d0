"""Runs commands of programs that are not trusted: they can do no harm, and of a command that has ended nothing is left.

    limits = Limits(memory=2 << 30, processes=64)
    deadline = Deadline(60)                                # seconds of an idle machine, for all commands together
    box = Sandbox(tree, limits=limits, deadline=deadline)
    done = box.run(["g++", "-o", "/tmp/a", "a.cpp"])       # Finished(status, stdout, stderr, reason)
    with box.start([program, "3"], pass_fds=(socket.fileno(),)) as process:
        ...                                                # a conversation; process.kill() ends it

Inside there are the system's folders, the tree and other named folders, all read-only and at their own paths, and
/tmp, which is empty at each command. There are no other processes, no network but the loopback interface, none of the
caller's variables or open files, and a user that owns nothing. Exit status and output are the command's own words: it
can end with 0 and print what it likes, so neither proves anything.
"""

import dataclasses
import json
import math
import os
import pathlib
import secrets
import selectors
import signal
import stat
import subprocess
import tempfile
import threading
import time

import sandbox_walls as walls
from exercise_tree import Refused
from processes import Deadline, Stillness, processor_s

FLOOD = 8  # a command is killed when it writes this many times the output that is kept
DEEPEST = 100  # folders in one another that are looked into
ASLEEP_S = 5  # a command that does not run at all for so long waits for something else than a processor
REASONS = {signal.SIGXCPU: "too much processor time", signal.SIGXFSZ: "too large a file"}

# Ends if the caller has ended, joins the control groups, then becomes the command:
#   sh -c LAUNCHER sh CALLER GROUPS... -- COMMAND...
LAUNCHER = """[ "$PPID" = "$1" ] || exit 125; shift
while [ "$1" != -- ]; do echo $$ >"$1" || exit 125; shift; done; shift
exec "$@\""""


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of one command of a sandbox."""

    memory: int = 2 << 30           # bytes of all processes together; of each, where control groups are not allowed
    processes: int = 64             # at a time, threads included
    cpu_s: int = 60                 # processor seconds of each process
    file_bytes: int = 64 << 20      # of each file
    writable_bytes: int = 256 << 20  # of all files together: a quarter in /dev/shm, the rest in /tmp
    output_bytes: int = 1 << 20     # kept of stdout and of stderr; FLOOD times as many, and the command is killed
    open_files: int = 512           # of each process


@dataclasses.dataclass(frozen=True)
class Finished:
    """End of a command. A status above 128 is a signal's number plus 128."""

    status: int
    stdout: bytes
    stderr: bytes
    reason: str      # "ended", "timed out", "too much memory", "too much output", "killed by signal 11", ...
    protection: str  # what the command ran in


class Process:
    """A command that runs in a sandbox. As a context manager it ends the command, with all its processes."""

    def __init__(self, popen, box, group, files=(), report=None, mark=b""):
        self.stdin, self.stdout, self.stderr = popen.stdin, popen.stdout, popen.stderr
        self._popen, self._box, self._group, self._report, self._mark = popen, box, group, report, mark
        self._files = files  # in place of pipes: on the disk of the caller
        # Number of the namespace, and file descriptor of its first process; None without, or if it has ended.
        self._namespace, self._first = _first_process(report.readline()) if report else (None, None)
        self._reason, self._ended, self._finished = "", threading.Event(), None
        self._lock = threading.Lock()
        self._watch = threading.Thread(target=self._watch_limits, daemon=True)
        self._watch.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
        self.wait()
        for pipe in (self.stdin, self.stdout, self.stderr):
            if pipe:
                pipe.close()

    @property
    def pid(self):
        """Id of the process outside that holds the sandbox."""
        return self._popen.pid

    def poll(self):
        """The exit status, or None while it runs."""
        return self._popen.poll()

    def kill(self, reason="killed"):
        """Ends all processes of the sandbox."""
        with self._lock:
            if self._ended.is_set() or self._popen.poll() is not None:
                return
            self._reason = self._reason or reason
            if self._first is not None:
                try:
                    signal.pidfd_send_signal(self._first, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            self._popen.kill()

    def wait(self):
        """Waits for the end of the command and for that of all its processes. @return Finished, without output."""
        if self._finished:
            return self._finished
        status = self._popen.wait()
        self._ended.set()
        self._watch.join()
        self._end_survivors()
        status = status if status >= 0 else 128 - status
        reason = self._why(status)
        self._box.deadline.end(self, self._processor_s() if self._group else None)
        if self._group:
            self._group.remove()
        if self._first is not None:
            os.close(self._first)
        self._finished = Finished(status, b"", b"", reason, self._box.protection)
        if self._report:
            with self._report:
                started = "exit-code" in self._report.read()
            if not started and reason in ("ended", "killed by signal 9"):
                raise Refused(f"bwrap ended with status {status} before the command was started")
        return self._finished

    def _why(self, status):
        excess = self._group.excess() if self._group else ""
        if excess and (status != 0 or self._reason):
            return excess
        if self._reason:
            return self._reason
        if 128 < status < 128 + signal.NSIG:
            return REASONS.get(status - 128, f"killed by signal {status - 128}")
        return "ended"

    def _watch_limits(self):
        """Kills the command when its time is over, or when it has written too much into a folder or a stream on disk."""
        try:
            pause_s, stillness = 0.1, Stillness([self.pid], ASLEEP_S, awake=b"R")
            while not self._ended.wait(max(0, min(pause_s, self._box.deadline.left_s()))):
                began = time.monotonic()
                self._box.deadline.count(self, self._processor_s(), stillness.lasts())
                if self._box.deadline.left_s() <= 0:
                    return self.kill("timed out")
                if self._box.writable and used_bytes(self._box.writable) > self._box.limits.writable_bytes:
                    return self.kill("too many bytes written")
                if any(os.fstat(file.fileno()).st_blocks * 512 > FLOOD * self._box.limits.output_bytes for file in self._files):
                    return self.kill("too much output")
                pause_s = max(0.1, 10 * (time.monotonic() - began))
        except Exception as error:  # pylint: disable=broad-except  # what cannot be watched must not run
            self.kill(f"not to be watched: {type(error).__name__}: {error}")

    def _processor_s(self):
        return self._group.processor_s() if self._group else processor_s(self.pid)

    def survivors(self):
        """The processes of this sandbox that still run: by namespace, control group or, without a sandbox, by mark."""
        found = self._group.members() if self._group else set()
        for entry in os.scandir("/proc"):
            if entry.name.isdigit() and self._is_mine(entry.path):
                found.add(int(entry.name))
        return {pid for pid in found if _runs(pid)}

    def _is_mine(self, path):
        try:
            if self._namespace:
                return os.stat(f"{path}/ns/pid").st_ino == self._namespace
            return bool(self._mark) and self._mark in pathlib.Path(path, "environ").read_bytes()
        except OSError:
            return False

    def _end_survivors(self):
        """Verifies that nothing of the sandbox is left. The kernel ends a namespace with its first process."""
        end = time.monotonic() + 20
        while found := self.survivors():
            if time.monotonic() > end:
                raise Refused(f"processes of a sandbox cannot be ended: {sorted(found)}")
            for pid in found:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.01)


def require_sandbox():
    """Refused where there can be no sandbox."""
    works = walls.bubblewrap_works()
    if works is not True:
        raise Refused(f"programs of others cannot be run safely here: {works}.\nWhere you trust them, or throw the machine away "
                      "afterwards, add --no-sandbox: SECURITY.md says what is lost.")


class Sandbox:
    """Walls inside which commands of one student run, one at a time or several.

    @param tree        folder that is seen inside, read-only, and in which commands start.
    @param read_only   further files and folders that are seen inside.
    @param writable    empty folder that is written and stays afterwards, None for none. On disk its size can only be watched.
                       Where root grades it is given to user 65534.
    @param protected   False: the commands run as the caller, with nothing but limits of each process (--no-sandbox).
    @failure Refused   if protection is wanted and this machine allows none, or if a folder cannot be seen inside.
    """

    def __init__(self, tree, limits=Limits(), deadline=None, read_only=(), writable=None, protected=True):
        self.limits, self.deadline = limits, deadline or Deadline(60)
        self.tree = pathlib.Path(tree).resolve()
        self.read_only = [self.tree, *(pathlib.Path(path).resolve() for path in read_only)]
        self.writable = pathlib.Path(writable).resolve() if writable else None
        self.protected = protected
        self._parents = walls.control_groups()
        self.protection = self._choose()
        if protected and os.getuid() == 0:
            self._admit()

    def _choose(self):
        groups = "control groups" if self._parents else "limits of each process only"
        if not self.protected:
            return f"no sandbox, {groups}"
        require_sandbox()
        return f"bubblewrap, {groups}" + ("" if walls.system_call_filter() else ", no filter of system calls")

    def _admit(self):
        """Lets user 65534 in, whose eyes see only what everybody may."""
        for path in self.read_only:
            wanted = stat.S_IROTH | (stat.S_IXOTH if path.is_dir() else 0)
            if path.stat().st_mode & wanted != wanted:
                raise Refused(f"{path} is not readable for everybody, and root's sandbox runs as user {walls.GUEST}.\n"
                              f"Allow it: chmod o+rX {path}")
        if self.writable:
            folder = os.open(self.writable, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                # What is in it already may be written by another command meanwhile, and could be a link by then.
                if os.fstat(folder).st_uid != walls.GUEST and os.listdir(folder):
                    raise Refused(f"{self.writable} is not empty. Name an empty folder for what a sandbox writes")
                os.fchown(folder, walls.GUEST, walls.GUEST)
            finally:
                os.close(folder)

    def start(self, command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=None,
              pass_fds=(), cwd=None):
        """Starts a command. @return Process; its pipes are those that were asked for with subprocess.PIPE."""
        group = walls.ControlGroup(self._parents, self.limits.memory, self.limits.processes) if self._parents else None
        variables = {**walls.environment(), **(env or {})}
        inner = [*walls.prlimit(self.limits, bool(group)), "--", *map(str, command)]
        doors = group.doors() if group else []
        launcher = ["setpriv", "--pdeathsig=KILL", "sh", "-c", LAUNCHER, "sh", str(os.getpid()), *doors, "--"]
        streams = {"stdin": stdin, "stdout": stdout, "stderr": stderr, "start_new_session": True}
        files = [stream for stream in (stdin, stdout, stderr) if not isinstance(stream, int)]
        if not self.protected:
            mark = f"sandbox-{secrets.token_hex(8)}"
            variables["RANKWISE_SANDBOX"] = mark
            popen = subprocess.Popen([*launcher, *inner], env=variables, pass_fds=pass_fds, cwd=cwd or self.tree,
                                     **streams)
            return Process(popen, self, group, files, mark=mark.encode())
        outer, user = walls.bubblewrap(self.limits, self.read_only, self.writable, cwd or self.tree)
        report_in, report_out = os.pipe()
        passed = [report_out]
        outer += ["--json-status-fd", str(report_out)]
        if program := walls.system_call_filter():
            passed.append(_filled(program))
            outer += ["--seccomp", str(passed[-1])]
        popen = subprocess.Popen([*launcher, *outer, "--", *user, *inner], env=variables, pass_fds=(*passed, *pass_fds),
                                 **streams)
        for descriptor in passed:
            os.close(descriptor)
        return Process(popen, self, group, files, open(report_in))

    def run(self, command, stdin=b"", env=None, cwd=None):
        """Runs a command to its end, or kills it at a limit. @return Finished, with what is kept of its output."""
        with tempfile.TemporaryFile() as file:
            file.write(stdin)
            file.flush()
            # The descriptor that goes inside only reads.
            with open(f"/proc/self/fd/{file.fileno()}", "rb") as source, \
                    self.start(command, stdin=source, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env,
                               cwd=cwd) as process:
                kept = self._collect(process)
                return dataclasses.replace(process.wait(), stdout=kept[0], stderr=kept[1])

    def _collect(self, process):
        """Keeps the beginning of stdout and stderr, until both have ended."""
        streams, kept, written = (process.stdout, process.stderr), [bytearray(), bytearray()], 0
        with selectors.DefaultSelector() as selector:
            for index, stream in enumerate(streams):
                selector.register(stream, selectors.EVENT_READ, index)
            while selector.get_map():
                for key, _ in selector.select():
                    data = os.read(key.fd, 1 << 16)
                    if not data:
                        selector.unregister(key.fileobj)
                    written += len(data)
                    kept[key.data] += data[:self.limits.output_bytes - len(kept[key.data])]
                    if written > FLOOD * self.limits.output_bytes:
                        process.kill("too much output")
        return [bytes(data) for data in kept]

    def read(self, name, limit_bytes=1 << 20):
        """A file that commands left in the writable folder. Links are not followed. @failure Refused"""
        *folders, last = pathlib.PurePosixPath(name).parts
        if name.startswith("/") or ".." in (*folders, last):
            raise Refused(f"{name} is not a name inside the folder")
        folder = os.open(self.writable, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for part in folders:
                inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
                os.close(folder)
                folder = inner
            with open(os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder), "rb") as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise Refused(f"{name} is not a file")
                data = file.read(limit_bytes + 1)
        except OSError as error:
            raise Refused(f"{name} cannot be read: {error.strerror}") from None
        finally:
            os.close(folder)
        if len(data) > limit_bytes:
            raise Refused(f"{name} is longer than {limit_bytes} bytes")
        return data


def used_bytes(name, parent=None, depth=0):
    """The bytes on disk of all files in a folder, as far as they can be counted while they change. No link is followed. What
    cannot be looked into is infinitely large."""
    try:
        folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    except (FileNotFoundError, NotADirectoryError):  # it was one a moment ago
        return 0
    except OSError:
        return math.inf
    total = 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
                    is_folder = entry.is_dir(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if is_folder:
                    total += used_bytes(entry.name, folder, depth + 1) if depth < DEEPEST else math.inf
    finally:
        os.close(folder)
    return total


def _runs(pid):
    """True if a process has a thread that has not ended; its parent may not have asked for its status yet."""
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state not in "ZX" or len(os.listdir(f"/proc/{pid}/task")) > 1
    except OSError:
        return False


def _filled(data):
    """A file descriptor from which @p data can be read."""
    descriptor = os.memfd_create("filter")
    os.write(descriptor, data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _first_process(report):
    """Number of the new namespace, descriptor of its first process (None if that has ended), from bwrap's report."""
    if not report:
        return None, None
    found = json.loads(report)
    namespace = found["pid-namespace"]
    try:
        first = os.pidfd_open(found["child-pid"])
        if os.stat(f"/proc/{found['child-pid']}/ns/pid").st_ino == namespace:
            return namespace, first
        os.close(first)
    except OSError:
        pass
    return namespace, None
