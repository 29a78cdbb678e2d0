"""Two nodes on one machine, for tests: each has a hostname, a network and shared memory of its own; a wire joins them.

A node is a set of Linux namespaces. They lie inside others, the test's own, in which main() runs it. Nothing of what
happens there is seen outside, no packet leaves, and when the test ends, however it ends, the system takes all of it away,
the processes too.
"""

import functools
import os
import shutil
import subprocess
import sys
import unittest

SKIPPED = 77  # exit status of a test that cannot run here
INSIDE = "RANKWISE_INSIDE"  # set in the test's own namespaces
HOLD = ["--net", "--uts", "--mount", "--ipc"]  # the namespaces of a node
SLOWNESS = float(os.environ.get("RANKWISE_SLOWNESS", "1"))  # of this machine; time limits are for an idle one
JOB_S, GRACE_S = round(100 * SLOWNESS), 20 * SLOWNESS  # when the launcher ends a job, and how long this may take


def own_namespaces():
    """The command before another that runs it in namespaces of its own."""
    as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *as_root, *HOLD, "--pid", "--fork", "--kill-child", "--mount-proc"]


def why_not():
    """Reason why there can be no nodes here; empty if there can."""
    missing = [tool for tool in ("unshare", "nsenter", "ip", "hostname", "mount", "mpirun") if not shutil.which(tool)]
    if missing:
        return f"{missing[0]} is not here (Debian packages util-linux, iproute2, hostname, openmpi-bin)"
    version = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=False).stdout
    if "Open MPI" not in version and "OpenRTE" not in version:
        return "mpirun is not Open MPI's"
    probe = "mount -t tmpfs tmpfs /run && hostname probe && ip link add wire-0 type veth peer name wire-1"
    tried = subprocess.run([*own_namespaces(), "sh", "-c", probe], capture_output=True, text=True, check=False)
    return f"namespaces are not to be had: {tried.stderr.strip()}" if tried.returncode != 0 else ""


def main():
    """Runs the tests of a program in namespaces of their own; or says why not."""
    if INSIDE not in os.environ:
        if reason := why_not():
            print(f"skipped: {reason}")
            sys.exit(SKIPPED)
        command = own_namespaces() + [sys.executable, *sys.argv]
        os.execvpe(command[0], command, {**os.environ, INSIDE: "1", "TMPDIR": "/run"})
    made()
    unittest.main()


@functools.cache
def made():
    """The nodes of this program."""
    return Nodes()


class Nodes:
    """Two nodes, in a program that main() has started."""

    names = ["node-a", "node-b"]

    def __init__(self):
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        self.holders = {name: self.hold(name) for name in self.names}
        subprocess.run(["ip", "link", "add", "wire-0", "type", "veth", "peer", "name", "wire-1"], check=True)
        with open("/run/hosts", "w", encoding="utf-8") as hosts:
            hosts.write("127.0.0.1 localhost\n")
            for i, name in enumerate(self.names):
                self.join(name, f"wire-{i}", f"192.168.77.{i + 1}")
                hosts.write(f"192.168.77.{i + 1} {name}\n")
        subprocess.run(["mount", "--bind", "/run/hosts", "/etc/hosts"], check=True)
        for name in self.names:
            subprocess.run([*self.on(name), "mount", "--bind", "/run/hosts", "/etc/hosts"], check=True)
        self.environment = {**os.environ, **self.launch_agent(), "TMPDIR": "/dev/shm"}

    def hold(self, name):
        """The number of a process in a node that is new."""
        # A launcher that ends removes the folder of all launchers unless something is in it; another may just need it.
        folder = f"/dev/shm/ompi.{name}.0/kept"
        script = f"hostname {name} && mount -t tmpfs tmpfs /dev/shm && mkdir -p {folder} && echo here && exec sleep infinity"
        holder = subprocess.Popen(["unshare", *HOLD, "sh", "-c", script], stdout=subprocess.PIPE, text=True)
        if holder.stdout.readline() != "here\n":
            raise RuntimeError(f"no node {name}")
        return holder.pid

    def join(self, name, wire, address):
        """Puts one end of the wire into a node."""
        subprocess.run(["ip", "link", "set", wire, "netns", str(self.holders[name])], check=True)
        for command in (f"address add {address}/24 dev {wire}", f"link set {wire} up", "link set lo up"):
            subprocess.run([*self.on(name), "ip", *command.split()], check=True)

    def on(self, name):
        """The command before another that runs it on a node."""
        return ["nsenter", f"--target={self.holders[name]}", *HOLD]

    def launch_agent(self):
        """The variables that have Open MPI start its daemons through nsenter, where it would use ssh."""
        path = "/run/agent"
        with open(path, "w", encoding="utf-8") as script:
            script.write('#!/bin/sh\nnode=$1\nshift\ncase $node in\n')
            for name in self.names:
                script.write(f'{name}) exec {" ".join(self.on(name))} sh -c "$*" ;;\n')
            script.write('esac\nexit 1\n')
        os.chmod(path, 0o755)
        return {"OMPI_MCA_plm_rsh_agent": path, "PRTE_MCA_plm_ssh_agent": path}

    def run(self, ranks, command, in_turn=False):
        """The finished job, with its output as text.

        ranks: how many on each node; in_turn: dealt out one by one, else the first node is filled first."""
        hosts = ",".join(f"{name}:{n}" for name, n in zip(self.names, ranks))
        dealt = ["--map-by", "node"] if in_turn else []
        launcher = ["mpirun", "--timeout", str(JOB_S), "--host", hosts, "-np", str(sum(ranks)), *dealt]
        return subprocess.run([*self.on(self.names[0]), *launcher, *command], capture_output=True, text=True,
                              errors="replace", timeout=JOB_S + GRACE_S, env=self.environment, check=False)
