"""Grades implement exercises: rows of exercise, points, verdict and feedback.

Exercises with cases in tests/judge/ are judged (judge.py). A course that has none for some exercises grades these with their
ctest tests, without a sandbox: for courses of one's own, not for the submissions of strangers.
"""

import threading

import exercise
from exercise_bench import Bench
from exercise_tree import Refused, markers
from judge import Judge


class Grader:
    """Grades against one course. Several threads may use it at a time."""

    def __init__(self, root, tree, work, protected=True):
        self.tree, self.judge, self.bench = tree, Judge(root, tree, work / "judge", protected), Bench(root, work / "tests")
        self.bench_lock = threading.Lock()
        self.log = self.bench.log

    def prepare(self, regions):
        """Builds what is not a student's; Refused if the course itself does not compile."""
        judged, tested = self._apart(regions)
        self.judge.build([region.exercise for region in judged])
        if tested:
            built, output = self.bench.build(self.tree, [region.exercise for region in tested])
            if not built:
                raise Refused(f"the course itself does not compile: {self.bench.first_error(output)}")

    def _apart(self, regions):
        judged = [region for region in regions if region.exercise in self.judge.judged]
        return judged, [region for region in regions if region.exercise not in self.judge.judged]

    def rows(self, regions, submitted, student, secret):
        """The rows of these exercises. @param submitted  path -> bytes of the student's files."""
        judged, tested = self._apart(regions)
        rows = []
        for region in judged:
            verdict, detail = ("refused", f"{region.path} is missing") if region.path not in submitted else \
                self.judge.grade(region.exercise, submitted[region.path], secret, student)
            rows.append(self._row(region, verdict, detail))
        if tested:
            rows += self._tested(tested, submitted)
        return sorted(rows, key=lambda row: [int(part) for part in row["exercise"].split(".")])

    def _tested(self, regions, submitted):
        """The rows of exercises that their ctest tests grade."""
        files = {}
        for path in sorted({region.path for region in regions}):
            if path not in submitted:
                return [self._row(region, "refused", f"{path} is missing") for region in regions]
            text = submitted[path].decode(errors="replace").replace("\r\n", "\n")
            if markers(path, text) != markers(path, self.tree[path].decode()):
                why = (f"{path}: the lines BEGIN EXERCISE and END EXERCISE must be those of the course; restore them and "
                       "write only between them")
                return [self._row(region, "refused", why) for region in regions]
            files[path] = exercise.transplanted(path, self.tree[path].decode(), text, regions)
        with self.bench_lock:
            rows = exercise.judge(self.bench, self.tree, regions, files)
        return [self._row(region, row["verdict"], row["detail"]) for region, row in zip(regions, rows)]

    @staticmethod
    def _row(region, verdict, detail):
        return dict(exercise=region.exercise, kind="implement", title=region.title,
                    points=region.points if verdict == "passed" else 0, of=region.points, verdict=verdict, detail=detail)
