"""Looks whether this machine has all that grading needs, and says what to do if not: scripts/doctor.sh for all that builds and runs
the course, and in lines like its own what students' code runs in, what reads answers, and what git knows."""

import shutil
import subprocess

from exercise_tree import Refused
from pack import described, lessons_of, tracked_tree
from sandbox import Deadline, Sandbox


def sandbox_finding(root):
    """Runs a command in a sandbox that sees the course."""
    try:
        done = Sandbox(root, deadline=Deadline(30)).run(["true"])
    except Refused as why:
        return "BAD", "sandbox", str(why)
    if done.status != 0:
        return "BAD", "sandbox", f"a command that does nothing ended with status {done.status}: {done.reason}"
    if "control groups" not in done.protection:
        return "note", "sandbox", f"{done.protection}. Of all processes of a submission together no limit holds (SECURITY.md)"
    return "ok", "sandbox", done.protection


def course_findings(root):
    """Findings on git's revision, and on the programs with which answers are compared."""
    try:
        yield "ok", "course", f"revision {described(root)}"
        lessons = lessons_of(tracked_tree(root))
    except Refused as why:
        yield "BAD", "course", str(why)
        return
    missing = [lesson for lesson in lessons if not list((root / "build/lessons").glob(f"{lesson}_*"))]
    if missing:
        yield "note", "programs", (f"those of the lessons {', '.join(missing)} are not built. Answers are compared with them: make build")
    if not shutil.which("sim_c++"):
        yield "note", "similarity", "sim_c++ is not on the path. To compare submissions install similarity-tester"


def examine(root):
    """Prints all findings; exit status 1 if something is bad."""
    bad = subprocess.run([root / "scripts/doctor.sh"], check=False).returncode != 0
    for kind, what, text in [sandbox_finding(root), *course_findings(root)]:
        print(f"{kind:5} {what:10} {text}")
        bad = bad or kind == "BAD"
    print("Something that grading needs is missing; what to do stands above." if bad else "All that grading needs is there.")
    return 1 if bad else 0
