"""Verdicts in words: what a student reads of a run of a training program that went wrong."""

import collections
import io
import pathlib
import sys
import types
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "scripts/course"))

from hub import Outcome  # noqa: E402
from runner import read_answers, read_report  # noqa: E402
from verdicts import compare, first_difference  # noqa: E402

JUDGED = types.SimpleNamespace(number="03.1", fields=("loss", "digest"), near={}, explain=None, hint="")
CASE = types.SimpleNamespace(text="4 ranks", options=["--steps=2"])


def answer(**report):
    return types.SimpleNamespace(outputs=[], text="", reason="ended", report={"loss": [5.5], "digest": "a", **report}, outcome=None)


class Training(unittest.TestCase):
    def test_a_run_that_is_right_passes(self):
        self.assertEqual(compare(JUDGED, [CASE], answer(), answer(first_difference="")), ("passed", ""))

    def test_the_first_wrong_tensor_is_named(self):
        sentence = "step 0, gradients summed: summed gradient of wte.weight. It lacks the gradient of rank 1."
        verdict, detail = compare(JUDGED, [CASE], answer(), answer(loss=[5.4], first_difference=sentence))
        self.assertEqual(verdict, "failed")
        self.assertIn("loss[0]: got 5.4, expected 5.5", detail)
        self.assertTrue(detail.endswith("differs from a run on one device: " + sentence), detail)

    def test_where_no_tensor_was_compared_nothing_is_said_of_it(self):
        for report in ({}, {"first_difference": ""}):
            self.assertNotIn("tensor", compare(JUDGED, [CASE], answer(), answer(loss=[5.4], **report))[1])

    def test_a_call_that_the_judge_does_not_have_is_named(self):
        for reason, said in (("ended", "*** The MPI_Cart_create() function was called before MPI_INIT was invoked.\n"),
                             ("deadlock", "Attempting to use an MPI routine (internal_Cart_create) before initializing or after finalizing MPICH\n")):
            got = types.SimpleNamespace(**{**vars(answer()), "report": None, "reason": reason, "text": said, "outcome": Outcome()})
            self.assertIn("the MPI in which exercises are judged has no MPI_Cart_create()", compare(JUDGED, [CASE], answer(), got)[1])

    def test_what_a_program_says_of_itself_stays_short(self):
        detail = compare(JUDGED, [CASE], answer(), answer(loss=[5.4], first_difference="x" * 10_000))[1]
        self.assertLess(len(detail), 1000)

    def test_what_a_program_forges_is_a_verdict(self):
        for last in ({"not implemented": 3}, {"error": {}}, {"outputs": 10**400}, {}):
            got = types.SimpleNamespace(outputs=[[last]], text="", reason="ended", report=None, outcome=None)
            wanted = types.SimpleNamespace(outputs=[[{"outputs": 1.5}]], report=None, outcome=None)
            self.assertEqual(compare(JUDGED, [types.SimpleNamespace(text="x", options=None)], wanted, got)[0], "failed", last)

    def test_no_more_than_a_number_of_the_expected_answer_is_shown(self):
        expected = answer(loss=[5.25, 6.75, 7.125])
        judged = types.SimpleNamespace(**{**vars(JUDGED), "explain": lambda case, rank, place, expected, got: str(isinstance(got, float) and int(got))})
        for got in ([5.25, 6.5, 0.0], [1.0], None, {"a": 1}, "x" * 10_000, [float("nan"), 0, 0], [float("inf"), 0, 0], [10**400, 0, 0]):
            detail = compare(judged, [CASE], expected, answer(loss=got))[1]
            self.assertLessEqual(sum(number in detail for number in ("5.25", "6.75", "7.125")), 1, detail)
            self.assertLess(len(detail), 200)
        self.assertIn("loss: got None, expected a list with 3 elements", compare(JUDGED, [CASE], expected, answer(loss=None))[1])


class Counted(unittest.TestCase):
    """A program may have the driver's MPI_Barrier and what it gives to it in its hands."""

    def test_barriers_that_are_moved_or_carry_data(self):
        judged = types.SimpleNamespace(**{**vars(JUDGED), "fields": (), "traffic": "sums", "steps": lambda ranks: 2})
        cases = [types.SimpleNamespace(text="a case", options=None, ranks=3, hides=False)] * 2

        def run(steps, given=0):
            outcome = Outcome(steps=steps, collectives=collections.Counter(MPI_Barrier=len(steps) - 1), given=collections.Counter(MPI_Barrier=given))
            return types.SimpleNamespace(outputs=[[{"outputs": {}}] * 2], text="", reason="ended", report=None, outcome=outcome)
        for steps, given, verdict in (([2, 2, 0, 0], 0, "passed"), ([1, 1, 0, 0], 0, "passed"), ([0, 0, 0, 9], 0, "failed"),
                                      ([0, 4, 0, 0], 0, "failed"), ([2, 2, 0, 0], 8, "failed")):
            self.assertEqual(compare(judged, cases, run([2, 2, 0, 0]), run(steps, given))[0], verdict, (steps, given))
        self.assertIn("the ranks called MPI_Barrier", compare(judged, cases, run([2, 2, 0, 0]), run([1, 1, 1, 1, 0]))[1])


class Forged(unittest.TestCase):
    """Whatever a program answers, there is a verdict."""

    FUNCTION = types.SimpleNamespace(number="01.1", fields=(), near={"": 1e-4}, hint="", steps=None,
                                     explain=lambda *given: str(int(given[4])) if isinstance(given[4], float) else None)

    def verdict_of(self, line):
        case = types.SimpleNamespace(text="a case", options=None, ranks=0)
        right = types.SimpleNamespace(outputs=[[{"outputs": {"dx": [1.0, 2.0], "n": 2, "sum": 3.0}}]], report=None)
        got = types.SimpleNamespace(outputs=[read_answers(line)], text=line, reason="ended", report=None, outcome=None)
        return compare(self.FUNCTION, [case], right, got)

    def test_answers(self):
        many = "1" * 400
        for outputs in ("3", "[]", "null", '{"dx": 7}', '{"dx": [[], {}]}', '{"dx": [1.0, true]}', '{"dx": [NaN, Infinity]}',
                        '{"dx": "' + "x" * 9999 + '"}', f'{{"dx": [{many}, {many}]}}', f'{{"dx": [1.0, 2.0], "n": {many}}}',
                        f'{{"dx": [1.0, 2.0], "n": 2, "sum": -{many}}}', '{"dx": [1.0, 2.0], "n": 2, "sum": "3.0"}'):
            verdict, detail = self.verdict_of(f'ANSWER {{"outputs": {outputs}}}')
            self.assertEqual(verdict, "failed", outputs)
            self.assertLess(len(detail), 600)
        self.assertEqual(self.verdict_of('ANSWER {"outputs": {"dx": [1, 2.0], "n": 2, "sum": 3}}'), ("passed", ""))

    def test_less_scratch_than_the_reference_takes_is_right(self):
        for got, found in ((8, None), (0, None), (9, ("bytes of scratch", 8, 9)), (-1, ("bytes of scratch", 8, -1)), (False, ("bytes of scratch", 8, False))):
            self.assertEqual(first_difference({"bytes of scratch": 8}, {"bytes of scratch": got}, {}), found)

    def test_what_is_no_answer(self):
        for line in ('ANSWER {"not implemented": 3}', 'ANSWER {"not implemented": {"a": []}}', 'ANSWER {"error": null}', "ANSWER ",
                     "ANSWER 3", "ANSWER " + "[" * 100_000, "ANSWER {" * 1000, 'ANSWER {"error": "' + "x" * 99_999 + '"}', ""):
            verdict, detail = self.verdict_of(line)
            self.assertEqual(verdict, "failed", line[:40])
            self.assertLess(len(detail), 2100)
        self.assertEqual(self.verdict_of('ANSWER {"not implemented": "exercise 01.1 is not implemented"}')[0], "not implemented")

    def test_reports(self):
        for text, report in ((b'\nREPORT {"loss": 1}', {"loss": 1}), (b"\nREPORT {}\nREPORT [1]", None), (b"", None),
                             (b"\nREPORT " + b"{" * 9999, None), (b"no report", None), (b"\nREPORT \xff", None),
                             (b"x" * (5 << 20) + b"\nREPORT {}", {})):
            self.assertEqual(read_report(io.BytesIO(text)), report)


if __name__ == "__main__":
    unittest.main(verbosity=2)
