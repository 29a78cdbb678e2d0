#!/usr/bin/env python3
"""Draws what each rank of lesson 09 does when, as SVG, and prints how long a step is and how much of it ranks are idle.

    scripts/plot/plot_schedule.py [--timeline=NAME] REPORT.json... FILE.svg

REPORT.json is what the lesson writes with --report. Each timeline in it is a part of the picture with a lane for each rank:
what was planned, what the virtual clock says, and what the clock on the wall says. Each is as wide as its own step. Of several
reports one timeline each is drawn, what was planned unless told otherwise, on one axis of time. A colour is a kind of pass, a
darker one a later stage of the same rank, and the number is that of the micro-batch.
"""

import collections
import pathlib

import svg
from svg import NotThere
from documents import text_table

TIMELINES = {"planned": "planned, s", "virtual": "virtual clock, s", "wall": "wall clock, s"}
COLOURS = {"forward": svg.SKY, "backward": svg.ORANGE, "backward-input": "#f0c040", "backward-weights": "#66c2a5"}
WIDTH, LEFT, RIGHT, TOP = 960, 64, 16, 30
LANE, GAP = 20, 3                    # height of a lane, and what lies between two
HEADING, TICKS, LEGEND = 24, 40, 26  # space above the lanes of a timeline, below them, and below all
DIGIT = 7                            # pixels of a digit


Action = collections.namedtuple("Action", "kind micro_batch stage begin end")


class Schedule:
    """Schedule of a report: its name and sizes, and the timelines that are there."""

    def __init__(self, document):
        try:
            schedule = document["schedule"]
            self.name, self.ranks = schedule["name"], schedule["ranks"]
            self.virtual_stages, self.micro_batches = schedule["virtual_stages"], schedule["micro_batches"]
            self.idle, self.max_in_flight = schedule["idle"], schedule["max_in_flight"]
            if self.micro_batches == 1:
                self.name = "naive"  # whatever its name: one rank computes at a time
            self.timelines = {name: [[Action(*(entry[field] for field in Action._fields)) for entry in lane]
                                     for lane in schedule["timelines"][name]]
                              for name in TIMELINES if schedule["timelines"].get(name)}
            for timeline in self.timelines.values():
                self.check(timeline)
        except (KeyError, TypeError, AttributeError) as error:
            raise NotThere(f"it has no schedule as lesson 09 writes it ({error})") from error
        if not self.timelines:
            raise NotThere("it has no timeline")

    def check(self, timeline):
        """Refuses a timeline of other ranks, kinds or times."""
        if len(timeline) != self.ranks:
            raise NotThere(f"it has a timeline of {len(timeline)} ranks, and the schedule has {self.ranks}")
        for action in (action for lane in timeline for action in lane):
            if action.kind not in COLOURS:
                raise NotThere(f"it has an action of the kind '{action.kind}'")
            if not 0 <= action.begin <= action.end:
                raise NotThere(f"an action begins at {action.begin} and ends at {action.end}")
        if not self.length(timeline) > 0:
            raise NotThere("it has a timeline in which nothing takes time")

    @staticmethod
    def length(timeline):
        """End of the last action."""
        return max((action.end for lane in timeline for action in lane), default=0)

    def colour(self, action):
        """Colour of an action's kind, the darker the later the stage is among those of its rank."""
        later = action.stage // self.ranks / self.virtual_stages
        return shaded(COLOURS[action.kind], 0.3 * later)

    def title(self):
        """Title of the picture, in words."""
        words = f"{self.name}, {self.ranks} ranks, {self.micro_batches} micro-batch{'es' if self.micro_batches > 1 else ''}"
        return words + (f", {self.virtual_stages} stages a rank" if self.virtual_stages > 1 else "")


def shaded(colour, share):
    """A colour with some black in it."""
    return "#" + "".join(f"{round(int(colour[i:i + 2], 16) * (1 - share)):02x}" for i in (1, 3, 5))


def percent(idle, name):
    """A share as the lesson prints it; a dash where there is none."""
    return f"{100 * idle[name]:.1f} %" if idle.get(name) is not None else "-"


def table_of_one(schedule):
    """A row a timeline, and one for the formula."""
    return [["timeline", "step", "idle"],
            *([name, f"{schedule.length(timeline):.6g}", percent(schedule.idle, name)]
              for name, timeline in schedule.timelines.items()),
            ["formula", "", percent(schedule.idle, "formula")]]


def table_of_several(schedules, name):
    """A row a schedule, with one timeline of each."""
    return [["schedule", "step", "idle", "formula", "in flight"],
            *([schedule.name, f"{schedule.length(schedule.timelines[name]):.6g}", percent(schedule.idle, name),
               percent(schedule.idle, "formula"), " ".join(map(str, schedule.max_in_flight))] for schedule in schedules)]


# ---- Picture ---------------------------------------------------------------------------------------------------------

Panel = collections.namedtuple("Panel", "schedule timeline length heading")  # length: of its axis


def panels_of_one(schedule):
    """All timelines of a schedule, each as wide as its own step."""
    return [Panel(schedule, timeline, schedule.length(timeline), f"{TIMELINES[name]}: idle {percent(schedule.idle, name)}")
            for name, timeline in schedule.timelines.items()]


def panels_of_several(schedules, name):
    """One timeline of each schedule, all as wide as the longest step."""
    longest = max(schedule.length(schedule.timelines[name]) for schedule in schedules)
    return [Panel(schedule, schedule.timelines[name], longest,
                  f"{schedule.title()}: idle {percent(schedule.idle, name)}, in flight {' '.join(map(str, schedule.max_in_flight))}")
            for schedule in schedules]


def lanes(panel, top):
    """The lanes of a timeline, its heading above and its times below."""
    schedule, timeline, length, heading = panel
    width = WIDTH - LEFT - RIGHT
    yield svg.text(LEFT, top + HEADING - 8, heading, "start")
    top += HEADING
    for rank, lane in enumerate(timeline):
        y = top + rank * (LANE + GAP)
        yield svg.text(LEFT - 8, y + LANE - 6, f"rank {rank}", "end")
        yield svg.rectangle(LEFT, y, width * schedule.length(timeline) / length, LANE, svg.IDLE)
        for action in lane:
            x, wide = LEFT + width * action.begin / length, width * (action.end - action.begin) / length
            what = f"{action.kind} of micro-batch {action.micro_batch} in stage {action.stage}"
            yield svg.rectangle(x, y, max(wide - 0.5, 0.2), LANE, schedule.colour(action),
                                f"{what}: {action.begin:.6g} to {action.end:.6g}")
            number = str(action.micro_batch)
            if wide >= DIGIT * len(number) + 3:
                yield svg.text(x + wide / 2, y + LANE - 6, number, extra=' font-size="10"', colour=svg.ON_COLOUR)
    bottom = top + schedule.ranks * (LANE + GAP)
    for value in svg.axis(length, 8):
        if value <= length * (1 + 1e-9):
            x = LEFT + width * value / length
            yield svg.line(x, bottom, x, bottom + 4, svg.INK)
            yield svg.text(x, bottom + 17, f"{value:g}")


def draw(panels, words):
    """All timelines below each other, such words above, and what the colours are."""
    parts = [svg.text(LEFT, TOP - 10, words, "start", ' font-weight="bold"')]
    bottom = TOP
    for panel in panels:
        parts += lanes(panel, bottom)
        bottom += HEADING + panel.schedule.ranks * (LANE + GAP) + TICKS
    kinds = {action.kind for panel in panels for lane in panel.timeline for action in lane}
    for i, (kind, colour) in enumerate((kind, COLOURS[kind]) for kind in COLOURS if kind in kinds):
        parts += svg.key(LEFT + 150 * i, bottom + 10, colour, kind)
    return svg.document(WIDTH, bottom + LEGEND, words, parts)


def picture_of(schedules, name):
    """The picture of one schedule, or of several side by side."""
    if len(schedules) > 1:
        return draw(panels_of_several(schedules, name), f"A step of {len(schedules)} schedules, {TIMELINES[name]}")
    [schedule] = schedules
    words = f"{schedule.title()}; idle by the formula {percent(schedule.idle, 'formula')}"
    return draw(panels_of_one(schedule), words)


def read(path, name):
    """The schedule of a report, with all its timelines or with one that has to be there."""
    schedule = Schedule(svg.read_json(path))
    if name is not None and name not in schedule.timelines:
        raise NotThere(f"{path.name} has no timeline '{name}'")
    return schedule


def main(arguments):
    parser = svg.option_parser(__file__, "Draws what each rank of lesson 09 does when, and prints the numbers.")
    parser.add_argument("--timeline", choices=TIMELINES, default="planned", help="which one of each, of several reports")
    parser.add_argument("report", type=pathlib.Path, nargs="+", help="what lesson 09 wrote with --report")
    parser.add_argument("output", type=pathlib.Path, help="a file for the picture, as SVG")
    options = parser.parse_args(arguments)
    name, several = options.timeline, len(options.report) > 1
    with svg.refusing("the schedule cannot be drawn", "Use a file that lesson 09 wrote with --report.", NotThere, ValueError):
        schedules = [read(path, name if several else None) for path in options.report]
        svg.write_whole(options.output, picture_of(schedules, name))
    print(text_table(table_of_several(schedules, name) if several else table_of_one(schedules[0])), end="")


if __name__ == "__main__":
    svg.run_script(main)
