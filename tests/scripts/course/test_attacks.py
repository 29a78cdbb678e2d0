#!/usr/bin/env python3
"""Attacks on the grader (attacks/README.md): none earns a point that it does not deserve, and none harms the next grading.

    test_attacks.py WORK      where the judge builds; a build that is there is used
"""

import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts/course"))
sys.dont_write_bytecode = True

from exercise_tree import Refused, read_tree, replace_bodies  # noqa: E402
from judge import Judge  # noqa: E402
from mutants import read_entries  # noqa: E402
from sandbox_walls import bubblewrap_works  # noqa: E402
from submissions import Submission, read_submission  # noqa: E402

ATTACKS = pathlib.Path(__file__).resolve().parent / "attacks"
SENTENCE = re.compile(r"([a-z ,]+): (.*)")


class Attack:
    """A script of attacks/, or one of the bodies in a file there."""

    def __init__(self, path, name, sentence, body):
        self.path, self.exercise, self.name, self.body = path, path.name[:4], name, body
        match = SENTENCE.match(sentence)
        self.deserved, self.tries = [verdict.strip() for verdict in match[1].split(",")], match[2]

    def submitted(self, judge, folder):
        """The file of the exercise as it is handed in; Refused where nothing can be read."""
        region = judge.regions[self.exercise]
        reference = judge.tree[region.path].decode()
        if self.body:
            return replace_bodies(reference, [region], lambda region: self.body).encode(errors="surrogateescape")
        (folder / region.path).parent.mkdir(parents=True)
        (folder / region.path).write_text(reference, encoding="utf-8")
        subprocess.run(["bash", str(self.path), region.path], cwd=folder, check=True, capture_output=True)
        files = read_submission(Submission("attacker", folder), [region.path])
        if isinstance(files[region.path], str):
            raise Refused(files[region.path])
        return files[region.path]


def attacks_of(path):
    text = path.read_text(encoding="utf-8", errors="surrogateescape")
    if path.suffix == ".sh":
        return [Attack(path, path.stem, re.search("^# (.*)", text, re.MULTILINE)[1], None)]
    return [Attack(path, entry.name, entry.what, entry.lines) for entry in read_entries(path, text, ("ATTACK",))]


def verdict_of(judge, attack):
    """Verdict on an attack, and the seconds that it took."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        try:
            verdict, detail = judge.grade(attack.exercise, attack.submitted(judge, pathlib.Path(folder)), "attacks", "attacker")
        except Refused as refusal:
            verdict, detail = "refused", str(refusal)
    return verdict, detail, time.monotonic() - begin


def main():
    if (why := bubblewrap_works()) is not True:
        print(f"no sandbox here: {why}")
        return 77
    judge = Judge(ROOT, read_tree(ROOT), pathlib.Path(sys.argv[1]) / "judge")
    attacks = [attack for path in sorted(ATTACKS.iterdir()) if path.suffix in (".bodies", ".sh") for attack in attacks_of(path)]
    judge.build({attack.exercise for attack in attacks})
    secret = pathlib.Path(sys.argv[1]) / "points.json"
    secret.write_text("0 points\n", encoding="utf-8")
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for attack, (verdict, detail, seconds) in zip(attacks, pool.map(lambda attack: verdict_of(judge, attack), attacks)):
            # What is refused before it is compiled has had no chance to do what it deserves to fail for.
            holds = verdict in attack.deserved or (verdict == "refused" and "passed" not in attack.deserved)
            failed += not holds
            print(f"{'PASS' if holds else 'FAIL'}  {attack.name:34} {verdict:16} {seconds:5.1f} s  {attack.tries}"
                  + ("" if holds else f"\n      deserves {' or '.join(attack.deserved)}; {detail}"), flush=True)
    for exercise in sorted({attack.exercise for attack in attacks}):
        verdict, detail = judge.grade(exercise, judge.tree[judge.regions[exercise].path], "attacks", "honest")
        failed += verdict != "passed"
        print(f"{'PASS' if verdict == 'passed' else 'FAIL'}  the solution of {exercise} afterwards: {verdict} {detail}")
    if secret.read_text(encoding="utf-8") != "0 points\n":
        failed += 1
        print("FAIL  the points were written by somebody else")
    print(f"{len(attacks)} attacks, {failed} failures")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
