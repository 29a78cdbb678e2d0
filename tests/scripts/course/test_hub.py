#!/usr/bin/env python3
"""Tests scripts/course/hub.py: what it counts, when it calls a job deadlocked, and that nothing a rank writes can harm it.

With RANKWISE_ALL 100,000 broken frames are sent in place of some thousand.
"""

import collections
import contextlib
import os
import pathlib
import random
import resource
import socket
import struct
import subprocess
import sys
import threading
import time
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "scripts/course"))
sys.dont_write_bytecode = True

import hub as hub_module  # noqa: E402
from hub import ABORT, ACK, BLOCKED, COMPUTES, FINALIZED, HEADER, MEET, MESSAGE, RESUMED, Hub  # noqa: E402
from processes import Stillness, sleep_of  # noqa: E402


class Rank:
    """A rank whose MPI is a page of Python."""

    def __init__(self, hub, number):
        self.connection, self.number, self.ranks = hub.others[number].dup(), number, len(hub.ranks)
        self.seen, self.sent, self.wanted, self.early = 0, set(), [], []

    def write(self, kind, peer=0, context=0, tag=0, number=0, data=b"", announced=None):
        size = len(data) if announced is None else announced
        self.connection.sendall(HEADER.pack(kind, peer, context, tag, number, size) + data)

    def start_send(self, to, data=b"data"):
        number = getattr(self, "numbers", 0) + 1
        self.numbers = number
        self.sent.add(number)
        self.write(MESSAGE, to, number=number, data=data)

    def start_receive(self, source):
        if early := next((message for message in self.early if message[0] == source), None):
            self.early.remove(early)
            self.write(ACK, *early)
        else:
            self.wanted.append(source)

    def wait(self):
        while self.sent or self.wanted:
            self.write(BLOCKED, self.wanted[0] if self.wanted else -1, self.seen, number=1, data=f"a message of rank {self.wanted}".encode())
            self.act(*HEADER.unpack(self.exactly(HEADER.size)))
        self.write(RESUMED, number=1)

    def act(self, kind, peer, context, tag, number, size):
        self.exactly(size)
        if kind == ACK:
            self.sent.discard(number)
        elif peer in self.wanted:
            self.wanted.remove(peer)
            self.write(ACK, peer, context, tag, number)
        else:
            self.early.append((peer, context, tag, number))
        self.seen += 1

    def exactly(self, size):
        data = b""
        while len(data) < size:
            if not (more := self.connection.recv(size - len(data))):
                raise ConnectionError
            data += more
        return data

    def send(self, to):
        self.start_send(to)
        self.wait()

    def receive(self, source):
        self.start_receive(source)
        self.wait()


def outcome_of(ranks, program, limit_s=20, processes=(), **settings):
    """The outcome of a job whose rank r is program(Rank)."""
    hub = Hub(ranks, **settings)

    def main(rank):
        with rank.connection:
            try:
                program(rank)
            except (ConnectionError, BrokenPipeError):
                pass  # the hub has ended the job
    threads = [threading.Thread(target=main, args=(Rank(hub, r),)) for r in range(ranks)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + limit_s
    outcome = hub.run(lambda r: threads[r].is_alive(), lambda: end - time.monotonic(), processes)
    for thread in threads:
        thread.join(20)
    return outcome


def ring(rank):
    """Each rank sends to the next one and receives from the previous one at the same time."""
    for _ in range(rank.ranks - 1):
        rank.start_receive((rank.number - 1) % rank.ranks)
        rank.start_send((rank.number + 1) % rank.ranks)
        rank.wait()


def serial_ring(rank):
    """Sends as many messages between the same ranks, one at a time."""
    for first in range(rank.ranks):
        place = (rank.number - first) % rank.ranks
        if place > 0:
            rank.receive((rank.number - 1) % rank.ranks)
        if place < rank.ranks - 1:
            rank.send((rank.number + 1) % rank.ranks)


class Steps(unittest.TestCase):
    """Steps are counted, whatever the machine does meanwhile."""

    def test_a_ring_takes_one_step_less_than_there_are_ranks(self):
        for ranks in (1, 2, 5):
            outcome = outcome_of(ranks, ring, counts_steps=True)
            self.assertEqual((outcome.verdict, outcome.steps), ("ended", [ranks - 1]))

    def test_one_message_at_a_time_takes_more(self):
        counts = [outcome_of(4, program, counts_steps=True) for program in (ring, serial_ring)]
        self.assertEqual(dict(counts[0].messages), dict(counts[1].messages))
        self.assertEqual([count.steps for count in counts], [[3], [9]])

    def test_messages_that_are_started_together_leave_a_rank_one_by_one(self):
        def to_all(rank):
            for other in range(1, rank.ranks):
                if rank.number == 0:
                    rank.start_send(other)
                elif rank.number == other:
                    rank.start_receive(0)
            rank.wait()
        self.assertEqual(outcome_of(5, to_all, counts_steps=True).steps, [4])

    def test_a_receiver_takes_what_it_wants(self):
        def early(rank):  # rank 0 is ahead with its message to rank 2, which answers rank 1 first
            if rank.number == 2:
                rank.receive(1)
                rank.send(1)
                rank.receive(0)
            else:
                rank.send(2)
            if rank.number == 1:
                rank.receive(2)
        self.assertEqual(outcome_of(3, early, counts_steps=True).steps, [2])

    def test_a_rank_that_is_late_changes_nothing(self):
        def late(rank):
            time.sleep(0.1 * (rank.number == 1))
            for _ in range(3):
                time.sleep(0.05 * (rank.number == 2))
                ring(rank)
        self.assertEqual(outcome_of(3, late, counts_steps=True).steps, [6])

    def test_a_rank_that_asks_and_does_not_wait_is_served(self):
        def asks(rank):
            rank.start_receive((rank.number - 1) % rank.ranks)
            rank.start_send((rank.number + 1) % rank.ranks)
            while rank.sent or rank.wanted:
                rank.write(BLOCKED, context=rank.seen, number=hub_module.ASKS)
                rank.act(*HEADER.unpack(rank.exactly(HEADER.size)))
        self.assertEqual(outcome_of(3, asks, counts_steps=True).steps, [1])


class Hidden(unittest.TestCase):
    """Messages under way while their sender computes."""

    def hidden(self, *busy):
        def program(rank):
            if rank.number == 1:  # takes what has arrived only some time later
                rank.act(*HEADER.unpack(rank.exactly(HEADER.size)))
                time.sleep(0.4)
                return rank.receive(0)
            rank.start_send(1)
            time.sleep(0.2)
            for number in (1, 1, 7):  # once more, and one that was not sent
                rank.write(COMPUTES, number=number)
            for process in busy:
                process.kill()
            rank.wait()
            return rank.write(COMPUTES, number=1)  # too late
        outcome = outcome_of(2, program, processes=[process.pid for process in busy], counts_hidden=True)
        self.assertEqual((outcome.verdict, outcome.messages[0, 1][0]), ("ended", 1))
        return outcome.hidden

    def test_a_message_is_held_back_while_a_thread_is_awake_and_counted_once(self):
        with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
            self.assertEqual(self.hidden(busy), 1)

    def test_a_message_for_which_a_rank_sleeps_is_hidden_by_nothing(self):
        self.assertEqual(self.hidden(), 0)


class Deadlocks(unittest.TestCase):
    """A deadlock is a fact: all wait, nothing is under way, and nothing runs."""

    def test_who_waits_for_whom(self):
        outcome = outcome_of(2, lambda rank: rank.receive(1 - rank.number))
        self.assertEqual((outcome.verdict, outcome.detail),
                         ("deadlock", "rank 0 waits for a message of rank [1]\nrank 1 waits for a message of rank [0]"))

    def test_who_does_not_come_to_a_collective_call(self):
        def call(rank):
            if rank.number != 1:
                rank.write(MEET, rank.ranks, number=1, data=b"MPI_Barrier\0" + struct.pack("<i", rank.number))
                rank.write(BLOCKED, number=1, data=b"all others (MPI_Barrier)")
                rank.exactly(1)
        self.assertEqual(outcome_of(3, call).detail, "rank 0 waits for rank 1 to call MPI_Barrier\nrank 1 has ended\n"
                                                     "rank 2 waits for rank 1 to call MPI_Barrier")

    def test_a_rank_that_has_not_seen_its_message_does_not_wait(self):
        def starved(rank):
            if rank.number == 0:
                rank.send(1)
            else:
                rank.write(BLOCKED, number=1, data=b"a message of rank 0")
                time.sleep(3 * hub_module.SILENCE_S)
                rank.receive(0)
        self.assertEqual(outcome_of(2, starved).verdict, "ended")

    def test_a_rank_that_asks_now_and_then_does_not_wait(self):
        def polls(rank):
            if rank.number == 1:
                rank.receive(0)
                rank.send(0)
                return
            rank.start_receive(1)
            for start in (lambda: rank.start_send(1), lambda: None):
                rank.write(BLOCKED, context=rank.seen, number=hub_module.ASKS)
                time.sleep(2 * hub_module.SILENCE_S)
                start()
            rank.wait()
        for counts_steps in (False, True):
            self.assertEqual(outcome_of(2, polls, counts_steps=counts_steps).verdict, "ended")

    def test_a_process_without_a_processor_is_awake(self):
        with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy, subprocess.Popen(["sleep", "100"]) as asleep:
            try:
                os.sched_setscheduler(busy.pid, os.SCHED_IDLE, os.sched_param(0))  # so it may not run at all
                stillness = {process: Stillness([process.pid], 0.3) for process in (busy, asleep)}
                end = time.monotonic() + 1
                lasts = set()
                while time.monotonic() < end:
                    lasts |= {process for process, of_it in stillness.items() if of_it.lasts()}
                    time.sleep(0.01)
                self.assertEqual(lasts, {asleep})
                self.assertIsNone(sleep_of([busy.pid, asleep.pid]))
            finally:
                busy.kill()
                asleep.kill()


class Forged(unittest.TestCase):
    """A message that no MPI sends ends the job with a sentence."""

    def ends(self, program, sentence, ranks=1):
        outcome = outcome_of(ranks, program)
        self.assertEqual(outcome.verdict, "aborted")
        self.assertRegex(outcome.detail, sentence)

    def test_a_frame_without_end(self):
        def endless(rank):
            rank.write(MESSAGE, number=1, announced=1 << 62)
            while True:
                rank.connection.sendall(bytes(1 << 20))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        self.ends(endless, "rank 0 announces a frame of 4,611,686,018,427,387,904 bytes; one may have 67,108,864")
        self.ends(lambda rank: rank.write(BLOCKED, announced=1 << 20), "a frame of 1,048,576 bytes; one may have 1,024")
        self.assertLess(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, 100 << 10)

    def test_messages_that_nobody_receives(self):
        def flood(rank):
            while True:
                rank.start_send(0, bytes(1 << 20))
        with unittest.mock.patch("hub.MOST_BYTES", 8 << 20):
            self.ends(flood, "have sent [0-9,]+ bytes that none has received; at most 8,388,608 are kept")

    def test_a_collective_call_whose_answer_would_be_too_large(self):
        def gives(rank):
            rank.write(MEET, 2, number=1, data=b"MPI_Allgather\0" + struct.pack("<i", rank.number) + bytes(3 << 20))
            rank.exactly(1 << 30)
        with unittest.mock.patch("hub.MOST_BYTES", 8 << 20):
            self.ends(gives, "the ranks give more bytes to MPI_Allgather than the 8,388,608 that are kept for them", ranks=2)

    def test_entries_without_end(self):
        def each(*frame, data=b""):
            def program(rank):
                for number in range(1, 1000):
                    rank.write(*frame, number=number, data=data)
                rank.exactly(1)
            return program
        with unittest.mock.patch("hub.MOST_ENTRIES", 100):
            self.ends(each(BLOCKED), "rank 0 has more than 100 threads that wait")
            self.ends(each(MESSAGE), "more than 100 messages are under way")
            self.ends(each(MEET, 2, data=b"MPI_Barrier\0...."), "makes a collective call that MPI does not make", ranks=2)
        with unittest.mock.patch("hub.MOST_FRAMES", 900):
            self.ends(each(FINALIZED), "the ranks call MPI more than 900 times")

    def test_single_frames(self):
        for sentence, frame in (("sends to rank 7, which does not exist", dict(kind=MESSAGE, peer=7)),
                                ("a message that it has not received", dict(kind=ACK, peer=7)),
                                ("a collective call that MPI does not make", dict(kind=MEET, peer=1, data=b"x")),
                                ("a collective call that MPI does not make", dict(kind=MEET, peer=-1, data=b"MPI_Barrier\0....")),
                                ("a frame of kind 77, which there is not", dict(kind=77)),
                                ("ends the job with status 3", dict(kind=ABORT, tag=3))):
            self.ends(lambda rank, frame=frame: (rank.write(**frame), rank.exactly(1)), sentence)

    def test_what_is_not_there_is_not_acknowledged(self):
        def early(rank):
            if rank.number == 0:
                rank.start_send(1)
                rank.exactly(1)
            time.sleep(0.2)
            rank.write(ACK, 0, number=1)
            rank.exactly(1)
        with unittest.mock.patch("hub.LATE_S", 100):
            self.ends(early, "rank 1 acknowledges a message that it has not received", ranks=2)

    def test_texts_cannot_draw(self):
        def draws(rank):
            rank.write(BLOCKED, number=1, data="\x1b[2J\r\nrank 7 ünd ".encode() + b"x" * 500)
            rank.exactly(1)
        detail = outcome_of(1, draws).detail
        self.assertRegex(detail, r"^rank 0 waits for \?\[2J\?\?rank 7 \?\?nd x+$")
        self.assertLess(len(detail), 250)


class Fuzzer:
    """Ranks that write frames of a seed, some broken, while the hub serves them."""

    WEIGHTS = {MESSAGE: 8, ACK: 6, MEET: 4, BLOCKED: 8, RESUMED: 4, FINALIZED: 1, **dict.fromkeys((ABORT, 0, 9, (1 << 32) - 1), 0.05)}
    ODD = (0, 1, -1, 7, (1 << 31) - 1, -(1 << 31))

    def __init__(self, seed):
        self.random, self.sent, self.taken, self.verdicts = random.Random(seed), 0, 0, collections.Counter()

    def odd(self, usual):
        return usual if self.random.random() > 0.02 else self.random.choice(self.ODD)

    def frame(self, hub, rank):
        kind, = self.random.choices(list(self.WEIGHTS), self.WEIGHTS.values())
        mine = [key for key, message in hub.in_flight.items() if message.receiver == rank and not message.frame]
        if kind == ACK and not mine and self.random.random() < 0.98:
            kind = RESUMED
        data = self.random.randbytes(self.random.choice((0, 1, 9)))
        peer, context, number = {
            ACK: lambda: (mine[0][0], 0, mine[0][1]) if mine else (0, 0, 0),
            MEET: lambda: (len(hub.ranks), 0, sum(hub.outcome.collectives.values())),
            BLOCKED: lambda: (-1, hub.ranks[rank].told, self.random.randrange(3)),
        }.get(kind, lambda: (self.random.randrange(len(hub.ranks)), 0, self.sent))()
        if kind == MEET:
            data = (b"MPI_Barrier\0" + struct.pack("<i", rank) + data)[:self.random.choice((16, 16, 99, self.random.randrange(16)))]
        numbers = self.odd(number) % (1 << 64), (self.odd(len(data)) if self.random.random() < 0.5 else len(data)) % (1 << 64)
        return HEADER.pack(kind, self.odd(peer), self.odd(context), self.odd(0), *numbers) + data

    def job(self):
        hub, left = Hub(self.random.randint(1, 4), counts_steps=self.random.random() < 0.5), self.random.randint(1, 60)
        ranks, end, take = [other.dup() for other in hub.others], time.monotonic() + 5, hub._take

        def count(*frame):
            self.taken += 1
            take(*frame)
        hub._take = count

        def write():
            """Writes some frames each time that the hub asks how long it may go on."""
            nonlocal left
            for _ in range(self.random.randint(1, 4) if left > 0 else 0):
                rank, left, self.sent = self.random.randrange(len(ranks)), left - 1, self.sent + 1
                frame = self.frame(hub, rank)
                with contextlib.suppress(OSError):  # it has shut its end
                    ranks[rank].sendall(frame if self.random.random() < 0.99 else frame[:self.random.randrange(len(frame))])
                    if self.random.random() < 0.01:
                        ranks[rank].shutdown(socket.SHUT_WR)
            for rank in ranks if left <= 0 else ():
                rank.close()
            return end - time.monotonic()
        outcome = hub.run(lambda r: True, write, [])
        for rank in ranks:
            rank.close()
        self.verdicts[outcome.verdict] += 1
        return outcome


class Fuzz(unittest.TestCase):
    def test_broken_frames(self):
        wanted, fuzzer = 100_000 if "RANKWISE_ALL" in os.environ else 3_000, Fuzzer(60)
        open_files, before = len(os.listdir("/proc/self/fd")), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        while fuzzer.sent < wanted:
            self.assertNotIn("could not follow", fuzzer.job().detail)
        print(f"{fuzzer.sent:,} frames, {fuzzer.taken:,} of them read, in {fuzzer.verdicts.total():,} jobs: {dict(fuzzer.verdicts)}")
        self.assertEqual(set(fuzzer.verdicts) - {"ended", "deadlock", "aborted"}, set())
        self.assertGreater(fuzzer.taken, wanted / 2)
        self.assertLessEqual(len(os.listdir("/proc/self/fd")), open_files)
        self.assertLess(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, 50 << 10)


if __name__ == "__main__":
    unittest.main()
