"""Walls of a sandbox: control groups, a filter of system calls, bubblewrap's arguments, a clean environment."""

import functools
import itertools
import os
import pathlib
import platform
import re
import shutil
import struct
import subprocess
import time

GUEST = 65534  # the user inside; where root grades, also outside
ROOT = pathlib.Path(__file__).resolve().parents[2]
SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
CONFIGURATION = ("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "openmpi", "pmix")
PROCESSORS = "/sys/devices/system"  # where Open MPI counts cores


# ---------------------------------------------------------------------------------------------------------------------
# Control groups: limits of all processes of a sandbox together
# ---------------------------------------------------------------------------------------------------------------------

class ControlGroup:
    """One control group (version 2), or one each for memory, processes and processor time (version 1), for one command."""

    _numbers = itertools.count()

    def __init__(self, parents, memory, processes):
        """Makes the groups below @p parents; OSError where that is not allowed."""
        self.folders = []
        version_2 = len(set(parents)) == 1
        try:
            for parent in dict.fromkeys(parents):
                folder = parent / f"rankwise-{os.getpid()}-{next(self._numbers)}"
                folder.mkdir()
                self.folders.append(folder)
            self.memory, self.pids, self.time = self.folders if len(self.folders) == 3 else self.folders * 3
            (self.memory / ("memory.max" if version_2 else "memory.limit_in_bytes")).write_text(str(memory))
            swap = self.memory / ("memory.swap.max" if version_2 else "memory.memsw.limit_in_bytes")
            if swap.exists():
                swap.write_text("0" if version_2 else str(memory))
            (self.pids / "pids.max").write_text(str(processes))
        except OSError:
            self.remove()
            raise
        self.memory_events = self.memory / ("memory.events" if version_2 else "memory.oom_control")

    def doors(self):
        """The files into which a process writes its number to become a member."""
        return [str(folder / "cgroup.procs") for folder in self.folders]

    def members(self):
        """The processes that are in it; none once it is removed."""
        files = [folder / "cgroup.procs" for folder in self.folders if folder.exists()]
        return {int(line) for file in files for line in file.read_text().split()}

    def processor_s(self):
        """Processor seconds of all its processes, of those that have ended, too."""
        if self.time == self.memory:
            return _event(self.time / "cpu.stat", "usage_usec") / 1e6
        return int((self.time / "cpuacct.usage").read_text()) / 1e9

    def excess(self):
        """The limit that was met: "too much memory", "too many processes" or ""."""
        if _event(self.memory_events, "oom_kill"):
            return "too much memory"
        return "too many processes" if _event(self.pids / "pids.events", "max") else ""

    def remove(self):
        """Removes the groups; the kernel may need a moment after the last process has ended."""
        for folder in self.folders:
            for _ in range(200):
                try:
                    folder.rmdir()
                    break
                except OSError:
                    time.sleep(0.01)


def _event(path, name):
    match = re.search(rf"^{name} (\d+)$", path.read_text(), re.MULTILINE)
    return int(match.group(1)) if match else 0


def _candidates():
    """Triples of folders (memory, processes, processor time) below which a group may be allowed; thrice the same in version 2."""
    mount = pathlib.Path("/sys/fs/cgroup")
    try:
        lines = pathlib.Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    mine = {}
    for line in lines:
        _, names, path = line.split(":", 2)
        mine.update((name, path.lstrip("/")) for name in names.split(","))
    names = ("memory", "pids", "cpuacct")
    if all(name in mine for name in names):
        yield tuple(mount / name / mine[name] for name in names)
        yield tuple(mount / name for name in names)
    elif "" in mine:
        own = mount / mine[""]
        for folder in (own, own.parent):
            if folder == mount or mount in folder.parents:
                yield folder, folder, folder


def _remove_forgotten(parents):
    """Removes the groups of callers that were killed."""
    for folder in [folder for parent in set(parents) for folder in parent.glob("rankwise-*-*")]:
        if not os.path.exists(f"/proc/{folder.name.split('-')[1]}"):
            try:
                folder.rmdir()
            except OSError:
                pass  # another caller was faster, or its processes are about to end


@functools.lru_cache(None)
def control_groups():
    """The folders below which control groups can be made, or None."""
    for parents in _candidates():
        try:
            _remove_forgotten(parents)
            group = ControlGroup(parents, 1 << 30, 64)
            try:
                # Joining is allowed only where the folder above both groups may be written.
                subprocess.run(["sh", "-c", 'for door; do echo $$ >"$door" || exit 1; done', "sh", *group.doors()],
                               check=True, stderr=subprocess.DEVNULL)
                return parents
            finally:
                group.remove()
        except (OSError, subprocess.SubprocessError):
            continue
    return None


# ---------------------------------------------------------------------------------------------------------------------
# The filter of system calls
# ---------------------------------------------------------------------------------------------------------------------

# What neither a compiler nor Open MPI needs, and through what holes in the kernel were reached: namespaces, mounts,
# other processes' memory, keys, programs for the kernel, news of who opens a file, what of a file is in memory. By processor: its
# number for seccomp, then the calls' numbers.
DENIED = {
    "x86_64": (0xC000003E, {
        "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "setns": 308, "open_by_handle_at": 304,
        "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "mount_setattr": 442,
        "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "pidfd_getfd": 438, "syslog": 103,
        "add_key": 248, "request_key": 249, "keyctl": 250, "bpf": 321, "perf_event_open": 298, "userfaultfd": 323,
        "mincore": 27, "fadvise64": 221, "preadv2": 327, "cachestat": 451,
        "io_uring_setup": 425, "inotify_init": 253, "inotify_init1": 294, "fanotify_init": 300}, {"clone": 56, "unshare": 272}),
    "aarch64": (0xC00000B7, {
        "mount": 40, "umount2": 39, "pivot_root": 41, "chroot": 51, "setns": 268, "open_by_handle_at": 265,
        "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "mount_setattr": 442,
        "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "pidfd_getfd": 438, "syslog": 116,
        "add_key": 217, "request_key": 218, "keyctl": 219, "bpf": 280, "perf_event_open": 241, "userfaultfd": 282,
        "mincore": 232, "fadvise64": 223, "preadv2": 286, "cachestat": 451,
        "io_uring_setup": 425, "inotify_init1": 26, "fanotify_init": 262}, {"clone": 220, "unshare": 97}),
}
CLONE3 = 435
FCNTL = {"x86_64": 72, "aarch64": 25}
SEEN_BY_ALL = (6, 7, 37, 38, 1024, 1026)  # of fcntl: locks of bytes in a file, leases, news of a folder; ranks could signal with them
FLOCK = {"x86_64": 73, "aarch64": 32}  # does nothing: a report locks the file that it is written to
NEW_USER_NAMESPACE = 0x10000000
EPERM, ENOSYS = 1, 38


def system_call_filter():
    """The seccomp program that refuses the calls of DENIED, signals through files and new user namespaces; None for other processors."""
    if platform.machine() not in DENIED:
        return None
    architecture, denied, flagged = DENIED[platform.machine()]
    load, equal, at_least, any_bit, end = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, kill, error = 0x7FFF0000, 0x80000000, 0x00050000
    program = [(load, 0, 0, 4), (equal, 1, 0, architecture), (end, 0, 0, kill), (load, 0, 0, 0)]
    program += [(at_least, 0, 1, 0x40000000), (end, 0, 0, error | ENOSYS)]  # the x32 calls of x86_64
    for number in denied.values():
        program += [(equal, 0, 1, number), (end, 0, 0, error | EPERM)]
    program += [(equal, 0, 1, FLOCK[platform.machine()]), (end, 0, 0, error)]
    program += [(equal, 0, len(SEEN_BY_ALL) + 3, FCNTL[platform.machine()]), (load, 0, 0, 24)]
    program += [(equal, len(SEEN_BY_ALL) - i, 0, command) for i, command in enumerate(SEEN_BY_ALL)]
    program += [(end, 0, 0, allow), (end, 0, 0, error | EPERM)]
    # The flags of clone3 are out of a filter's sight; the C library falls back to clone where there is none.
    program += [(equal, 0, 1, CLONE3), (end, 0, 0, error | ENOSYS)]
    for number in flagged.values():
        program += [(equal, 0, 4, number), (load, 0, 0, 16), (any_bit, 0, 1, NEW_USER_NAMESPACE),
                    (end, 0, 0, error | EPERM), (end, 0, 0, allow)]
    program += [(end, 0, 0, allow)]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


# ---------------------------------------------------------------------------------------------------------------------
# bubblewrap
# ---------------------------------------------------------------------------------------------------------------------

def bubblewrap(limits, read_only, writable, cwd):
    """The arguments of bwrap, up to the command: what is seen inside, and which namespaces are new.

    @return two lists: bwrap's arguments, and the command that changes to user 65534 inside, empty if bwrap does that.
    """
    # The command runs with a path of its own, on which a bwrap of the caller's need not be.
    command = [shutil.which("bwrap"), "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try",
               "--hostname", "sandbox", "--new-session", "--die-with-parent"]
    for name in SYSTEM:
        if os.path.islink(f"/{name}"):
            command += ["--symlink", os.readlink(f"/{name}"), f"/{name}"]
        else:
            command += ["--ro-bind-try", f"/{name}", f"/{name}"]
    for folder in ("/etc", "/sys", "/sys/devices"):
        command += ["--perms", "0755", "--dir", folder]
    for path in [f"/etc/{name}" for name in CONFIGURATION] + [PROCESSORS]:
        command += ["--ro-bind-try", path, path]
    command += ["--proc", "/proc", "--dev", "/dev"]
    # A quarter of the bytes is for shared memory.
    shared = limits.writable_bytes // 4
    for path, size in (("/dev/shm", shared), ("/tmp", limits.writable_bytes - shared)):
        command += ["--perms", "1777", *(["--size", str(size)] if _limits_files() else []), "--tmpfs", path]
    bound = [*read_only, *([writable] if writable else [])]
    for folder in sorted({folder for path in bound for folder in path.parents}):
        command += ["--perms", "0755", "--dir", str(folder)]
    for path in read_only:
        command += ["--ro-bind", str(path), str(path)]
    if writable:
        command += ["--bind", str(writable), str(writable)]
    command += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", str(cwd)]
    if os.getuid() == 0:
        # Root's own number would open root's files; only a real change of user does not.
        for capability in ("SETUID", "SETGID", "SETPCAP"):
            command += ["--cap-add", f"CAP_{capability}"]
        user = ["setpriv", f"--reuid={GUEST}", f"--regid={GUEST}", "--clear-groups", "--bounding-set=-all",
                "--inh-caps=-all"]
    else:
        command += ["--unshare-user", "--uid", str(GUEST), "--gid", str(GUEST), "--cap-drop", "ALL"]
        user = []
    return command, user


def prlimit(limits, grouped):
    """The command that sets the limits of each process; memory and processes too, unless a control group holds them."""
    command = ["prlimit", "--core=0", f"--cpu={limits.cpu_s}:{limits.cpu_s + 1}", f"--fsize={limits.file_bytes}",
               f"--nofile={limits.open_files}"]
    return command if grouped else command + [f"--data={limits.memory}", f"--nproc={limits.processes}"]


@functools.lru_cache(None)
def _limits_files():
    """True if bwrap limits the size of /tmp (0.7 or newer). Where it does not, control groups count files as memory."""
    return b"--size" in subprocess.run(["bwrap", "--help"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout


# Switches of the kernel that forbid namespaces of users: the file, what it then holds, how to allow them, and who forbids.
SWITCHES = (("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1", "kernel.apparmor_restrict_unprivileged_userns=0",
             "AppArmor, as on Ubuntu 24.04 and newer,"),
            ("/proc/sys/kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1", "the kernel"),
            ("/proc/sys/user/max_user_namespaces", "0", "user.max_user_namespaces=10000", "the kernel"))


def how_to_allow_namespaces(switches=SWITCHES):
    """Advice that lets bubblewrap make namespaces on this machine."""
    for path, forbidden, setting, who in switches:
        if os.path.isfile(path) and pathlib.Path(path).read_text().strip() == forbidden:
            return (f"{who} forbids namespaces of users. Until the next start this allows them: sudo sysctl -w {setting}; and for "
                    f"ever: echo {setting} | sudo tee /etc/sysctl.d/60-rankwise.conf")
    return ("bubblewrap needs namespaces, which containers often forbid. Grade outside of it, or start it with docker run "
            "--security-opt seccomp=unconfined --security-opt apparmor=unconfined, and for root also --cap-add SYS_ADMIN")


@functools.lru_cache(None)
def bubblewrap_works():
    """True where a command can run in bubblewrap, else a text that says why it cannot, and what to do."""
    if not shutil.which("bwrap"):
        return "bwrap is not on the path. Install bubblewrap: scripts/setup.sh --grading"
    missing = [tool for tool in ("prlimit", "setpriv") if not shutil.which(tool)]
    if missing:
        return f"{missing[0]} is not on the path. Install util-linux"
    if not _limits_files() and not control_groups():
        return ("bwrap is older than 0.7, so it cannot limit the size of files, and control groups are not allowed. Install a newer "
                "one, anywhere on the path, or grade as root")
    trial = ["bwrap", "--unshare-pid", "--unshare-net", "--proc", "/proc", "--ro-bind", "/", "/", "--tmpfs", "/tmp",
             *([] if os.getuid() == 0 else ["--unshare-user"]), "true"]
    done = subprocess.run(trial, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode == 0:
        return True
    return f"{done.stderr.strip() or f'bwrap ends with status {done.returncode}'}; {how_to_allow_namespaces()}"


@functools.lru_cache(None)
def environment():
    """The variables inside: what Open MPI needs (scripts/mpi_environment.sh) and nothing of the caller's."""
    clean = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C.UTF-8", "HOME": "/tmp", "TMPDIR": "/tmp",
             # Ranks may not read each other's memory inside; messages go through shared memory.
             "OMPI_MCA_btl_vader_single_copy_mechanism": "none", "OMPI_MCA_smsc": "^cma"}
    script = '. "$0" && exec env -0'
    done = subprocess.run(["sh", "-c", script, str(ROOT / "scripts/mpi_environment.sh")], env=clean,
                          stdout=subprocess.PIPE, check=True)
    pairs = (pair.split("=", 1) for pair in done.stdout.decode().split("\0") if pair)
    return {name: value for name, value in pairs if name not in ("PWD", "OLDPWD", "SHLVL", "_")}
