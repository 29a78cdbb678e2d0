"""scripts/film/film.py: the data of its pages, its questions, and what it refuses."""

import contextlib
import copy
import io
import json
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "scripts/film"))
import film  # noqa: E402
from documents import status_of  # noqa: E402
import step  # noqa: E402

LINE = "lessons/06_zero3/06_zero3.cpp:"


def span(rank, ts, dur, kind, name, line=1):
    """Virtual time is a thousandth of wall time: a microsecond is a nanosecond there."""
    return {"ph": "X", "pid": rank, "tid": 0, "ts": ts, "dur": dur, "ps": 1000 * ts, "dur_ps": 1000 * dur, "cat": kind, "name": name,
            "args": {"where": f"{LINE}{line}"}}


def held(rank, ts, **bytes_):
    return {"ph": "C", "pid": rank, "ts": ts, "ps": 1000 * ts, "name": "memory", "args": bytes_}


def message(sender, receiver, sent, received, bytes_, collective="send", call=0, purpose="training step", tid=4, counted=True):
    """The two ends of an arrow."""
    args = {"from": sender, "to": receiver, "bytes": bytes_, "group": "world", "call": call, "purpose": purpose, "all_bytes": 2 * bytes_,
            "counted": counted, "where": f"{LINE}9"}
    end = {"cat": "message", "name": collective, "id": hash((sender, receiver, sent)), "tid": tid, "args": args}
    return [{**end, "ph": "s", "pid": sender, "ts": sent, "ps": 1000 * sent},
            {**end, "ph": "f", "pid": receiver, "ts": received, "ps": 1000 * received}]


def rank_of(rank):
    """One step of a rank, from 100 to 200: unit 1 is gathered and freed, its gradients are reduced."""
    other = 1 - rank
    return [
        {"ph": "M", "pid": rank, "tid": 0, "name": "thread_name", "args": {"name": "compute"}},
        {"ph": "M", "pid": rank, "tid": 4, "name": "thread_name", "args": {"name": "hidden"}},
        held(rank, 50, parameters=100, gradients=0),
        held(rank, 105, parameters=180, gradients=0),
        *message(rank, other, 110, 120, 40, "all-gather", 1, "gathering unit 1"),
        span(rank, 110, 10, "hidden", "gathering unit 1"),
        span(rank, 110, 12 + rank, "exposed", "waiting for a collective", 30),
        span(rank, 125, 15, "compute", "forward pass of unit 1", 40),
        held(rank, 142, parameters=180, gradients=80),
        span(rank, 145, 15, "compute", "backward pass of unit 2", 50),
        span(rank, 160, 10, "compute", "backward pass of unit 1", 50),
        held(rank, 171, parameters=100, gradients=80),
        *message(rank, other, 172, 180, 40, "reduce-scatter", 2, "bucket of unit 1"),
        held(rank, 185, parameters=100, gradients=0),
        *message(rank, other, 190, 195, 8, "all-reduce", 3, "training step", 0, False),
        span(rank, 100, 100, "compute", "training step", 60),
    ]


TRACE = {"traceEvents": rank_of(0) + rank_of(1)}
ON_DEVICE = {"parameters": {"current": 100, "peak": 180, "formula": 100, "formula_peak": 180},
             "gradients": {"current": 0, "peak": 80, "formula": 0, "formula_peak": 80}}
REPORT = {"lesson": "06_zero3", "ranks": 2, "model": {"name": "nano"}, "loss": [5.5],
          "memory_ranks": [{"device": ON_DEVICE}] * 2, "traffic": {"world": {"bytes": 80}}}


class Data(unittest.TestCase):
    def setUp(self):
        self.step = step.Step(REPORT, TRACE)
        self.data = film.data_of(self.step)

    def test_times_begin_with_the_step_on_both_clocks(self):
        self.assertEqual(self.step.length, [100_000, 100])
        forward = next(s for s in self.step.pieces[0] if s["kind"] == "forward")
        self.assertEqual((forward["begin"], forward["end"]), ([25_000, 25], [40_000, 40]))
        self.assertEqual(forward["where"], f"{LINE}40")

    def test_messages_and_their_sum_by_axis(self):
        self.assertEqual(len(self.data["messages"]), 6)
        self.assertEqual(self.data["traffic"], {"world": 80})
        self.assertEqual(sum(m["bytes"] for m in self.step.messages if m["from"] == 0), 88)  # with what no formula is about

    def test_collectives_outside_of_spans_are_communication(self):
        bare = [s for s in self.step.pieces[0] if s["name"] == "all-reduce"]
        self.assertEqual([(s["kind"], s["lane"], s["begin"][0], s["end"][0]) for s in bare], [("exposed", 0, 90_000, 95_000)])

    def test_memory_is_what_the_step_began_with_and_its_changes(self):
        self.assertEqual(self.data["ranks"][1]["held"], {"parameters": 100, "gradients": 0})
        changes = [(w, self.data["words"][category], change) for w, _, category, change in self.data["ranks"][1]["changes"]]
        self.assertEqual(changes, [(5_000, "parameters", 80), (42_000, "gradients", 80), (71_000, "parameters", -80),
                                   (85_000, "gradients", -80)])

    def test_a_unit_is_whole_until_its_buffer_is_freed(self):
        parameters, gradients = self.step.tensors()
        self.assertEqual(parameters["name"], "unit 1, parameters")
        self.assertEqual([(time[0], state) for time, state in parameters["ranks"][0]],
                         [(-1, "sharded"), (10_000, "on its way"), (20_000, "whole"), (71_000, "sharded")])
        self.assertEqual(gradients["name"], "unit 1, gradients")
        self.assertEqual([(time[0], state) for time, state in gradients["ranks"][0]],
                         [(-1, "nothing"), (45_000, "partial"), (72_000, "on its way"), (80_000, "sharded")])
        self.assertEqual(gradients["places"], [[0, 2], [1, 2]])

    def test_of_units_of_one_size_each_has_its_own_buffer(self):
        events = [event for event in TRACE["traceEvents"] if event["ph"] != "C"]
        for rank in range(2):
            events += message(rank, 1 - rank, 121, 124, 40, "all-gather", 4, "gathering unit 3", counted=False)
            events += [held(rank, ts, parameters=bytes_, gradients=gradients) for ts, bytes_, gradients in
                       [(50, 100, 0), (104, 180, 0), (105, 260, 0), (130, 260, 80), (135, 180, 80), (140, 180, 0), (171, 100, 0)]]
        parameters = [row for row in step.Step(REPORT, {"traceEvents": events}).tensors() if row["name"].endswith("parameters")]
        self.assertEqual([row["ranks"][0][-1][0][0] for row in parameters], [35_000, 71_000])

    def test_the_source_of_a_lesson_is_in_the_page(self):
        lines = self.data["files"]["lessons/06_zero3/06_zero3.cpp"]
        self.assertEqual(lines[0], self.data["title"].replace("Lesson", "// Lesson"))

    def test_a_trace_brings_no_other_file_into_the_page(self):
        for name in ("README.md", "/etc/passwd", "lessons/../README.md", "lessons/06_zero3/README.md", "gpt2/model.cpp", "lessons", "a\0b"):
            trace = copy.deepcopy(TRACE)
            for event in trace["traceEvents"]:
                if "where" in event.get("args", {}):
                    event["args"]["where"] = f"{name}:1"
            with self.subTest(name=name), contextlib.suppress(*[ValueError] if "\0" in name else []):
                self.assertEqual(film.sources(step.Step(REPORT, trace)), {})
        with tempfile.TemporaryDirectory() as folder:
            other = pathlib.Path(folder, "other.cpp")
            other.write_text("not of a lesson", encoding="utf-8")
            self.assertEqual(film.title({"lesson": "../" * 20 + str(other.with_suffix(""))}), "Lesson " + "../" * 20 + folder + "/other")
            self.assertEqual(film.source("lessons" + "/.." * 20 + str(other)), [])


class Quiz(unittest.TestCase):
    def setUp(self):
        self.step = step.Step(REPORT, TRACE)

    def answered(self, make, clock=0):
        question = make(self.step, clock)
        self.assertEqual(len(set(question["choices"])), len(question["choices"]))
        return question["at"], question["rank"], question["choices"][question["answer"]]

    def test_answers(self):
        self.assertEqual(self.answered(film.bytes_to_come), (71_999, 1, "48 bytes"))
        self.assertEqual(self.answered(film.bytes_to_come, 1), (71, 1, "48 bytes"))
        self.assertEqual(self.answered(film.category_at_its_peak), (23_500, 0, "parameters"))  # then gradients are, too
        self.assertEqual(self.answered(film.longest_wait)[1:], (1, "rank 1"))  # 13 and 5 us, not 12 and 5
        self.assertEqual(self.answered(film.state_of_a_tensor), (85_500, 1, "sharded"))

    def test_questions_come_in_order_of_time(self):
        for clock in range(2):
            times = [question["at"] for question in film.questions(self.step, clock)]
            self.assertEqual((len(times), times), (4, sorted(times)))

    def test_a_question_whose_answer_is_not_clear_is_not_asked(self):
        trace = copy.deepcopy(TRACE)
        for event in trace["traceEvents"]:
            if event.get("cat") == "exposed":
                event["dur"] = 12
        self.assertIsNone(film.longest_wait(step.Step(REPORT, trace), 0))


class Program(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.page = self.folder / "film.html"

    def run_script(self, report=REPORT, trace=TRACE, *options):
        """Status, output, complaints."""
        paths = []
        for name, document in (("report", report), ("trace", trace)):
            paths.append(self.folder / f"{name}.json")
            if document is not None:
                paths[-1].write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = status_of(film.main, [*map(str, paths), f"--output={self.page}", *options])
        return status, out.getvalue(), err.getvalue()

    def test_page(self):
        status, out, err = self.run_script()
        self.assertEqual((status, err), (0, ""))
        self.assertIn("2 ranks, 6 messages, 176 bytes sent", out)
        page = self.page.read_text(encoding="utf-8")
        self.assertNotIn("[[film", page)
        self.assertIn("default-src 'none'", page)

    def refuse(self, says, report=REPORT, trace=TRACE, *options):
        status, out, err = self.run_script(report, trace, *options)
        self.assertEqual((status, out), (2, ""))
        self.assertEqual(err.count("error:"), 1)
        self.assertIn(says, err)
        self.assertFalse(self.page.exists())

    def test_what_it_refuses(self):
        def changed(document, **values):
            return {**document, **values}

        of_one = [event for event in TRACE["traceEvents"] if event["pid"] == 0]
        older = [event for event in TRACE["traceEvents"] if event["ph"] not in "sf"]
        lost = [event for event in TRACE["traceEvents"] if event["ph"] != "f"]
        self.refuse("report.json cannot be read: No such file or directory.\n", None)
        self.refuse("report.json cannot be read", "no JSON")
        self.refuse("one rank only", REPORT, {"traceEvents": of_one})
        self.refuse("no messages", REPORT, {"traceEvents": older})
        self.refuse("does not say what memory rank 0 has before its step",
                    REPORT, {"traceEvents": [event for event in TRACE["traceEvents"] if event["ph"] != "C" or event["ts"] > 100]})
        self.refuse("never arrives", REPORT, {"traceEvents": lost})
        self.refuse("not a report and a trace of a lesson.\n", {}, TRACE)
        self.refuse("not a report and a trace", REPORT, [])
        self.refuse("of different runs", changed(REPORT, loss=[5.5, 5.4]))
        self.refuse("of different runs", changed(REPORT, memory_ranks=[{"device": ON_DEVICE}] * 3))
        self.refuse("80 bytes along world in messages of the trace and 90 in the report", changed(REPORT, traffic={"world": {"bytes": 90}}))
        self.refuse("steps 0 to 0, and not 1", REPORT, TRACE, "--step=1")


if __name__ == "__main__":
    unittest.main()
