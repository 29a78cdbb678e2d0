"""Runs a program again and again in the same processes, with tests/programs/repeated_runs.cpp. Starting processes and MPI takes
more than half of a short run."""

import atexit
import os
import socket
import struct
import subprocess
import tempfile

LIBRARY = os.environ.get("RANKWISE_REPEATED_RUNS")
KEPT = 6  # jobs that wait for their next run


class Ended(Exception):
    """A rank is gone."""


class Job:
    """The ranks of one program, each connected to this process by a socket. If a rank ends, its run has ended."""

    def __init__(self, launcher, program, environment):
        self.program = program
        folder = tempfile.TemporaryDirectory()
        self.folder = folder.name
        self.remove_folder = folder.cleanup
        with socket.socket(socket.AF_UNIX) as listener, open(self.path("launcher"), "w", encoding="utf-8") as said:
            listener.bind(self.path("socket"))
            listener.listen(64)
            listener.settimeout(0.5)
            command = [*launcher, "env", f"LD_PRELOAD={LIBRARY}", f"RANKWISE_RUNS={self.path('socket')}", program]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=environment)
            ranks = int(launcher[-1]) if launcher else 1
            self.connections = [self.next_connection(listener) for _ in range(ranks)]

    def next_connection(self, listener):
        while True:
            try:
                return listener.accept()[0]
            except TimeoutError:
                if self.process.poll() is not None:
                    raise AssertionError(f"{self.program} did not start: {self.text_of(self.path('launcher'))}") from None

    def path(self, name):
        return os.path.join(self.folder, name)

    def run(self, options, time_limit_s):
        """The finished run; TimeoutError if it does not finish in time."""
        files = [self.path(name) for name in ("output", "errors")]
        for file in files:
            open(file, "w", encoding="utf-8").close()
        words = [self.program, *options]
        command = b"".join(os.fsencode(word) + b"\0" for word in [*files, *words])
        try:
            for connection in self.connections:
                connection.settimeout(time_limit_s)
                connection.sendall(struct.pack("=I", len(command)) + command)
            status = max(self.answer(connection) for connection in self.connections)
        except (Ended, ConnectionError):
            status = self.process.wait(time_limit_s)
            files.append(self.path("launcher"))
        output, *errors = [self.text_of(file) for file in files]
        return subprocess.CompletedProcess(words, status, output, "".join(errors))

    @staticmethod
    def answer(connection):
        data = connection.recv(4, socket.MSG_WAITALL)
        if len(data) < 4:
            raise Ended
        return struct.unpack("=i", data)[0]

    @staticmethod
    def text_of(file):
        with open(file, encoding="utf-8", errors="replace") as opened:
            return opened.read()

    def close(self):
        """Lets the processes end, or ends them if they do not."""
        for connection in self.connections:
            connection.close()
        for end in (lambda: None, self.process.terminate, self.process.kill):
            end()
            try:
                self.process.wait(2)
                break
            except subprocess.TimeoutExpired:
                pass
        self.remove_folder()


jobs = {}  # by launcher, program and environment; the one that was used last is the last


def run(launcher, program, options, environment, time_limit_s):
    """The finished run of a program, in a job that waits for one or in a new one."""
    key = (*launcher, program, *sorted(environment.items()))
    job = jobs.pop(key, None) or Job(launcher, program, environment)
    try:
        done = job.run(options, time_limit_s)
    except (TimeoutError, subprocess.TimeoutExpired):
        output, errors = (job.text_of(job.path(name)) for name in ("output", "errors"))
        job.close()
        raise AssertionError(f"{program} {' '.join(options)}\nhad not ended after {time_limit_s:.0f} s; it had printed:\n"
                             f"{output}{errors}") from None
    if done.returncode in (0, 2) and job.process.poll() is None:
        jobs[key] = job
    else:
        job.close()
    if len(jobs) > KEPT:
        jobs.pop(next(iter(jobs))).close()
    return done


@atexit.register
def close_all():
    for job in jobs.values():
        job.close()
