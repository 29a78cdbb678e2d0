"""Possible output of build/tests/all_reduce, for the tests of the scripts that read it."""

SPEEDS = {"copy": 10.0, "library": 1.0, "ring": 1.25, "halving": 0.5, "tree": 0.8, "shared": 3.0, "shared-other": 2.0}


def all_reduce_document(run, speeds=None):
    """The document of one run: at 1 GB/s of the vector for the library, `speeds` times as much for the others. The second
    of three rounds was slow for all."""
    speeds = {**SPEEDS, **(speeds or {})}
    sizes, size = [], run.least
    while size <= run.most:
        once = {name: 1e-9 * size / speed for name, speed in speeds.items()}
        slow = {name: 3 * seconds for name, seconds in once.items()}
        sizes.append({"bytes": size, "rounds": [once, slow, dict(once)]})
        size *= run.factor
    return {"library": "Some MPI 1.2", "ranks": run.ranks, "sizes": sizes}
