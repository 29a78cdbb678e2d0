"""Passes messages between the ranks of a job, counts them, and notices when all ranks wait for ever.

Each rank is a process whose MPI is tests/judge/mpi (a library that is loaded before the real one). It talks to the hub
through one socket and nothing else: what was sent is counted here, where the code that is judged cannot write.

A message is delivered late, when its receiver waits or has had time to go on: code that forgets to wait reads old values.
Where steps are counted it is delivered when all ranks wait, and in one step a rank sends one message and receives one. A rank
waits where it says so and has seen all that was sent to it, so no count and no verdict depends on the speed of the machine.

What a rank writes may be forged. What no MPI sends, and more than a job needs, ends the job with a sentence.
"""

import collections
import dataclasses
import re
import selectors
import socket
import struct
import time

from exercise_tree import Refused
from processes import Stillness

HEADER = struct.Struct("<IiiiQQ")  # kind, peer, context, tag, number, bytes
MESSAGE, ACK, MEET, BLOCKED, RESUMED, ABORT, FINALIZED, COMPUTES = range(1, 9)
ASKS = 0                  # the thread number of a rank that asked for a message and found none: served as if it waited, no deadlock
LATE_S = 0.02             # how long a message is held back at most, where steps are not counted
ASLEEP_S = 0.01           # no thread awake for so long: all have done what they can without the messages that are held back
SILENCE_S = 0.5           # all ranks waiting and no thread awake for so long: a deadlock
LARGEST_FRAME = 64 << 20  # bytes of a message or of what a rank gives to a collective call
LARGEST_TEXT = 1 << 10    # bytes of other frames
MOST_BYTES = 256 << 20    # that the hub keeps for the ranks of a job
MOST_FRAMES = 1_000_000   # of a job; none of the course's needs more than some thousand
MOST_ENTRIES = 10_000     # messages, collective calls, threads of a rank under way


@dataclasses.dataclass
class Outcome:
    """Result of a job."""

    verdict: str = "ended"   # "ended", "deadlock", "timed out", or "aborted"
    detail: str = ""         # who waits for whom; the rank that aborted
    messages: dict = dataclasses.field(default_factory=lambda: collections.defaultdict(lambda: [0, 0]))  # (from, to): messages, bytes
    collectives: dict = dataclasses.field(default_factory=collections.Counter)  # MPI's own collectives: calls of a rank
    given: dict = dataclasses.field(default_factory=collections.Counter)  # to them: bytes of all ranks
    steps: list = dataclasses.field(default_factory=lambda: [0])  # deliveries one after the other, up to each MPI_Barrier of all
    hidden: int = 0          # messages that were under way while another thread of their sender computed
    unreceived: list = dataclasses.field(default_factory=list)  # (from, to, bytes) of messages that no rank received


@dataclasses.dataclass(eq=False)
class Message:
    """A message that its receiver has not acknowledged."""

    sender: int
    receiver: int
    context: int
    bytes: int
    since: float   # when the hub took it
    step: int      # how many steps there were before
    frame: bytes   # as it is delivered; empty once it was
    hidden: bool = False


class Rank:
    """The hub's side of one rank's connection."""

    def __init__(self, connection, number):
        self.connection, self.number = connection, number
        self.received, self.to_send = bytearray(), bytearray()
        self.held = collections.deque()  # messages to it that are held back
        self.told = 0                    # frames that were sent to it, as an int of C++ that begins again at 0
        self.blocked = {}                # thread: (how many frames it had seen, what it waits for, of whom it wants a message)
        self.ended = False

    def frames(self):
        """Takes the frames that have arrived completely."""
        while len(self.received) >= HEADER.size:
            header = HEADER.unpack_from(self.received)
            most = LARGEST_FRAME if header[0] in (MESSAGE, MEET) else LARGEST_TEXT
            if header[5] > most:
                raise Refused(f"rank {self.number} announces a frame of {header[5]:,} bytes; one may have {most:,}")
            end = HEADER.size + header[5]
            if len(self.received) < end:
                return
            data = bytes(self.received[HEADER.size:end])
            del self.received[:end]
            yield header, data

    def tell(self, kind, peer, context, tag, number, data=b""):
        self.tell_frame(HEADER.pack(kind, peer, context, tag, number, len(data)) + data)

    def tell_frame(self, frame):
        self.to_send += frame
        self.told = (self.told + 1) % (1 << 31)

    def waits(self):
        """True if it waits, and nothing that it has not seen is on its way to it."""
        return bool(self.blocked) and all(seen == self.told for seen, _, _ in self.blocked.values())


class Hub:
    """One job of N ranks. `descriptors[r]` is what rank r's process inherits; `variable(r)` says so to it."""

    def __init__(self, ranks, delay_s=0, counts_steps=False, counts_hidden=False):
        pairs = [socket.socketpair() for _ in range(ranks)]
        self.ranks = [Rank(pair[0], r) for r, pair in enumerate(pairs)]
        self.others = [pair[1] for pair in pairs]
        self.delay_s = delay_s                         # of every message; 0: until its receiver waits
        self.counts_steps, self.counts_hidden = counts_steps, counts_hidden
        self.meetings = collections.defaultdict(dict)  # (context, first member, number): {rank: (name, its rank there, data)}
        self.in_flight = {}                            # (sender, number): Message
        self.outcome = Outcome()
        self.frames = 0

    def descriptor(self, rank):
        return self.others[rank].fileno()

    def variable(self, rank):
        return f"{self.descriptor(rank)}:{rank}:{len(self.ranks)}:{int(self.counts_hidden)}"

    def run(self, alive, left_s, processes):
        """Serves the job until all ranks have ended. Whatever happens, there is an outcome.

        @param alive      alive(r) says whether rank r's process runs.
        @param left_s     left_s() is how many seconds it may still take.
        @param processes  numbers of the job's processes; their children belong to it, too.
        """
        for other in self.others:
            other.close()
        try:
            self._serve(alive, left_s, Stillness(processes, SILENCE_S), Stillness(processes, ASLEEP_S))
        except Refused as refusal:
            self._end("aborted", str(refusal))
        except Exception as error:  # pylint: disable=broad-except  # a hub that has stopped is no reason to wait for ever
            self._end("aborted", f"the judge could not follow the messages: {type(error).__name__}: {error}")
        self.outcome.unreceived = [(message.sender, message.receiver, message.bytes) for message in self.in_flight.values()]
        for rank in self.ranks:
            rank.connection.close()
        return self.outcome

    def _serve(self, alive, left_s, stillness, sleep):
        with selectors.DefaultSelector() as selector:
            for rank in self.ranks:
                rank.connection.setblocking(False)
                selector.register(rank.connection, selectors.EVENT_READ, rank)
            while not all(rank.ended for rank in self.ranks) and self.outcome.verdict == "ended":
                for key, _ in selector.select(0.005):
                    stillness.interrupt()
                    sleep.interrupt()
                    self._read(key.data)
                    if key.data.ended:
                        selector.unregister(key.fileobj)
                if self.counts_hidden:
                    self._deliver_asleep(sleep)
                else:
                    self._deliver(time.monotonic())
                for rank in self.ranks:
                    self._write(rank)
                self._check_size()
                if left_s() <= 0:
                    self._end("timed out", self._who_waits())
                elif self._all_wait() and stillness.lasts():
                    self._end("deadlock", self._who_waits())
                elif not any(alive(rank.number) or rank.ended for rank in self.ranks):
                    break

    def _end(self, verdict, detail):
        if self.outcome.verdict == "ended":
            self.outcome.verdict, self.outcome.detail = verdict, detail

    def _all_wait(self):
        return all(rank.ended or (rank.waits() and ASKS not in rank.blocked and not rank.held and not rank.to_send) for rank in self.ranks)

    def _who_waits(self):
        return "\n".join(f"rank {rank.number} " + ("has ended" if rank.ended else self._what_for(rank) or "computes")
                         for rank in self.ranks)

    def _what_for(self, rank):
        """The waits of a rank's threads, as a sentence without its subject."""
        texts = {text for _, text, _ in rank.blocked.values() if text}
        for meeting in self.meetings.values():  # of all ranks, where some are absent
            absent = [other.number for other in self.ranks if other.number not in meeting]
            if rank.number in meeting and meeting[rank.number][3] == len(self.ranks) and absent:
                name = meeting[rank.number][0]
                texts = texts - {f"all others ({name})"} | {f"rank {' and rank '.join(map(str, absent))} to call {name}"}
        return f"waits for {' and for '.join(sorted(texts)[:4])}" if texts else ""

    def _check_size(self):
        """Ends a job that leaves more with the hub than any needs."""
        kept = sum(len(rank.received) + len(rank.to_send) for rank in self.ranks)
        kept += sum(len(message.frame) for message in self.in_flight.values())
        kept += sum(len(call[2]) for meeting in self.meetings.values() for call in meeting.values())
        if kept > MOST_BYTES:
            raise Refused(f"the ranks have sent {kept:,} bytes that none has received; at most {MOST_BYTES:,} are kept for them")

    def _read(self, rank):
        try:
            data = rank.connection.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            rank.ended = True
        rank.received += data
        for header, content in rank.frames():
            self._take(rank, *header[:5], content)

    def _write(self, rank):
        while rank.to_send and not rank.ended:
            try:
                del rank.to_send[:rank.connection.send(rank.to_send[:1 << 20])]
            except BlockingIOError:
                return
            except OSError:
                rank.ended = True
        if rank.ended:
            rank.to_send.clear()

    def _take(self, rank, kind, peer, context, tag, number, data):
        """Acts on one frame of a rank."""
        self.frames += 1
        if self.frames > MOST_FRAMES:
            raise Refused(f"the ranks call MPI more than {MOST_FRAMES:,} times")
        if number != ASKS or kind != BLOCKED:
            rank.blocked.pop(ASKS, None)  # it continues
        if kind == MESSAGE:
            self._take_message(rank, peer, context, tag, number, data)
        elif kind == ACK:
            message = self.in_flight.pop((peer, number), None)
            if message is None or message.receiver != rank.number or message.frame:
                raise Refused(f"rank {rank.number} acknowledges a message that it has not received")
            self.ranks[peer].tell(ACK, rank.number, message.context, 0, number)
        elif kind == MEET:
            self._meet(rank, peer, context, tag, number, data)
        elif kind == BLOCKED:
            rank.blocked[number] = (context, re.sub(r"[^ -~]", "?", data.decode("latin-1"))[:200], peer)
            if len(rank.blocked) > MOST_ENTRIES:
                raise Refused(f"rank {rank.number} has more than {MOST_ENTRIES:,} threads that wait")
        elif kind == RESUMED:
            rank.blocked.pop(number, None)
        elif kind == ABORT:
            raise Refused(f"rank {rank.number} ends the job with status {tag}")
        elif kind == COMPUTES:
            message = self.in_flight.get((rank.number, number))
            if message and message.frame and not message.hidden:
                message.hidden, self.outcome.hidden = True, self.outcome.hidden + 1
        elif kind != FINALIZED:
            raise Refused(f"rank {rank.number} sends a frame of kind {kind}, which there is not")

    def _take_message(self, rank, peer, context, tag, number, data):
        if not 0 <= peer < len(self.ranks):
            raise Refused(f"rank {rank.number} sends to rank {peer}, which does not exist")
        if (rank.number, number) in self.in_flight:
            raise Refused(f"rank {rank.number} numbers two messages alike")
        if len(self.in_flight) >= MOST_ENTRIES:
            raise Refused(f"more than {MOST_ENTRIES:,} messages are under way that no rank has received")
        count = self.outcome.messages[rank.number, peer]
        count[0] += 1
        count[1] += len(data)
        frame = HEADER.pack(MESSAGE, rank.number, context, tag, number, len(data)) + data
        message = Message(rank.number, peer, context, len(data), time.monotonic(), sum(self.outcome.steps), frame)
        self.in_flight[rank.number, number] = message
        self.ranks[peer].held.append(message)

    def _meet(self, rank, members, context, first, number, data):
        """A collective call of MPI's own: answered when all members have made it."""
        name, _, own = data.partition(b"\0")
        meeting = self.meetings[context, first, number]
        if len(own) < 4 or rank.number in meeting or not 0 < members <= len(self.ranks) or len(self.meetings) > MOST_ENTRIES:
            raise Refused(f"rank {rank.number} makes a collective call that MPI does not make")
        name = re.sub(r"[^ -~]", "?", name.decode("latin-1"))[:40]
        meeting[rank.number] = (name, own[:4], own[4:], members)  # in the communicator it has another rank
        if len({(call[0], call[3]) for call in meeting.values()}) > 1:
            calls = ", ".join(f"rank {r} calls {call[0]} of {call[3]} ranks" for r, call in sorted(meeting.items()))
            raise Refused(f"ranks make different collective calls: {calls}")
        if len(meeting) == members:
            del self.meetings[context, first, number]
            self._answer_all(meeting, name, context, number)

    def _answer_all(self, meeting, name, context, number):
        """Gives all members of a collective call what all have given."""
        ordered = sorted(meeting.values(), key=lambda call: struct.unpack("<i", call[1]))
        if sum(len(call[2]) for call in ordered) * len(meeting) > MOST_BYTES:
            raise Refused(f"the ranks give more bytes to {name} than the {MOST_BYTES:,} that are kept for them")
        everything = b"".join(struct.pack("<Q", len(call[2])) + call[2] for call in ordered)
        for r in meeting:
            self.ranks[r].tell(MEET, 0, context, 0, number, everything)
        self.outcome.collectives[name] += 1
        self.outcome.given[name] += sum(len(call[2]) for call in ordered)
        if name == "MPI_Barrier" and len(meeting) == len(self.ranks):
            self.outcome.steps.append(0)
        if len(self.outcome.collectives) > MOST_ENTRIES:
            raise Refused(f"the ranks make more than {MOST_ENTRIES:,} kinds of collective calls")

    def _deliver(self, now):
        """Passes on messages whose receivers wait, or have had time to go on without them."""
        if self.counts_steps:
            self._deliver_step()
            return
        for rank in self.ranks:
            while rank.held and (now - rank.held[0].since > (self.delay_s or LATE_S) or (rank.waits() and not self.delay_s)):
                self._hand_over(rank.held.popleft())

    def _deliver_step(self):
        """Once all ranks wait: one message of each sender, and one to each receiver, which takes the one that it wants, or else
        the oldest."""
        if not all(rank.ended or rank.waits() for rank in self.ranks):
            return
        held = [message for message in self.in_flight.values() if message.frame]  # those of one sender as it has sent them
        senders, receivers = set(), set()
        wanted = [{source for _, _, source in rank.blocked.values()} for rank in self.ranks]
        for message in sorted(held, key=lambda one: (one.sender not in wanted[one.receiver], one.step, one.sender)):
            if message.sender not in senders and message.receiver not in receivers:
                senders.add(message.sender)
                receivers.add(message.receiver)
                self.ranks[message.receiver].held.remove(message)
                self._hand_over(message)
        self.outcome.steps[-1] += bool(senders)

    def _deliver_asleep(self, sleep):
        """Once no thread of the job is awake, all messages: until then a rank computes whatever it can without them."""
        if any(rank.held for rank in self.ranks) and sleep.lasts():
            for rank in self.ranks:
                while rank.held:
                    self._hand_over(rank.held.popleft())
            sleep.interrupt()

    def _hand_over(self, message):
        self.ranks[message.receiver].tell_frame(message.frame)
        message.frame = b""
