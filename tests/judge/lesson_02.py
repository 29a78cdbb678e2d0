"""Cases of the exercises of lesson 02. See scripts/course/judge.py."""

from judge import Case, exercise


MESSAGE = 32768  # elements of f64 in the ring's longest message


def half_a_ring(ranks):
    return ranks - 1


def along_a_tree(ranks):
    return (ranks - 1).bit_length()


def which_ranks(case, rank, place, expected, got):
    """Each rank's part of a sum has four bits of its own, so a wrong sum says which ranks are in it."""
    if not isinstance(got, float) or got < 0 or got != int(got):
        return None
    parts = [(int(got) >> 4 * r) % 16 for r in range(case.ranks)]
    return f"it is the sum of {sum(part > 0 for part in parts)} of {case.ranks} ranks: " + \
        ", ".join(f"{'not ' if part == 0 else ''}rank {r}" for r, part in enumerate(parts))


def whose_block(case, rank, place, expected, got):
    """An element of an all-to-all has the rank that it is from and the one that it is for."""
    if not place.startswith("received") or not isinstance(got, float):
        return None
    if got < 0:
        return "nothing has been received there"
    return f"it is element {int(got) % 10_000} of the block of rank {int(got) // 1_000_000} for rank {int(got) // 10_000 % 100}"


@exercise("02.1", steps=half_a_ring, explain=which_ranks, hint="which shard did this rank receive in the step before? That one it sends now")
def ring(draw):
    for ranks in (1, 2, 3, 4, draw.size(5, 7)):
        for n in (0, draw.size(1, ranks), draw.size(40, 90) * ranks, draw.size(900, 1100), MESSAGE * ranks + draw.size(1, 5)):
            yield Case({"n": n}, "{n} elements", ranks=ranks)


@exercise("02.2", steps=along_a_tree, hint="in the step of distance d the ranks v < d have the values")
def broadcast(draw):
    for ranks in (1, 2, 3, 4, draw.size(5, 7)):
        for n in (1, draw.size(40, 90)):
            yield Case({"n": n, "root": draw.size(0, ranks - 1)}, "{n} elements from rank {root}", ranks=ranks)


@exercise("02.3", near={"time": 1e-9}, hint="count what rank 0 sends and receives, one after the other")
def naive(draw):
    for ranks in (1, 2, draw.size(3, 9)):
        for size in (0, 4 * draw.size(1, 5000)):
            for rank in {0, draw.size(0, ranks - 1)}:
                yield Case({"bytes": size, "ranks": ranks, "rank": rank, "alpha": draw.size(1, 9) * 1e-6, "beta": draw.size(1, 9) * 1e-10},
                           "{bytes} bytes, rank {rank} of {ranks}")


@exercise("02.7", without=("common/collectives/",), steps=lambda ranks: 2 * half_a_ring(ranks), explain=which_ranks,
          hint="follow one shard in the table: where does it start, who adds to it, and when is it complete?")
def ring_that_sends(draw):
    for ranks in (1, 2, 3, 4, draw.size(5, 7)):
        for n in (0, draw.size(1, ranks), draw.size(40, 90) * ranks, draw.size(900, 1100)):
            yield Case({"n": n}, "{n} elements", ranks=ranks)


@exercise("02.8", steps=half_a_ring, explain=whose_block, hint="with whom does rank r exchange in step k, and which block does it send there?")
def pairwise(draw):
    for ranks in (1, 2, 3, 4, draw.size(5, 7)):
        for least, most in ((1, 1), (1, draw.size(30, 60)), (-20, draw.size(30, 60))):
            counts = [[max(0, draw.size(least, most)) for _ in range(ranks)] for _ in range(ranks)]
            yield Case({"counts": counts}, f"blocks of {max(0, least)} to {most} elements", ranks=ranks)


@exercise("02.9", steps=along_a_tree, explain=whose_block, hint="follow one block in the table: how many ranks has it to go, and in which steps does it move?")
def bruck(draw):
    for ranks in (1, 2, 3, 4, 5, draw.size(6, 8)):
        for b in (0, 1, draw.size(20, 60)):
            yield Case({"b": b}, "blocks of {b} elements", ranks=ranks)
