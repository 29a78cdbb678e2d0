"""Compares what students wrote, pair by pair, with the similarity tester of Dick Grune (Debian's package similarity-tester).

Of each submission only the bodies of exercises are compared, and of these only what is not a line of the course's own solution,
whatever its names are: two right answers are alike. The tester knows tokens, not names or layout. A high share is a
reason to look, and no proof.
"""

import pathlib
import re
import shutil
import subprocess
import tempfile

from exercise_tree import Refused, all_regions, find_regions, read_tree
from grade_all import wanted_files
from grade_table import cell
from leaks import normalised, shape_of, tokens_of, without_comments
from pack import check_lessons
from submissions import find_submissions, read_submission

PROGRAM = "sim_c++"
SHORTEST_RUN = 12   # tokens, about a line and a half
LONGEST_LINE = 1000  # characters that are compared
FEWEST_TOKENS = 40  # of one's own; with fewer there is nothing to compare
LINE = re.compile(r"^(\d+)\.cpp consists for (\d+) % of (\d+)\.cpp material$", re.MULTILINE)


def body_lines(text, exercises):
    """The lines of these exercises in a file, without comments and trivial ones."""
    lines = text.split("\n")
    bodies = ["\n".join(lines[region.body:region.end]) for region in find_regions("", text) if region.exercise in exercises]
    return [line for line in (line[:LONGEST_LINE] for line in without_comments("\n".join(bodies)).split("\n")) if shape_of(line)]


def own_text(tree, regions, submitted):
    """The lines of a submission that are neither of the frame nor of the course's solution."""
    kept, exercises = [], {region.exercise for region in regions}
    for path in sorted({region.path for region in regions if isinstance(submitted.get(region.path), bytes)}):
        solution = {normalised([line]) for line in body_lines(tree[path].decode(), exercises)}
        written = body_lines(submitted[path].decode(errors="replace"), exercises)
        kept += [line for line in written if normalised([line]) not in solution and "not_implemented" not in line]
    return "\n".join(kept) + "\n"


def shares_of(texts):
    """The share of one text that stands in the other, the larger of both directions: {(name, name): share}."""
    if shutil.which(PROGRAM) is None:
        raise Refused(f"there is no {PROGRAM}. Install it: apt-get install similarity-tester")
    names = sorted(texts)
    with tempfile.TemporaryDirectory() as folder:
        files = [f"{number}.cpp" for number in range(len(names))]
        for file, name in zip(files, names):
            (pathlib.Path(folder) / file).write_text(texts[name], encoding="utf-8")
        done = subprocess.run([PROGRAM, "-p", "-e", "-a", "-s", "-T", "-r", str(SHORTEST_RUN), "-i"], cwd=folder, check=False,
                              input="\n".join([*files, ""]), capture_output=True, text=True)
    if done.returncode != 0:
        raise Refused(f"{PROGRAM} failed: {done.stderr.strip()}")
    shares = {}
    for first, percent, second in LINE.findall(done.stdout):
        pair = tuple(sorted((names[int(first)], names[int(second)])))
        shares[pair] = max(shares.get(pair, 0.0), int(percent) / 100)
    return shares


def report(root, lessons, folder, at_least):
    """Prints the pairs from a share on, the most alike first. Exit status 0."""
    if not 0 <= at_least <= 1:
        raise Refused(f"--at-least={at_least}: a share lies between 0 and 1")
    tree = read_tree(root)
    check_lessons(tree, lessons)
    regions, wanted = [region for lesson in lessons for region in all_regions(tree, lesson)], wanted_files(tree, lessons)
    texts, left_out = {}, []
    for submission in find_submissions(folder):
        try:
            texts[submission.student] = own_text(tree, regions, read_submission(submission, wanted))
        except Refused as refusal:
            left_out.append(f"{submission.student}: {refusal}")
    tokens = {student: sum(len(tokens_of(line)) for line in text.split("\n")) for student, text in texts.items()}
    compared = {student: text for student, text in texts.items() if tokens[student] >= FEWEST_TOKENS}
    pairs = shares_of(compared) if len(compared) > 1 else {}
    print("| share | student | tokens | student | tokens |\n|---:|---|---:|---|---:|")
    for (first, second), share in sorted(pairs.items(), key=lambda item: (-item[1], item[0])):
        if share >= at_least:
            print(f"| {share:.0%} | {cell(first)} | {tokens[first]} | {cell(second)} | {tokens[second]} |")
    print(f"\n{len(compared)} students compared; {len(texts) - len(compared)} wrote fewer than {FEWEST_TOKENS} tokens that are "
          "not in the course's solution.")
    print("".join(f"Left out: {line}\n" for line in left_out), end="")
    return 0
