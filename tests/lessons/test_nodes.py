"""All lessons on two nodes (nodes.py): what the plan says of memory and messages is what the run needs and sends.

With RANKWISE_ALL every algorithm of every lesson is run on every layout of the nodes; else a set that covers them.
"""

import concurrent.futures
import itertools
import os
import re

import nodes
from program_case import BUILD
from zero_case import ALL, LADDER, Lesson

L02, L03, L08, L10 = "lessons/02_collectives", LADDER[1], LADDER[6], LADDER[9]
PROGRAMS = [*LADDER[1:], "lessons/14_context_parallel", "lessons/15_experts", "lessons/16_five_axes"]  # those with ranks that train
PLAIN = ["ring", "tree", "halving", "library"]  # ask for no node
LEVELS = ["hierarchical", "auto"]
TWO = (2, 2)


class OnNodes(Lesson):
    def run_on(self, ranks, program, *options, in_turn=False):
        return nodes.made().run(ranks, [os.path.join(BUILD, program), *options], in_turn)

    def options(self, program, *more):
        if program == L02:
            return ["--count=70001", "--repeats=1", *more]
        for_2_3_4_or_6_ranks = ["--layers=4", "--heads=12", "--channels=48", "--sequence=32", "--global-batch=12"]
        return [self.data, *for_2_3_4_or_6_ranks, "--steps=2", *more]

    def planned(self, ranks, program, *options, in_turn=False):
        """Bytes of the rank that needs most, by a dry run."""
        done = self.run_on(ranks, program, *options, "--dry-run", in_turn=in_turn)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return int(re.search(r"^ +total +([\d,]+) ", done.stdout, re.MULTILINE)[1].replace(",", ""))

    def holds(self, ranks, program, *more, in_turn=False):
        """All checks hold, and the dry run's memory suffices; by day only for `auto`, which chooses among the others."""
        options = self.options(program, *more)
        if program != L02 and (ALL or "--collectives=auto" in more):
            options.append(f"--memory-limit={self.planned(ranks, program, *options, in_turn=in_turn)}B")
        done = self.run_on(ranks, program, *options, in_turn=in_turn)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn(" PASS ", done.stdout)
        self.assertNotIn(" FAIL ", done.stdout)

    def is_refused(self, ranks, program, *more, says):
        self.assert_is_refusal(self.run_on(ranks, program, *self.options(program, *more)), says)

    def all_of(self, cases, check):
        """Each case side by side with others: a start on two nodes takes its time."""
        with concurrent.futures.ThreadPoolExecutor(max_workers=3) as pool:
            runs = [(case, pool.submit(check, case)) for case in cases]
        for case, run in runs:
            with self.subTest(case=case):
                run.result()


class TwoNodes(OnNodes):
    def test_the_ranks_are_on_two_nodes(self):
        report = self.run_on(TWO, L02, "--dry-run").stdout
        for line in ("node 0: ranks 0 1", "node 1: ranks 2 3"):
            self.assertIn(line, report)
        self.assertIn("node 1: ranks 1 3", self.run_on(TWO, L02, "--dry-run", in_turn=True).stdout)

    def test_every_lesson_and_algorithm(self):
        every = [*itertools.product([L02, *PROGRAMS], LEVELS), (L02, "all")]
        plain = [*itertools.product([L02, *PROGRAMS], PLAIN)]
        # By day each lesson has one of LEVELS here, and the other in PartsOfOneNode.
        some = [*((program, LEVELS[i % 2]) for i, program in enumerate([L02, *PROGRAMS])), (L02, "all"),
                *((program, PLAIN[i % len(PLAIN)]) for i, program in enumerate(PROGRAMS))]
        self.all_of(every + plain if ALL else some, lambda case: self.holds(TWO, case[0], f"--collectives={case[1]}"))

    def test_ranks_that_are_dealt_out_in_turn(self):
        cases = itertools.product(PROGRAMS if ALL else (L08, L10), LEVELS)
        self.all_of(cases, lambda case: self.holds(TWO, case[0], f"--collectives={case[1]}", in_turn=True))

    def test_lines_across_nodes(self):
        lines = [(L08, "--tp=2", "--dp=2"), (L10, "--dp=4"), (L10, "--tp=4"), (L10, "--pp=4")]
        cases = [(program, algorithm, *degrees) for algorithm in LEVELS for program, *degrees in lines]
        self.all_of(cases if ALL else cases[:2] + cases[-2:],
                    lambda case: self.holds(TWO, case[0], f"--collectives={case[1]}", *case[2:]))

    def test_shared_memory_is_refused(self):
        self.all_of([L02, *PROGRAMS], lambda program: self.is_refused(
            TWO, program, "--collectives=shared", says=["--collectives=shared, but the ranks are on 2 nodes"]))

    def test_a_byte_less_than_the_plan_is_refused(self):
        def check(program):
            options = self.options(program, "--collectives=hierarchical")
            total = self.planned(TWO, program, *options)
            done = self.run_on(TWO, program, *options, f"--memory-limit={total - 1}B")
            self.assert_is_refusal(done, ["--memory-limit"])
        self.all_of(PROGRAMS if ALL else (L03, L08, L10), check)


class NodesOfDifferentSize(OnNodes):
    def layouts(self, *algorithms):
        """Each lesson on three ranks beside one, and some on two beside one."""
        return [(ranks, program, algorithm) for program in [L02, *PROGRAMS] for algorithm in algorithms
                for ranks in ([(3, 1), (2, 1)] if ALL or program in (L03, L08) else [(3, 1)])]

    def test_auto_and_others_hold(self):
        self.all_of(self.layouts("auto", *(PLAIN if ALL else [])),
                    lambda case: self.holds(*case[:2], f"--collectives={case[2]}"))

    def test_lines_of_which_some_are_on_one_node(self):
        self.all_of([(L08, "--tp=2", "--dp=2"), (L10, "--tp=2", "--dp=2")],
                    lambda case: self.holds((3, 1), case[0], "--collectives=auto", *case[1:]))

    def test_two_levels_are_refused(self):
        self.all_of(self.layouts("hierarchical"), lambda case: self.is_refused(
            *case[:2], f"--collectives={case[2]}", says=["--collectives=hierarchical", "same number of ranks"]))

    def test_two_levels_hold_where_each_rank_is_a_node(self):
        self.all_of(PROGRAMS if ALL else (L03, L08), lambda program: self.holds(
            (3, 1), program, "--collectives=hierarchical", "--ranks-per-node=1"))


class PartsOfOneNode(OnNodes):
    def test_every_lesson_and_algorithm(self):
        every = [*itertools.product(PROGRAMS, LEVELS, (1, 2))]
        some = [(program, LEVELS[i % 2], 2) for i, program in enumerate(PROGRAMS)]
        self.all_of(every if ALL else some, lambda case: self.holds(
            (4,), case[0], f"--collectives={case[1]}", f"--ranks-per-node={case[2]}"))

    def test_parts_of_different_size(self):
        programs = PROGRAMS if ALL else (L03, L10)
        self.all_of(programs, lambda program: self.holds((4,), program, "--collectives=auto", "--ranks-per-node=3"))
        self.all_of(programs, lambda program: self.is_refused(
            (4,), program, "--collectives=hierarchical", "--ranks-per-node=3", says=["same number of ranks"]))

    def test_lines_that_meet_the_parts_unevenly(self):
        options = ["--collectives=hierarchical", "--ranks-per-node=3", "--tp=2", "--dp=3"]
        self.all_of([L08, L10], lambda program: self.is_refused(
            (6,), program, *options, says=["--collectives=hierarchical", "along dp (0 2 4)"]))


if __name__ == "__main__":
    nodes.main()
