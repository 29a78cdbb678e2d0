"""Passes messages between the ranks of a job, counts them, and notices when all ranks wait for ever.

Each rank is a process whose MPI is tests/judge/mpi (a library that is loaded before the real one). It talks to the hub
through one socket and nothing else: what was sent is counted here, where the code that is judged cannot write.

A message is delivered late, when its receiver waits or has had time to go on: code that forgets to wait reads old values.
"""

import collections
import dataclasses
import os
import selectors
import socket
import struct
import time

HEADER = struct.Struct("<IiiiQQ")  # kind, peer, context, tag, number, bytes
MESSAGE, ACK, MEET, BLOCKED, RESUMED, ABORT, FINALIZED = range(1, 8)
LATE_S = 0.02      # how long a message is held back at most
SILENCE_S = 0.5    # without a frame, all ranks waiting and none computing: a deadlock


@dataclasses.dataclass
class Outcome:
    """What came out of a job."""

    verdict: str = "ended"   # "ended", "deadlock", "timed out", or "aborted"
    detail: str = ""         # who waits for whom; the rank that aborted
    messages: dict = dataclasses.field(default_factory=lambda: collections.defaultdict(lambda: [0, 0]))  # (from, to): messages, bytes
    collectives: dict = dataclasses.field(default_factory=collections.Counter)  # MPI's own collectives: calls of a rank
    steps: int = 0           # messages one after the other: the longest chain of sends, each after what it depends on
    unreceived: list = dataclasses.field(default_factory=list)  # (from, to, bytes) of messages that no rank received


class Rank:
    """The hub's side of one rank's connection."""

    def __init__(self, connection, number):
        self.connection, self.number = connection, number
        self.received, self.to_send = bytearray(), bytearray()
        self.held = collections.deque()  # (since, frame) messages that are held back
        self.blocked = {}                # thread: what it waits for
        self.ended = False
        self.step = 0                    # of its last send, or of the last message that it received if that is later

    def frames(self):
        """Takes the frames that have arrived completely."""
        while len(self.received) >= HEADER.size:
            header = HEADER.unpack_from(self.received)
            end = HEADER.size + header[5]
            if len(self.received) < end:
                return
            data = bytes(self.received[HEADER.size:end])
            del self.received[:end]
            yield header, data


class Hub:
    """One job of N ranks. `descriptors[r]` is what rank r's process inherits; `variable(r)` says so to it."""

    def __init__(self, ranks, delay_s=0):
        pairs = [socket.socketpair() for _ in range(ranks)]
        self.ranks = [Rank(pair[0], r) for r, pair in enumerate(pairs)]
        self.others = [pair[1] for pair in pairs]
        self.delay_s = delay_s                         # of every message; 0: until its receiver waits
        self.meetings = collections.defaultdict(dict)  # (context, first member, number): {rank: data}
        self.in_flight = {}                            # (sender, number): (receiver, bytes, step)
        self.outcome = Outcome()

    def descriptor(self, rank):
        return self.others[rank].fileno()

    def variable(self, rank):
        return f"{self.descriptor(rank)}:{rank}:{len(self.ranks)}"

    def run(self, alive, left_s, computes):
        """Serves the job until all ranks have ended.

        @param alive     alive(r) says whether rank r's process runs.
        @param left_s    left_s() is how many seconds it may still take.
        @param computes  computes() is a number that grows while any process of the job computes.
        """
        for other in self.others:
            other.close()
        last_frame, last_work = time.monotonic(), (0.0, None)
        with selectors.DefaultSelector() as selector:
            for rank in self.ranks:
                rank.connection.setblocking(False)
                selector.register(rank.connection, selectors.EVENT_READ, rank)
            while not all(rank.ended for rank in self.ranks) and self.outcome.verdict == "ended":
                for key, _ in selector.select(0.005):
                    if self._read(key.data):
                        last_frame = time.monotonic()
                    if key.data.ended:
                        selector.unregister(key.fileobj)
                now = time.monotonic()
                self._deliver(now)
                for rank in self.ranks:
                    self._write(rank)
                if left_s() <= 0:
                    self._end("timed out", self._who_waits())
                elif now - last_frame > SILENCE_S and self._all_wait():
                    work = computes()
                    if last_work[1] != work:
                        last_work = (now, work)
                    elif now - last_work[0] > SILENCE_S:
                        self._end("deadlock", self._who_waits())
                elif not any(alive(rank.number) or rank.ended for rank in self.ranks):
                    break
        self.outcome.unreceived = [(sender, receiver, size) for (sender, _), (receiver, size, _) in self.in_flight.items()]
        for rank in self.ranks:
            rank.connection.close()
        return self.outcome

    def _end(self, verdict, detail):
        if self.outcome.verdict == "ended":
            self.outcome.verdict, self.outcome.detail = verdict, detail

    def _all_wait(self):
        return all(rank.ended or (rank.blocked and not rank.held and not rank.to_send) for rank in self.ranks)

    def _who_waits(self):
        return "\n".join(f"rank {rank.number} " + ("has ended" if rank.ended else
                         "waits in " + " and ".join(sorted(set(rank.blocked.values()))) if rank.blocked else "computes")
                         for rank in self.ranks)

    def _read(self, rank):
        try:
            data = rank.connection.recv(1 << 20)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            rank.ended = True
        rank.received += data
        for header, content in rank.frames():
            self._take(rank, *header[:5], content)
        return True

    def _write(self, rank):
        while rank.to_send and not rank.ended:
            try:
                del rank.to_send[:rank.connection.send(rank.to_send[:1 << 20])]
            except BlockingIOError:
                return
            except OSError:
                rank.ended = True

    def _send(self, to, kind, peer, context, tag, number, data=b""):
        to.to_send += HEADER.pack(kind, peer, context, tag, number, len(data)) + data

    def _take(self, rank, kind, peer, context, tag, number, data):
        """Acts on one frame of a rank."""
        if kind in (MESSAGE, ACK) and not 0 <= peer < len(self.ranks):
            self._end("aborted", f"rank {rank.number} sends to rank {peer}, which does not exist")
        elif kind == MESSAGE:
            count = self.outcome.messages[rank.number, peer]
            count[0] += 1
            count[1] += len(data)
            rank.step += 1
            self.outcome.steps = max(self.outcome.steps, rank.step)
            self.in_flight[rank.number, number] = (peer, len(data), rank.step)
            frame = HEADER.pack(MESSAGE, rank.number, context, tag, number, len(data)) + data
            self.ranks[peer].held.append((time.monotonic(), frame))
        elif kind == ACK:
            if (message := self.in_flight.pop((peer, number), None)) is not None:
                rank.step = max(rank.step, message[2])
                self._send(self.ranks[peer], ACK, rank.number, context, tag, number)
        elif kind == MEET:
            self._meet(rank, peer, context, tag, number, data)
        elif kind == BLOCKED:
            rank.blocked[number] = data.decode(errors="replace")[:200]
        elif kind == RESUMED:
            rank.blocked.pop(number, None)
        elif kind == ABORT:
            self._end("aborted", f"rank {rank.number} ends the job with status {tag}")

    def _meet(self, rank, members, context, first, number, data):
        """A collective call of MPI's own: answered when all members have made it."""
        name, _, own = data.partition(b"\0")
        meeting = self.meetings[context, first, number]
        meeting[rank.number] = (name.decode(errors="replace"), own[:4], own[4:])  # in the communicator it has another rank
        if len({called for called, _, _ in meeting.values()}) > 1:
            calls = ", ".join(f"rank {r} calls {called}" for r, (called, _, _) in sorted(meeting.items()))
            self._end("aborted", f"ranks make different collective calls: {calls}")
        elif len(meeting) == members:
            ordered = sorted(meeting.values(), key=lambda call: struct.unpack("<i", call[1]))
            everything = b"".join(struct.pack("<Q", len(part)) + part for _, _, part in ordered)
            step = max(self.ranks[r].step for r in meeting)
            for r in meeting:
                self.ranks[r].step = step
                self._send(self.ranks[r], MEET, 0, context, 0, number, everything)
            self.outcome.collectives[name.decode(errors="replace")] += 1
            del self.meetings[context, first, number]

    def _deliver(self, now):
        """Passes on messages whose receivers wait, or have had time to go on without them."""
        for rank in self.ranks:
            while rank.held and (now - rank.held[0][0] > (self.delay_s or LATE_S) or (rank.blocked and not self.delay_s)):
                rank.to_send += rank.held.popleft()[1]


def work_of(process_ids):
    """Processor time that the threads of these processes and their children have used, in ticks."""
    total, todo = 0, list(process_ids)
    while todo:
        process = todo.pop()
        try:
            with open(f"/proc/{process}/stat", encoding="ascii", errors="replace") as file:
                total += sum(int(field) for field in file.read().rpartition(")")[2].split()[11:13])
            for thread in os.listdir(f"/proc/{process}/task"):
                with open(f"/proc/{process}/task/{thread}/children", encoding="ascii") as file:
                    todo += file.read().split()
        except OSError:
            continue
    return total
