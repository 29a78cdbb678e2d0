"""Grades implement exercises: rows of exercise, points, verdict and feedback."""

from exercise_tree import Refused
from judge import Judge

MOST_DETAIL = 4000  # characters of what a program or a compiler said


class Grader:
    """Grades against one course. Several threads may use it at a time."""

    def __init__(self, root, tree, work, protected=True):
        self.judge = Judge(root, tree, work / "judge", protected)

    def prepare(self, regions):
        """Builds what is not a student's; Refused if the course itself does not compile."""
        without = [region.exercise for region in regions if region.exercise not in self.judge.judged]
        if without:
            raise Refused(f"these exercises have no cases in tests/judge/: {', '.join(without)}")
        self.judge.build([region.exercise for region in regions])

    def rows(self, regions, submitted, *names):
        """The rows of these exercises. @param submitted  path -> bytes of the student's files, or why there are none.
        @param names  decide the inputs."""
        return [self._row(region, submitted.get(region.path, f"{region.path} is missing"), names) for region in regions]

    def _row(self, region, content, names):
        verdict, detail = "refused", content
        if isinstance(content, bytes):
            verdict, detail = self.judge.grade(region.exercise, content, *names)
        if len(detail) > MOST_DETAIL:
            detail = detail[:MOST_DETAIL] + " ..."
        return dict(exercise=region.exercise, kind="implement", title=region.title,
                    points=region.points if verdict == "passed" else 0, of=region.points, verdict=verdict, detail=detail)
