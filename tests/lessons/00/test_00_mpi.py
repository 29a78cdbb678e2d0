"""Lesson 00: the parts on any number of ranks, the figures of the report, a real deadlock that ends, wrong input."""

import math
import unittest

from program_case import ProgramCase

QUICK = ["--repeats=3"]


class Lesson(ProgramCase):
    program = "lessons/00_mpi"

    def lines(self, *options, ranks):
        """The printed lines without blanks at their ends."""
        done = self.run_program(*options, ranks=ranks)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return [" ".join(line.split()) for line in done.stdout.splitlines()]


class Parts(Lesson):
    def test_all_parts_on_any_number_of_ranks(self):
        for ranks in (1, 2, 3, 4, 5):
            with self.subTest(ranks=ranks):
                report = self.report(*QUICK, ranks=ranks)  # all checks hold
                self.assertEqual((report["lesson"], report["ranks"]), ("00_mpi", ranks))
                names = {check["name"] for check in report["checks"]}
                self.assertTrue({"from the previous rank", "sum within a communicator", "MPI_Ssend in a circle",
                                 "broadcast = MPI_Bcast", "messages of the broadcast", "sum = MPI_Allreduce",
                                 "messages of the sum"} <= names, names)
                self.assertIn("letters", names)
                self.assertEqual("order by tag" in names, ranks > 1)
                self.assertEqual("ping_pong" in report, ranks > 1)

    def test_one_rank_is_told_what_needs_two(self):
        for part in ("order", "ping-pong", "eager"):
            self.assertIn("needs two ranks: start it with `mpirun -np 2`", self.lines(f"--show={part}", ranks=1))

    def test_ranks(self):
        self.assertIn("rank 0 of 3; has 0, and 200 from rank 2", self.lines("--show=ranks", ranks=3))

    def test_communicators(self):
        lines = self.lines("--show=communicators", ranks=5)
        self.assertIn("rank 4 is rank 2 of 3 even ranks, whose sum is 6", lines)
        self.assertIn("rank 3 is rank 1 of 2 odd ranks, whose sum is 4", lines)

    def test_order(self):
        lines = self.lines("--show=order", ranks=3)
        self.assertIn("and receives 2, 1, 3", lines)
        start = lines.index("from rank 1 tag 10 1 values: 1")
        self.assertEqual(lines[start + 1:start + 3], ["from rank 2 tag 20 1 values: 2", "from rank 2 tag 21 2 values: 2 2"])

    def test_broadcast(self):
        lines = self.lines("--show=broadcast", "--root=2", ranks=5)  # ranks counted from 2: 2 3 4 0 1
        for rank, sent in enumerate(("nothing", "nothing", "1 to rank 1, 1 to rank 3, 1 to rank 4", "1 to rank 0", "nothing")):
            self.assertIn(f"rank {rank} sends {sent}", lines)

    def test_messages_of_broadcast_and_sum_by_sender_and_receiver(self):
        report = self.report("--root=2", *QUICK, ranks=5)
        self.assertEqual(report["broadcast"]["sent"],
                         [[0, 0, 0, 0, 0], [0, 0, 0, 0, 0], [0, 1, 0, 1, 1], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]])
        self.assertEqual(report["sum"]["sent"],
                         [[8 if to == (rank + 1) % 5 else 0 for to in range(5)] for rank in range(5)])

    def test_sum(self):
        for count, first in ((10, "111 222 333 444"), (2, "111 222"), (1000003, "111 222 333 444")):
            lines = self.lines("--show=sum", f"--count={count}", ranks=3)
            self.assertIn(f"rank 1 sends 4 to rank 2; its sum begins {first}", lines)
        self.lines("--count=0", *QUICK, ranks=3)


class Deadlock(Lesson):
    def test_who_waits_for_whom(self):
        report = self.report("--show=deadlock", ranks=3)
        waits = {(row["call"], row["bytes"]): row["waits"] for row in report["deadlock"]}
        self.assertEqual(waits["MPI_Ssend", 8], [1, 1, 1])
        self.assertEqual(waits["MPI_Send", 4 << 20], [1, 1, 1])
        lines = self.lines("--show=deadlock", ranks=3)
        self.assertIn("MPI_Ssend of 8 bytes 3 of 3 wait: rank 0 waits for rank 1, rank 1 for rank 2, rank 2 for rank 0", lines)

    def test_a_real_one_is_ended_and_explained(self):
        done = self.run_program("--show=hang", "--timeout=1", ranks=3)
        self.assertEqual(done.returncode, 86, done.stdout + done.stderr)
        for r in range(3):
            self.assertIn(f"rank {r} is in MPI_Ssend of 8 bytes to rank {(r + 1) % 3}", done.stderr)


class Measured(Lesson):
    def test_the_line_is_that_of_least_squares(self):
        found = self.report("--show=ping-pong", *QUICK, ranks=2)["ping_pong"]
        times = [(m["bytes"], m["time_s"]) for m in found["messages"]]
        self.assertEqual([size for size, _ in times], [8 << i for i in range(20)])
        alpha, beta = found["alpha_s"], found["beta_s_per_byte"]
        errors = [((alpha + beta * size) / time - 1, size, time) for size, time in times]
        for term, slope in ((alpha, lambda size: 1), (beta, lambda size: size)):
            parts = [error * slope(size) / time for error, size, time in errors]
            derivative = sum(parts) / sum(map(abs, parts))  # of the sum of squares
            if term > 0:
                self.assertAlmostEqual(derivative, 0, delta=1e-9)
            else:  # a busy machine can hold a term at its bound: a negative one alone would fit better
                self.assertEqual(term, 0)
                self.assertGreaterEqual(derivative, -1e-9)
        self.assertAlmostEqual(found["residual"], math.sqrt(sum(e * e for e, _, _ in errors) / len(errors)), delta=1e-9)

    def test_the_limit_of_eager_sends_is_bracketed(self):
        eager = self.report("--show=eager", ranks=3)["eager"]
        self.assertEqual(eager["waits"], eager["ends_alone"] + 1)
        self.assertEqual([row["bytes"] for row in eager["late"]], [8, 512, 4096, 32768, 1 << 20])


class WrongInput(Lesson):
    def test_refused_before_the_first_message(self):
        self.assert_all_refused([
            (["--show=everything"], ["--show=everything", "deadlock"]),
            (["--count=-1"], ["--count=-1"]),
            (["--root=2"], ["--root=2", "0 to 1"]),
            (["--root=-1"], ["--root=-1"]),
            (["--repeats=0"], ["--repeats=0"]),
            (["--show=ranks", "--count=7"], ["--count=7 with --show=ranks", "broadcast or sum"]),
            (["--show=sum", "--root=1"], ["--root=1 with --show=sum"]),
            (["--show=sum", "--repeats=7"], ["--repeats=7 with --show=sum"]),
            (["--count=1000000000000"], ["--count=1000000000000", "0 to 67,108,864"]),
            (["--timeout=-1"], ["--timeout=-1"]),
            (["--show=hang", "--timeout=0"], ["--show=hang", "--timeout=2"]),
            (["--report=/nowhere/run.json"], ["/nowhere"]),
        ], ranks=2)
        self.assert_refused("--show=hang", ranks=1, says=["--show=hang", "mpirun -np 2"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
