"""The scripts in scripts/plot/ that draw what a lesson prints: what they read, draw, print, and refuse."""

import contextlib
import importlib
import io
import math
import pathlib
import sys
import tempfile
import unittest
import xml.etree.ElementTree
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "scripts/plot"))
import svg  # noqa: E402
from documents import status_of  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"
MODEL = "# model nano: 1,000 parameters, L=2 H=4 C=64 V=256, context 64\n"
# As lesson 02 prints it for two ranks.
RING = """steps of all-reduce ring: round the ring
            step 0     step 1
  rank 0    1(0) -> 1  0(all) -> 1
  rank 1    0(1) -> 0  1(all) -> 0

"""
TREE = "steps of all-reduce tree: along a tree\n            step 0        step 1\n" + "".join(
    f"  rank {rank}    {f'0..4({rank}) -> 0' if rank else '':<14}{'0..4(all) -> 4' if rank == 0 else ''}\n" for rank in range(5))
WINDOW = MODEL + "#   unit 0 |G gU  |\n#   unit 1 |gU  gU|\n#   unit 2 | gU-U |\n"
TIMELINE = """# lesson 03_ddp on 2 ranks
# --strategy  {}  when gradients are summed over the ranks
virtual clock, last step
  step          {}  ms = compute + exposed
  exposed       {}  ms that the computation had to wait
# compute       |{}|
# communication |{}|
"""
LEARNING = " step  epochs   masked tokens   next sentence  of pairs\n" + "".join(
    f"{step:5}    1.00   1.000  {tokens:5.1f} %   0.500  {pairs:5.1f} %       100\n"
    for step, tokens, pairs in ((1, 0, 50), (500, 40, 50), (1000, 80, 90)))
PING_PONG = "ping-pong of ranks 0 and 1\n" + "".join(
    f"  {size:>9,} bytes  {us:.2f}  us    0.025 GB/s  line     0.31 us  #\n" for size, us in ((8, 1), (64, 2), (4096, 100))) + (
        "the line\n  alpha  1.00  us, latency of a message\n  beta  0.5000  ns per byte, so a bandwidth of 2.00 GB/s\n")
MESH = MODEL + "# --dp 2 x\n# --tp 2 x\n# --pp 2 x\n# stages of 1, 1 blocks (the largest has 1.07 times the mean work)\n"
PAIRS = ("# lesson 14_context_parallel on 2 ranks\n# --order  {}  which runs of tokens a rank has\nattention of a sequence\n"
         "  rank 0  1,136  pairs of a query and a key; tokens 0-15 and {}\n  rank 1  392  pairs of a query and a key; tokens {}\n")
AXES = ("# rank  host  cores  pp  dp  ep  cp  tp  groups\n" + "".join(
    f"#    {rank}  vm  0-1  0  {rank // 4}  {rank // 2 % 2}  {rank % 2}  0  pp: {rank}; dp: 0 4\n" for rank in range(8)) +
        "experts\n  block 1  10 70 15 5  rows of each expert in the last step; largest / mean 2.800\n")
LOADS = ("# lesson 15_experts on 4 ranks\n# --auxiliary-loss  0  weight\n# 2 ranks share the experts, 2 of 4 each; 2 replicas\nexperts\n"
         "  block 1  10 70 15 5  rows of each expert in the last step; largest / mean 2.800\n"
         "  block 3   25 25 30 20  rows of each expert in the last step; largest / mean 1.200\n")


def plan(lesson, parameters, gradients, optimizer):
    """The dry run of a lesson on two ranks; bytes in units of a parameter."""
    return (f"# lesson {lesson} on 2 ranks\n{MODEL}\nplan\n  parameters  1,000  = V C + L (12 C^2)\n"
            f"  parameters  {1000 * parameters:,}  bytes\n  gradients  {1000 * gradients:,}  bytes\n"
            f"  optimizer  {1000 * optimizer:,}  bytes\n")


class Pictures(unittest.TestCase):
    def run_script(self, name, text):
        """Status, lines, complaints, and the elements of the picture."""
        out, err = io.StringIO(), io.StringIO()
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "picture.svg"
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), \
                    mock.patch.object(sys, "stdin", io.StringIO(text)):
                status = status_of(importlib.import_module(name).main, [f"--output={path}"])
            self.root = xml.etree.ElementTree.fromstring(path.read_text(encoding="utf-8")) if path.exists() else None
        return status, out.getvalue().splitlines(), err.getvalue()

    def lines(self, name, text):
        """Output for a text that it can draw."""
        status, lines, complaints = self.run_script(name, text)
        self.assertEqual((status, complaints), (0, ""))
        return lines

    def titles(self):
        """Titles of the boxes."""
        return [e.text for e in self.root.iter(f"{SVG}title")][1:]

    def words(self):
        return [e.text for e in self.root.iter(f"{SVG}text")]

    def box(self, title):
        """(x, y, width, height, colour)."""
        [box] = [e for e in self.root.iter(f"{SVG}rect") if e.findtext(f"{SVG}title") == title]
        return (*(float(box.get(name)) for name in ("x", "y", "width", "height")), box.get("fill"))

    def test_a_ring_fills_up(self):
        self.assertEqual(self.lines("plot_steps", RING)[1:], ["   0     0   1       1  1 of 2", "   0     1   0       0  1 of 2",
                                                              "   1     0   1       0  2 of 2", "   1     1   0       1  2 of 2"])
        filled = [sum(title.endswith(f"{terms} of 2 terms") for title in self.titles()) for terms in (1, 2)]
        self.assertEqual(filled, [6, 6])  # 4 and 0 before step 0, 2 and 2 before step 1, 0 and 4 afterwards

    def test_many_ranks_are_rows(self):
        self.lines("plot_steps", TREE)
        self.assertTrue({"rank 4", "step 1"} <= set(self.words()))
        self.assertEqual(self.titles().count("rank 0: 5 of 5 terms"), 2)
        self.assertEqual(self.titles().count("rank 4: 5 of 5 terms"), 1)

    def test_a_window_has_what_is_gathered_and_used(self):
        self.assertEqual(self.lines("plot_window", WINDOW)[3], "block 1     unit 0, unit 2")
        self.assertEqual(self.box("unit 0: gather starts at embedding")[2] * 2, self.box("unit 1: gather starts at embedding")[2])
        self.assertIn("unit 2: stays gathered", self.titles())

    def test_shards_are_where_the_rank_is(self):
        lines = self.lines("plot_shards", plan("03_ddp", 4, 4, 8) + plan("05_zero2", 4, 3, 4))
        self.assertEqual(lines[2].split(), ["05_zero2", "1.000", "0.750", "0.500"])
        own, more = self.box("gradients: shard of rank 0"), self.box("gradients: on rank 0 while it is used")
        self.assertAlmostEqual(more[2] / own[2], 0.5)
        self.assertAlmostEqual(more[0], own[0] + own[2])
        self.assertEqual(self.titles().count("optimizer: all on rank 1"), 1)

    def test_runs_have_one_axis_of_time(self):
        lines = self.lines("plot_timeline", TIMELINE.format("flat", "8.0", "4.0", "fb..", "..aa") +
                           TIMELINE.format("overlapped", "4.0", "0.5", "ffbb", "...b"))
        self.assertEqual(lines[2].split(), ["overlapped", "4.000", "0.500"])
        boxes = [e for e in self.root.iter(f"{SVG}rect") if e.findtext(f"{SVG}title") == "messages"]
        self.assertEqual([float(box.get("width")) for box in boxes], [322.0, 80.5])
        self.assertLess(float(boxes[1].get("x")), float(boxes[0].get("x")))

    def test_accuracies_grow_above_a_coin(self):
        self.assertEqual("\n".join(self.lines("plot_accuracy", LEARNING)) + "\n", LEARNING)
        band = self.box("a coin: 50 % and two standard errors of 100 pairs")
        heights = {word: float(e.get("y")) - 4 for e in self.root.iter(f"{SVG}text") for word in [e.text]}
        self.assertAlmostEqual(band[3] / (heights["0 %"] - heights["100 %"]), 0.2, 3)  # 40 to 60 %
        last = {e.get("fill"): float(e.get("cy")) for e in self.root.iter(f"{SVG}circle")}
        for colour, percent in ((svg.GREEN, 80), (svg.BLUE, 90)):
            self.assertAlmostEqual((heights["0 %"] - last[colour]) / (heights["0 %"] - heights["100 %"]), percent / 100, 2)

    def test_times_of_messages_on_logarithmic_axes(self):
        eager = "eager or rendezvous\n  eager  512  bytes: the longest\n"
        self.assertEqual([line.split() for line in self.lines("plot_ping_pong", PING_PONG + eager)],
                         [["alpha", "1.00", "us"], ["bandwidth", "2.00", "GB/s"], ["eager", "512", "bytes", "at", "most"]])
        dots = [(float(e.get("cx")), float(e.get("cy"))) for e in self.root.iter(f"{SVG}circle")]
        self.assertAlmostEqual((dots[2][0] - dots[0][0]) / (dots[1][0] - dots[0][0]), 3, 1)  # 9 doublings beside 3
        self.assertAlmostEqual((dots[2][1] - dots[0][1]) / (dots[1][1] - dots[0][1]), 2 / math.log10(2), 1)
        [limit] = [e.get("d") for e in self.root.iter(f"{SVG}path") if e.get("stroke") == svg.RED]
        x = float(limit[1:].split()[0])
        self.assertAlmostEqual((x - dots[0][0]) / (dots[2][0] - dots[0][0]), 6 / 9, 2)
        self.assertIn("above 512 bytes a send waits", self.words())
        self.assertEqual(len(self.lines("plot_ping_pong", PING_PONG)), 2)  # nothing is said of a limit

    def test_a_model_has_its_shapes(self):
        lines = self.lines("plot_block", MODEL)
        self.assertIn("  × c_attn         (C, 3 C) + (3 C)         (B, T, 3 C)   (B, 64, 192)", lines)
        self.assertIn("(B, H, T, T)", self.words())

    def test_loads_have_one_scale_and_the_colours_of_ranks(self):
        again = LOADS.replace("# --auxiliary-loss  0  weight\n", "").replace("10 70", "30 50")
        lines = self.lines("plot_loads", LOADS + again)
        self.assertEqual(lines[1].split(), "0 block 1: 2.80 block 3: 1.20".split())
        self.assertEqual(lines[2].split(), "0.01 block 1: 2.00 block 3: 1.20".split())  # the default is not printed
        most, less = self.box("block 1, expert 1 on rank 0: 70 rows"), self.box("block 1, expert 1 on rank 0: 50 rows")
        self.assertAlmostEqual(less[3] / most[3], 5 / 7, 2)
        self.assertEqual((most[4], less[4]), (svg.RANKS[0], svg.RANKS[0]))
        self.assertEqual(self.titles().count("block 3, expert 2 on rank 1: 30 rows"), 2)

    def test_pairs_of_two_orders(self):
        lines = self.lines("plot_pairs", PAIRS.format("zigzag", "48-63", "16-31 and 32-47")
                           + PAIRS.format("contiguous", "16-31", "32-47 and 48-63").replace("1,136", "280"))
        self.assertEqual([line.split() for line in lines[1:]], [["zigzag", "1.487", "1136", "392"], ["contiguous", "1.167", "280", "392"]])
        most, less = self.box("rank 0: 1136 pairs"), self.box("rank 0: 280 pairs")
        self.assertAlmostEqual(less[3] / most[3], 280 / 1136, 2)
        self.assertEqual((most[4], less[4]), (svg.RANKS[0], svg.RANKS[0]))
        self.assertEqual(self.titles().count("rank 0: queries 0-15"), 2)
        self.assertEqual(self.titles().count("rank 1: queries 32-47"), 2)

    def test_ranks_of_a_mesh(self):
        lines = self.lines("plot_mesh", MESH)
        self.assertEqual([line.split() for line in lines[4:6]], [["3", "1", "0", "1"], ["4", "0", "1", "0"]])
        self.assertTrue({"block 1, head", "heads 2..3", "rank 7"} <= set(self.words()))

    def test_shards_of_shards(self):
        lines = self.lines("plot_axes", AXES)
        self.assertEqual([line.split() for line in (lines[1], lines[7])],
                         ["0 0 0 0 0 0 0 of 8 0, 1 0 of 4".split(), "6 0 1 1 0 0 6 of 8 2, 3 2 of 4".split()])
        updated = [title for title in self.titles() if title.endswith("updated")]
        self.assertEqual(sorted(updated), sorted([*(f"dense parameters: shard {i} of 8 updated" for i in range(8)),
                                                  *(f"experts {pair}: shard {i} of 4 updated" for pair in ("0, 1", "2, 3")
                                                    for i in range(4))]))
        dense, own = self.box("dense parameters: shard 7 of 8 updated"), self.box("experts 2, 3: shard 3 of 4 updated")
        self.assertAlmostEqual(dense[0] + dense[2], own[0] + own[2], 1)  # both bars of rank 7 end there
        self.assertAlmostEqual(own[2], 2 * dense[2], 1)

    def test_a_text_that_is_something_else(self):
        for name, text in [("plot_steps", ""), ("plot_accuracy", "\n".join(LEARNING.splitlines()[:2])),
                           ("plot_steps", RING.replace("rank", "lane")), ("plot_window", MODEL),
                           ("plot_window", WINDOW.replace("L=2", "L=3")), ("plot_shards", MODEL), ("plot_timeline", MODEL),
                           ("plot_timeline", "# lesson 03_ddp on 2 ranks\n"), ("plot_block", "-"), ("plot_mesh", MODEL),
                           ("plot_pairs", MODEL), ("plot_pairs", PAIRS.replace("pairs", "p")), ("plot_loads", MODEL), ("plot_loads", LOADS.replace("share", "have")), ("plot_loads", LOADS.replace("rows", "r")),
                           ("plot_axes", MODEL), ("plot_axes", AXES.replace("rows", "r")),
                           ("plot_mesh", MESH.replace("--tp 2", "--tp 0")), ("plot_ping_pong", MODEL),
                           ("plot_ping_pong", PING_PONG.replace("alpha", "omega"))]:
            with self.subTest(name=name, text=text[:30]):
                status, lines, complaints = self.run_script(name, text)
                self.assertEqual((status, lines, self.root), (2, [], None))
                self.assertRegex(complaints, r"\Aerror: the .* cannot be drawn: it has .*\.\n       Pipe what .*\.\n\Z|"
                                             r"\Aerror: .*an axis is 0.*\n.*\n\Z")

    def test_a_colour_is_dark_where_pages_are(self):
        self.lines("plot_block", MODEL)
        rules = self.root.find(f"{SVG}style").text
        used = {e.get(what) for e in self.root.iter() for what in ("fill", "stroke")} & set(svg.DARK)
        self.assertIn(svg.INK, used)
        for colour in used:
            self.assertIn(f'[fill="{colour}"]{{fill:{svg.DARK[colour]}}}', rules)


class Crossover(unittest.TestCase):
    def test_sizes_where_the_ring_overtakes(self):
        """16 ranks: 30 messages against 8, and 1.875 vectors against 8."""
        module = importlib.import_module("plot_crossover")
        out = io.StringIO()
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(out):
            path = pathlib.Path(folder) / "picture.svg"
            self.assertEqual(status_of(module.main, ["--latency-us=5", "--bandwidth-GBps=10", f"--output={path}"]), 0)
            root = xml.etree.ElementTree.fromstring(path.read_text(encoding="utf-8"))
        expected = round(22 * 5e-6 / (8 - 1.875) * 1e10)
        self.assertEqual(out.getvalue(), f"ring is faster than tree from {expected:,} bytes\n")
        self.assertIn("tree = ring: 180 kB", [e.text for e in root.iter(f"{SVG}text")])

    def test_ranks_that_do_not_exist(self):
        with self.assertRaises(SystemExit), contextlib.redirect_stderr(io.StringIO()):
            status_of(importlib.import_module("plot_crossover").main, ["--ranks=1", "--output=/nowhere"])


if __name__ == "__main__":
    unittest.main()
