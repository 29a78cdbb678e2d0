"""Cases of the exercise of lesson 11. See scripts/course/judge.py."""

from judge import Case, exercise


@exercise("11.1", hint="on which rank is W deferred longest, and how many W are left when the last B is done?")
def schedule(draw):
    for p, more in ((1, 0), (1, draw.size(1, 4)), (2, 0), (3, draw.size(0, 3)), (4, draw.size(1, 9)), (draw.size(5, 8), 0),
                    (draw.size(2, 7), draw.size(1, 12))):
        yield Case({"p": p, "m": p + more}, "{p} ranks, {m} micro-batches")
