"""Cases of the exercises of lesson 10. See scripts/course/judge.py."""

import itertools
import math

from judge import Case, exercise


def some_axes(draw):
    """Numbers of ranks along the axes of some meshes: different ones, powers of two and others."""
    return [[draw.size(1, 9)], [3, 2], [2, 3, 4], [draw.size(1, 5) for _ in range(3)],
            [draw.size(1, 4) for _ in range(4)], [draw.choice((3, 5)), 1, draw.choice((2, 6))]]


@exercise("10.1", hint="the coordinate on the last axis is what the rank leaves over when it is divided by that axis' size")
def coordinates(draw):
    for sizes in some_axes(draw):
        points = list(itertools.product(*map(range, sizes)))
        yield Case({"sizes": sizes, "ranks": list(range(len(points)))}, "axes of {sizes} ranks")


@exercise("10.2", hint="which coordinate of the rank changes along the line, and which stay?")
def lines(draw):
    for sizes in some_axes(draw):
        for axis in range(len(sizes)):
            yield Case({"sizes": sizes, "ranks": math.prod(sizes), "axis": f"axis {axis}"}, "axes of {sizes} ranks, along {axis}")
    yield Case({"sizes": [2, 3], "ranks": 6, "axis": "tp"}, "an axis that the mesh does not have")


@exercise("10.3", hint="which rank updates an element, which one owns it, and whose is the copy of the token embedding?")
def counted(draw):
    for dp, tp, pp, zero, interleaved in ((1, 1, 1, False, False), (2, 2, 2, True, False), (2, 1, 2, False, True),
                                          (draw.size(2, 4), 1, draw.size(2, 3), True, False),
                                          (1, draw.size(2, 4), 2, True, True), (draw.size(2, 3), 4, 1, True, False)):
        heads = 4 if tp in (2, 4) else 3 * tp
        yield Case({"dp": dp, "tp": tp, "pp": pp, "zero": zero, "interleaved": interleaved, "heads": heads,
                    "layers": pp * draw.size(2, 3), "channels": heads * draw.choice((2, 4))},
                   "dp {dp}, tp {tp}, pp {pp}, zero {zero}, interleaved {interleaved}, {layers} layers, {channels} channels")


@exercise("10.4", hint="first leave out what does not fit; then compare times, and bytes only among equal times")
def fastest(draw):
    for number in range(24):
        ranks = draw.choice((4, 8, 12, 6))
        degrees = range(1, ranks + 1)
        layouts = [(dp, tp, ranks // dp // tp) for dp in degrees for tp in degrees if ranks % (dp * tp) == 0]
        some = [layout for layout in layouts if number % 3 or draw.choice((True, True, False))]
        forecasts = [{"dp": dp, "tp": tp, "pp": pp, "bytes": 100 * draw.size(1, 5), "step_s": 0.5 * draw.size(1, 4)}
                     for dp, tp, pp in some]
        yield Case({"ranks": ranks, "capacity": draw.choice((50, 200, 300, 399, 500, 1000)), "forecasts": forecasts},
                   "{ranks} ranks with {capacity} bytes each")
