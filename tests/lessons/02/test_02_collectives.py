"""Lesson 02: traffic equals the formulas, sums are right, tables show the messages, wrong input is refused."""

import json
import os
import re
import subprocess
import unittest

from program_case import BUILD, TIME_LIMIT_S, ProgramCase, mixed_job

QUICK = ["--count=1001", "--repeats=1"]


class Lesson(ProgramCase):
    program = "lessons/02_collectives"

    def found(self, report):
        """The findings of a report by (collective, algorithm)."""
        return {(c["collective"], c["algorithm"]): c for c in report["collectives"]}


class Formulas(Lesson):
    def test_every_collective_and_algorithm_for_any_number_of_ranks(self):
        for ranks in (1, 2, 3, 4, 5, 8):
            with self.subTest(ranks=ranks):
                report = self.report(*QUICK, ranks=ranks)  # all checks hold
                self.assertEqual((report["lesson"], report["ranks"]), ("02_collectives", ranks))
                self.assertEqual(report["layout"], {"dp": ranks, "tp": 1, "pp": 1})
                found = self.found(report)
                self.assertEqual({c for c, _ in found}, {"reduce-scatter", "all-gather", "all-reduce", "broadcast",
                                                         "reduce", "all-to-all-v", "barrier"}
                                 | ({"all-to-all"} if ranks == 1 else set()))  # no blocks of one size
                for name, c in found.items():
                    self.assertEqual(c["sent"], c["formula"], name)
                    self.assertEqual(c["scratch_bytes"], c["scratch_formula"], name)
                    self.assertEqual(len(c["sent"]), ranks)
                    self.assertEqual(c["wrong"], 0, name)

    def test_a_ring_sends_what_the_paper_says(self):
        for ranks, count in ((2, 1000), (3, 3000), (4, 4000), (4, 4 * 262144 * 3)):
            report = self.report(f"--count={count}", "--collectives=ring", "--repeats=1", ranks=ranks)
            found, size = self.found(report), 4 * count
            for sent in found["all-reduce", "ring"]["sent"]:
                self.assertEqual(sent["bytes"], 2 * (ranks - 1) * size // ranks)
                messages = 2 * (ranks - 1) * -(-size // ranks // (256 << 10))
                self.assertEqual(sent["messages"], messages)
            for half in ("reduce-scatter", "all-gather"):
                self.assertEqual({s["bytes"] for s in found[half, "ring"]["sent"]}, {(ranks - 1) * size // ranks})
        # N does not divide the count: together the ranks still send each segment N-1 times.
        found = self.found(self.report("--count=1001", "--collectives=ring", "--repeats=1", ranks=3))
        self.assertEqual(sum(s["bytes"] for s in found["all-reduce", "ring"]["sent"]), 2 * 2 * 4 * 1001)

    def test_an_all_to_all_sends_what_the_papers_say(self):
        for ranks, steps, hops in ((1, 0, 0), (2, 1, 1), (3, 2, 2), (4, 2, 4), (5, 3, 5), (8, 3, 12)):
            found = self.found(self.report("--collective=all-to-all", f"--count={250 * ranks}", "--repeats=1",
                                           "--check-messages", ranks=ranks))
            self.assertEqual({way for _, way in found}, {"pairwise", "bruck", "library"})
            self.assertEqual({(s["messages"], s["bytes"]) for s in found["all-to-all", "pairwise"]["sent"]},
                             {(ranks - 1, 1000 * (ranks - 1))})
            self.assertEqual({(s["messages"], s["bytes"]) for s in found["all-to-all", "bruck"]["sent"]},
                             {(steps, 1000 * hops)})
            self.assertEqual({c["wrong"] for c in found.values()}, {0})
        found = self.found(self.report("--collective=all-to-all-v", "--count=1000", "--repeats=1", ranks=4))
        own = [100, 300, 100, 300]  # elements that stay: blocks of 100 to 400, number 2 r mod 4 of rank r
        self.assertEqual([s["bytes"] for s in found["all-to-all-v", "pairwise"]["sent"]],
                         [4 * (1000 - stays) for stays in own])

    def test_counts_and_types(self):
        for options in (["--count=0"], ["--count=1"], ["--count=2", "--type=i64"], ["--count=1001", "--type=bf16"],
                        ["--count=1001", "--type=i32"], ["--count=70001", "--type=f64", "--root=2"]):
            with self.subTest(options=options):
                report = self.report(*options, "--repeats=1", ranks=3)
                self.assertTrue(all(c["wrong"] == 0 for c in report["collectives"]))

    def test_bytes_can_be_sent(self):
        report = self.report("--type=u8", "--collective=broadcast", "--count=3000", "--root=1", ranks=3)
        found = self.found(report)
        self.assertEqual([s["bytes"] for s in found["broadcast", "tree"]["sent"]], [0, 6000, 0])
        self.assertEqual([s["bytes"] for s in found["broadcast", "ring"]["sent"]], [0, 3000, 3000])

    def test_auto_says_what_it_is(self):
        report = self.report("--collectives=auto", *QUICK, ranks=2)
        self.assertEqual({(c["collective"], c["chosen"]) for c in report["collectives"] if c["chosen"] != "shared"},
                         {("all-to-all-v", "pairwise")})
        for count, chosen in ((1024, "bruck"), (1028, "pairwise")):  # blocks of 1 KiB, and longer ones
            report = self.report("--collective=all-to-all", "--collectives=auto", f"--count={count}", ranks=4)
            self.assertEqual(report["collectives"][0]["chosen"], chosen)

    def test_nodes_that_are_pretended(self):
        report = self.report("--collectives=hierarchical", "--collective=all-reduce", "--ranks-per-node=2", *QUICK,
                             "--check-messages", ranks=4)
        self.assertEqual(report["nodes"], 2)
        self.assertEqual(report["collectives"][0]["sent"], report["collectives"][0]["formula"])

    def test_dry_run_sends_nothing(self):
        done = self.run_program("--count=124439808", "--dry-run", ranks=4)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"all-reduce ring +746,638,848")

    def test_trace(self):
        path = os.path.join(self.folder, "run.trace.json")
        self.report(f"--trace={path}", *QUICK, ranks=2)
        with open(path, encoding="utf-8") as file:
            names = {event["name"] for event in json.load(file)["traceEvents"]}
        self.assertTrue({"all-reduce ring", "memory"} <= names, names)


class Steps(Lesson):
    def steps(self, collective, algorithm, ranks, *options):
        """The messages of each step: [{(from, to, what)}]."""
        report = self.report(f"--collective={collective}", f"--collectives={algorithm}", f"--count={500 * ranks}", "--repeats=1",
                             *options, ranks=ranks)
        steps = report["collectives"][0]["steps"]
        table = [set() for _ in range(1 + max(s["step"] for s in steps))]
        for s in steps:
            table[s["step"]].add((s["from"], s["to"], s["what"]))
        return table

    def test_ring(self):
        for N in (2, 3, 4):
            table = self.steps("reduce-scatter", "ring", N)
            self.assertEqual(len(table), N - 1)
            for k, step in enumerate(table):
                # The shard has been summed by the ranks after its owner, up to the sender.
                for r in range(N):
                    segment = (r - k - 1) % N
                    ranks = sorted((segment + 1 + j) % N for j in range(k + 1))
                    self.assertIn((r, (r + 1) % N, f"{segment}({'+'.join(map(str, ranks))})"), step)
            for k, step in enumerate(self.steps("all-gather", "ring", N)):
                self.assertEqual(step, {(r, (r + 1) % N, str((r - k) % N)) for r in range(N)})
        self.assertEqual(len(self.steps("all-reduce", "ring", 4)), 6)

    def test_the_textbook_ring_is_the_ring(self):
        self.assertEqual(self.steps("all-reduce", "textbook-ring", 3),
                         [{(0, 1, "2(0)"), (1, 2, "0(1)"), (2, 0, "1(2)")},
                          {(0, 1, "1(0+2)"), (1, 2, "2(0+1)"), (2, 0, "0(1+2)")},
                          {(0, 1, "0(all)"), (1, 2, "1(all)"), (2, 0, "2(all)")},
                          {(0, 1, "2(all)"), (1, 2, "0(all)"), (2, 0, "1(all)")}])
        for N in (2, 4):
            self.assertEqual(self.steps("all-reduce", "textbook-ring", N), self.steps("all-reduce", "ring", N))

    def test_trees(self):
        self.assertEqual(self.steps("broadcast", "tree", 5, "--root=1"),
                         [{(1, 2, "0..4")}, {(1, 3, "0..4"), (2, 4, "0..4")}, {(1, 0, "0..4")}])
        self.assertEqual(self.steps("reduce", "tree", 3), [{(1, 0, "0..2(1)")}, {(2, 0, "0..2(2)")}])
        self.assertEqual(self.steps("broadcast", "ring", 3), [{(0, 1, "0..2")}, {(1, 2, "0..2")}])

    def test_halving_goes_to_neighbours_first(self):
        self.assertEqual(self.steps("reduce-scatter", "halving", 4),
                         [{(0, 1, "1,3(0)"), (1, 0, "0,2(1)"), (2, 3, "1,3(2)"), (3, 2, "0,2(3)")},
                          {(0, 2, "2(0+1)"), (2, 0, "0(2+3)"), (1, 3, "3(0+1)"), (3, 1, "1(2+3)")}])

    def test_all_to_all(self):
        pairs = [{(r, r ^ k, f"{r}{r ^ k}") for r in range(4)} for k in (1, 2, 3)]
        self.assertEqual(self.steps("all-to-all", "pairwise", 4), pairs)
        shifts = [{(r, (r + k) % 3, f"{r}{(r + k) % 3}") for r in range(3)} for k in (1, 2)]
        self.assertEqual(self.steps("all-to-all", "pairwise", 3), shifts)
        self.assertEqual(self.steps("all-to-all", "bruck", 4),
                         [{(0, 1, "01,03"), (1, 2, "12,10"), (2, 3, "23,21"), (3, 0, "30,32")},
                          {(0, 2, "02,32"), (1, 3, "13,03"), (2, 0, "20,10"), (3, 1, "31,21")}])
        self.assertEqual(self.steps("all-to-all-v", "pairwise", 3), [{(0, 1, "01"), (2, 0, "20")}, {(0, 2, "02"), (1, 0, "10")}])

    def test_naive_goes_through_rank_0(self):
        table = self.steps("all-reduce", "naive", 3)
        self.assertEqual(table, [{(1, 0, "0..2(1)")}, {(2, 0, "0..2(2)")}, {(0, 1, "0..2(all)")}, {(0, 2, "0..2(all)")}])

    def test_printed_tables_have_a_line_a_rank(self):
        done = self.run_program("--collective=barrier", "--repeats=1", ranks=3)
        table = re.search(r"steps of barrier tree: dissemination\n(.*?)\n\n", done.stdout, re.DOTALL).group(1)
        self.assertEqual([line.split() for line in table.splitlines()],
                         [["step", "0", "step", "1"], ["rank", "0", "->", "1", "->", "2"],
                          ["rank", "1", "->", "2", "->", "0"], ["rank", "2", "->", "0", "->", "1"]])


class Measured(Lesson):
    def test_order_of_sums(self):
        count = 100000
        report = self.report(f"--count={count}", "--collective=all-reduce", "--repeats=1", ranks=4)
        order = {c["algorithm"]: c["order"] for c in report["collectives"]}
        self.assertTrue(all(o["same_bits"] for o in order.values()))
        self.assertEqual(order["naive"]["differ_by_rank"], 0)
        for algorithm in ("ring", "halving", "shared"):
            self.assertTrue(0.2 < order[algorithm]["differ_by_rank"] / count < 0.45, order)
            self.assertTrue(1e-8 < order[algorithm]["relative"] < 1e-7, order)
        self.assertGreater(order["ring"]["differ_by_tree"], 0)
        for algorithm in ("halving", "shared", "tree"):
            self.assertEqual(order[algorithm]["differ_by_tree"], 0)

    def test_bandwidth_follows_from_time(self):
        report = self.report("--count=50000", "--repeats=3", ranks=4)
        factors = {"all-to-all": 0.75, "all-to-all-v": 0.9, "all-reduce": 1.5, "reduce-scatter": 0.75, "all-gather": 0.75, "broadcast": 1, "reduce": 1, "barrier": 0}
        for c in report["collectives"]:
            self.assertGreater(c["time_s"], 0)
            self.assertAlmostEqual(c["algorithm_GBps"], 200000 / c["time_s"] * 1e-9, delta=1e-6)
            self.assertAlmostEqual(c["bus_GBps"], factors[c["collective"]] * c["algorithm_GBps"], delta=1e-6)

    def test_the_line_and_the_times_that_follow_from_it(self):
        report = self.report("--count=100000", "--collective=all-reduce", "--repeats=1", ranks=4)
        alpha, beta = report["fit"]["alpha_s"], report["fit"]["beta_s_per_byte"]
        # The line with the least squares of relative errors, however long the messages took on a busy machine.
        times = [(m["bytes"], m["time_s"]) for m in report["fit"]["messages"]]
        self.assertEqual(len(times), 8)
        errors = [(alpha + beta * size) / time - 1 for size, time in times]
        # Of a term that would be negative, and is zero, only the sign of the slope is known.
        for term, weights in ((alpha, [1 / time for _, time in times]), (beta, [size / time for size, time in times])):
            slope = sum(error * weight for error, weight in zip(errors, weights)) / sum(weights)
            if term > 0:
                self.assertAlmostEqual(slope, 0, delta=1e-6)
            else:
                self.assertGreaterEqual(slope, -1e-6)
        found, size = self.found(report), 400000
        for algorithm, expected in (("naive", 6 * (alpha + beta * size)),
                                    ("textbook-ring", 6 * (alpha + beta * size / 4)), ("ring", 6 * (alpha + beta * size / 4)),
                                    ("tree", 4 * (alpha + beta * size)), ("halving", 4 * alpha + 1.5 * beta * size)):
            self.assertAlmostEqual(found["all-reduce", algorithm]["model_s"] / expected, 1, delta=1e-6, msg=algorithm)
        report = self.report("--count=400000", "--collective=all-to-all", "--repeats=1", ranks=4)
        alpha, beta = report["fit"]["alpha_s"], report["fit"]["beta_s_per_byte"]
        for algorithm, expected in (("pairwise", 3 * (alpha + beta * size)), ("bruck", 2 * (alpha + beta * 2 * size))):
            model = self.found(report)["all-to-all", algorithm]["model_s"]
            self.assertAlmostEqual(model / expected, 1, delta=1e-6, msg=algorithm)


class WrongInput(Lesson):
    def test_what_is_known_wrong_before_the_first_message(self):
        for options, says in [
            (["--collectives=magic"], ["--collectives=magic", "ring"]),
            (["--collective=gossip"], ["--collective=gossip"]),
            (["--count=-1"], ["--count=-1"]),
            (["--root=2"], ["--root=2", "0 to 1"]),
            (["--root=-1"], ["--root=-1"]),
            (["--repeats=0"], ["--repeats=0"]),
            (["--collective=barrier", "--type=f64"], ["--type=f64 with --collective=barrier"]),
            (["--collective=all-gather", "--root=1"], ["--root=1 with --collective=all-gather", "broadcast or reduce"]),
            (["--dry-run", "--trace=trace.json"], ["--trace=trace.json with --dry-run"]),
            (["--ranks-per-node=-2"], ["--ranks-per-node=-2"]),
            (["--type=u8"], ["--type=u8", "summed"]),
            (["--type=u8", "--collective=reduce"], ["--type=u8"]),
            (["--collectives=shared", "--ranks-per-node=1"], ["--collectives=shared", "2 nodes"]),
            (["--collectives=naive", "--collective=broadcast"], ["naive", "all-reduce"]),
            (["--collectives=textbook-ring", "--collective=reduce"], ["textbook-ring", "all-reduce"]),
            (["--collectives=bruck", "--collective=all-to-all-v"], ["bruck", "all-to-all-v"]),
            (["--collectives=pairwise", "--collective=all-gather"], ["pairwise", "all-gather"]),
            (["--collectives=ring", "--collective=all-to-all"], ["ring", "pairwise, bruck"]),
            (["--collective=all-to-all", "--count=1001"], ["--count=1001", "multiple of 2"]),
            (["--collectives=bruck", "--count=1001"], ["--count=1001", "all-to-all-v"]),
            (["--count=8000000000"], ["this run needs 160,000,000,000 bytes a rank", "smaller --count"]),
            (["--report=/nowhere/run.json"], ["/nowhere"]),
        ]:
            with self.subTest(options=options):
                self.assert_refused(*options, ranks=2, says=says)

    def test_nodes_of_different_size(self):
        self.assert_refused("--collectives=hierarchical", "--ranks-per-node=2", ranks=3,
                            says=["--collectives=hierarchical", "same number of ranks"])

    def test_ranks_that_do_not_agree(self):
        program = os.path.join(BUILD, self.program)
        for one, other, says in [("--count=10", "--count=20", ["10 elements", "20 elements"]),
                                 ("--type=f32", "--type=i32", ["type f32", "type i32"]),
                                 ("--root=0", "--root=1", ["root 0", "root 1"])]:
            common = ["--check-messages", "--collective=broadcast", "--collectives=tree"]
            command = mixed_job(2, [program, one, *common], [program, other, *common])
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=TIME_LIMIT_S)
            self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
            self.assertEqual(done.stderr.count("error:"), 1, done.stderr)
            for text in ["rank 0", "rank 1", *says]:
                self.assertIn(text, done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
