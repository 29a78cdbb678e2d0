"""Cases of the exercises of lesson 00. See scripts/course/judge.py."""

from judge import Case, exercise

LIBRARY = ("common/collectives/",)  # it has a broadcast and a sum
COMMUNICATORS = ("all ranks", "all ranks, numbered backwards", "every other rank, numbered backwards")


def communicators(draw, ranks):
    """All of them where there are ranks enough, else that of all ranks."""
    return COMMUNICATORS if ranks > 2 else COMMUNICATORS[:ranks]


def along_a_tree(ranks):
    return (ranks - 1).bit_length()


def around_a_ring(ranks):
    return 2 * (ranks - 1)


def which_ranks(case, rank, place, expected, got):
    """Each rank's part of a sum has four bits of its own, so a wrong sum tells which ranks are in it."""
    if not place.startswith("values[") or not isinstance(got, float) or got < 1 or got != int(got):
        return None
    part = [(int(got) >> 4 * r) % 16 for r in range(case.ranks)]
    return f"element {place[7:-1]} is the sum of {sum(p > 0 for p in part)} ranks: {', '.join(str(r) for r, p in enumerate(part) if p)}"


@exercise("00.1", hint="which rank receives first, or at the same time as it sends? If none does, all wait")
def neighbours(draw):
    for ranks in (1, 2, 3, draw.size(4, 6)):
        for comm in communicators(draw, ranks):
            for n in (0, draw.size(1, 9), draw.size(1000, 1500)):
                yield Case({"comm": comm, "n": n}, "{comm}, about {n} elements", ranks=ranks)


@exercise("00.2", delay_s=0.08, hint="the lower rank reads the clock before it sends and after it has received")
def round_trip(draw):
    for ranks in (2, draw.size(3, 5)):
        for comm in communicators(draw, ranks):
            yield Case({"comm": comm, "bytes": draw.size(1, 300)}, "{comm}, {bytes} bytes", ranks=ranks)
    yield Case({"comm": "all ranks", "bytes": 0}, "{comm}, {bytes} bytes", ranks=2)


@exercise("00.3", hint="count the ranks that have ended, and receive exactly what you have probed")
def letters(draw):
    for ranks in (1, 2, 3, draw.size(4, 6)):
        for comm in communicators(draw, ranks):
            for _ in range(2):
                yield Case({"comm": comm, "to": draw.size(0, ranks - 1), "seed": draw.size(10, 5000)}, "{comm}, rank {to} collects",
                           ranks=ranks)


@exercise("00.4", traffic="sums", steps=along_a_tree, explain=which_ranks, without=LIBRARY,
          hint="count the ranks from the root; in each step those that have the values double")
def broadcast(draw):
    for ranks in (1, 2, 3, 4, draw.size(5, 7)):
        for comm in communicators(draw, ranks):
            yield Case({"comm": comm, "n": draw.size(0, 3), "root": draw.size(0, ranks - 1)}, "{comm}, {n} elements from rank {root}",
                       ranks=ranks)
        yield Case({"comm": COMMUNICATORS[0], "n": draw.size(400, 600), "root": ranks - 1}, "{comm}, {n} elements from rank {root}",
                   ranks=ranks)


@exercise("00.5", traffic="sums", steps=around_a_ring, explain=which_ranks, without=LIBRARY,
          hint="do the table of the page for three ranks and four elements")
def ring_sum(draw):
    for ranks in (1, 2, 3, 4, draw.size(5, 7)):
        for comm in communicators(draw, ranks):
            for n in (draw.size(0, ranks), draw.size(300, 400)):
                yield Case({"comm": comm, "n": n}, "{comm}, {n} elements", ranks=ranks)
