#!/usr/bin/env python3
"""Exercises that are answered with a number or a formula.

    scripts/course/answers.py ask 06 >answers-06.toml     writes the questions of lesson 06, with room for answers
    scripts/course/answers.py check 06 answers-06.toml    compares the answers with what the lesson's program reports
    scripts/course/answers.py hint 06.5 --level 2         prints the first two of an exercise's three hints
    scripts/course/answers.py table 06                    prints the table of the lesson's README

There are three kinds. An *account* is computed before anything runs: bytes, memory, messages, steps. A *measure* is read off
the report of a run. A *derivation* is a formula over named sizes, and is compared with the program at several sizes; any form
of the right formula will do. Sizes differ from student to student (--student NAME).

An answer is a number or a quoted expression of numbers, as "4 * 220544", and of a derivation an expression of the names that
the question lists. Numbers are compared as fractions, exactly unless the question says otherwise.

Exit status: 0 all points, 1 not all, 2 asked for something impossible.
"""

import argparse
import json
import pathlib
import re
import textwrap
from fractions import Fraction

import expressions
import questions
from catalogue import person
from documents import decoded, run_script
from exercise_tree import Refused, all_regions, read_tree

LARGEST_FILE = 100_000  # bytes of a file of answers
WIDTH = 110             # columns of a file of questions


# ---- ask --------------------------------------------------------------------------------------------------------------

def answered(root, lesson):
    """The exercises of a lesson that are answered."""
    return [exercise for exercise in questions.read_exercises(root, lesson) if exercise.kind != "implement"]


def questions_file(root, lesson, student, secret):
    """The text of answers-NN.toml: each question as a comment, and an empty answer."""
    lines = [f"# Questions of lesson {lesson}. Write your answers between the quotes: a number, or an expression as 4 * 220544.",
             "# Leave empty what you do not know, and leave the names and the lines in brackets as they are.", "",
             "student = " + json.dumps(student)]
    for exercise in answered(root, lesson):
        sizes = questions.draw_sizes(exercise, student, secret)
        lines += ["", f'["{exercise.number}"]',
                  f"# {exercise.title} ({exercise.kind}, {exercise.points} points, about {exercise.minutes} minutes)", "#"]
        for line in questions.question_of(exercise, sizes):
            kept = line.startswith(" ")  # a command, or a list of names
            for part in [line] if kept else textwrap.wrap(line, WIDTH - 2, break_long_words=False) or [""]:
                lines.append(f"# {part}".rstrip())
        for ask in exercise.asks:
            lines += ["#", f"# {ask.name}: {questions.filled(ask.what, sizes)}{f', in {ask.unit}' if ask.unit else ''}",
                      f'{ask.name} = ""']
    return "\n".join(lines) + "\n"


# ---- check ------------------------------------------------------------------------------------------------------------

HEADING = re.compile(r"""\s*\[+\s*["']?\s*(\d\d\.\d+)\s*["']?\s*\]""")
ANSWER = re.compile(r"""\s*["']?(\w+)["']?\s*=(.*)""")
QUOTED = re.compile(r"""("(?:[^"\\]|\\.)*"|'[^']*')\s*(?:#.*)?$""")
STRAIGHT = str.maketrans({"\u201c": '"', "\u201d": '"', "\u201e": '"', "\u00ab": '"', "\u00bb": '"', "\u2018": "'", "\u2019": "'"})


class Sheet:
    """A file of answers, read line by line: what cannot be read costs no other answer."""

    def __init__(self, content):
        if len(content) > LARGEST_FILE:
            raise Refused(f"the file of answers has more than {LARGEST_FILE} bytes")
        self.answers, self.others, exercise = {}, {}, ""
        for number, line in enumerate(decoded(content).translate(STRAIGHT).splitlines(), 1):
            if match := HEADING.match(line):
                exercise = match[1]
            elif match := ANSWER.match(line):
                self.answers.setdefault((exercise, match[1]), []).append((number, unquoted(match[2].strip())))
            elif line.strip() and not line.lstrip().startswith("#"):
                self.others.setdefault(exercise, []).append(f"line {number} is no answer: {line.strip()[:60]}")

    def answer(self, exercise, name):
        """The text of an answer, "" where there is none, and " (line 7)". Of the same line twice the one counts that says something;
        BadExpression where several do."""
        given = self.answers.get((exercise, name), [])
        filled = [(number, text) for number, text in given if text]
        if len({text for _, text in filled}) > 1:
            raise expressions.BadExpression(f"There are several answers, in the lines {', '.join(str(number) for number, _ in filled)}.")
        number, text = (filled or given or [(0, "")])[-1]
        return text, f" (line {number})" if number else ""

    def unread(self, exercise):
        """Lines under an exercise, or in front of all, that answer nothing that is asked."""
        names = {ask.name for ask in exercise.asks}
        lines = [f"line {found[0][0]} answers {name[:40]}, which {'is not asked' if of else 'stands in front of all exercises'}"
                 for (of, name), found in self.answers.items() if of == exercise.number and name not in names or not of and name != "student"]
        return self.others.get(exercise.number, []) + self.others.get("", []) + lines


def unquoted(text):
    """Text between quotes, or in front of a comment."""
    match = QUOTED.match(text)
    if match and "\\" in text:
        try:
            return json.loads(match[1]).encode(errors="replace").decode()
        except ValueError:
            pass
    return (match[1] if match else text.split("#")[0]).strip().strip("\"'`").strip()


def read_answers(content, student):
    """The answers in a file. That of another student is refused, since its sizes are others."""
    sheet = Sheet(content)
    owner, _ = sheet.answer("", "student")
    if ("", "student") in sheet.answers and person(owner) != person(student):
        raise Refused(f"these are the questions of another student; those of {student or 'this one'} have other sizes")
    return sheet


def number_text(value):
    """A fraction as a person writes it."""
    if value.denominator == 1:
        digits = f"{int(value):,}"
        return digits if len(digits) < 40 else "a number of more than 30 digits"
    return f"{float(value):.6g}" if value.numerator.bit_length() - value.denominator.bit_length() < 1000 else "a huge number"


def simple_factors(sizes):
    """Factors that usual mistakes make, by what one would write for them: 4 (bytes instead of numbers), N, N / (N - 1)."""
    factors = {Fraction(n): str(n) for n in (2, 3, 4, 8, 16)}
    for name, value in sizes.items():
        if len(name) <= 2 and isinstance(value, int) and value > 1:
            factors.setdefault(Fraction(value, value - 1), f"{name} / ({name} - 1)")
            factors.setdefault(Fraction(value), name)
            factors.setdefault(Fraction(value - 1), f"{name} - 1")
            factors.setdefault(Fraction(value + 1, value), f"({name} + 1) / {name}")
    factors.pop(Fraction(1), None)
    return factors


def difference(answer, truth, sizes):
    """Says that an answer is too large or too small, and by which factor, if a usual mistake makes it."""
    if answer * truth <= 0:
        return "it has the wrong sign" if answer * truth < 0 else f"it is too {'large' if answer > truth else 'small'}"
    factors = simple_factors(sizes)
    large = abs(answer) > abs(truth)
    ratio = answer / truth if large else truth / answer
    by = f", by a factor of {factors[ratio]}" if ratio in factors else ""
    return f"it is too {'large' if answer > truth else 'small'}{by}"


def holds(answer, truth, tolerance):
    """True if an answer is right."""
    return abs(answer - truth) <= Fraction(str(tolerance)) * abs(truth)


def check_ask(exercise, ask, text, draws, programs):
    """The fault of one answer, in a sentence; "" if it is right. draws: the sets of sizes that it is compared at."""
    for sizes in draws:
        values = questions.figures_of(exercise, sizes, programs)
        truth = expressions.evaluate(ask.value, values)
        allowed = {name: values[name] for name in exercise.names}
        try:
            answer = expressions.evaluate(expressions.as_written(text, ask.unit, ask.name), allowed)
        except expressions.BadExpression as error:
            return f"`{text[:60]}`: {error}"
        if holds(answer, truth, ask.tolerance):
            continue
        wrong = difference(answer, truth, sizes)
        if exercise.kind != "derive":
            return f"{number_text(answer)} is wrong: {wrong}."
        where = ", ".join(f"{name} = {number_text(value)}" for name, value in allowed.items())
        return f"With {where} this gives {number_text(answer)}: {wrong}."
    return ""


def grade_ask(exercise, ask, sheet, draws, programs):
    """A line about one answer, "" if it is right; and whether there is none."""
    try:
        text, where = sheet.answer(exercise.number, ask.name)
    except expressions.BadExpression as error:
        return f"{ask.name}: {error}", False
    wrong = check_ask(exercise, ask, text, draws, programs) if text else "there is no answer."
    return wrong and f"{ask.name}{where}: {wrong}", not text


def grade_exercise(exercise, sheet, draws, programs):
    """The verdict on one exercise, and feedback: a line for each answer that is missing or wrong."""
    graded = [grade_ask(exercise, ask, sheet, draws, programs) for ask in exercise.asks]
    details = [wrong for wrong, _ in graded if wrong]
    if not details:
        return "passed", ""
    details += sheet.unread(exercise)[:4]
    if all(missing for _, missing in graded):
        return "not answered", "\n".join(details)
    if exercise.section:
        details.append(f"Read again: {exercise.section}")
    return "failed", "\n".join(details)


def grade_answers(root, build, lesson, student, content, secret):
    """Grades a file of answers: a row for each exercise of the lesson that is answered.
    build: folder with the lesson's programs. content: its bytes, or a text that says why there are none."""
    programs, rows = questions.Programs(root, build), []
    refusal, sheet = content, None
    try:
        if isinstance(content, bytes):
            sheet = read_answers(content, student)
    except (Refused, expressions.BadExpression) as error:
        refusal = str(error)
    folder = questions.folder_of(root, lesson)
    for exercise in answered(root, lesson):
        draws = [questions.draw_sizes(exercise, student, secret, number) for number in range(questions.DRAWS[exercise.kind])]
        verdict, detail = grade_exercise(exercise, sheet, draws, programs) if sheet else ("not answered", refusal)
        detail = detail.replace("Read again: ", f"Read again: lessons/{folder.name}/README.md#")
        rows.append(dict(exercise=exercise.number, kind=exercise.kind, title=exercise.title,
                         points=exercise.points if verdict == "passed" else 0, of=exercise.points, verdict=verdict, detail=detail))
    return rows


def check(root, build, lesson, student, file):
    """Prints the points of a file of answers; the exit status."""
    if not file.is_file():
        raise Refused(f"there is no file {file}; write one with `scripts/course/answers.py ask {lesson} >{file}`")
    rows = grade_answers(root, build, lesson, student, file.read_bytes(), "")
    for row in rows:
        print(f"{row['exercise']:6} {row['points']:3}/{row['of']:<3} {row['verdict']:13} {row['title']}")
        if row["detail"]:
            print(textwrap.indent(row["detail"], " " * 15))
    points, of = (sum(row[key] for row in rows) for key in ("points", "of"))
    print(f"total  {points:3}/{of}")
    return 0 if points == of else 1


# ---- hint, table ------------------------------------------------------------------------------------------------------

def hint(root, number, level):
    """Prints the first hints of an exercise."""
    for exercise in questions.read_exercises(root, number.split(".")[0]):
        if exercise.number == number:
            if not 1 <= level <= len(exercise.hints):
                raise Refused(f"exercise {number} has hints of levels 1 to {len(exercise.hints)}")
            for place, text in enumerate(exercise.hints[:level], 1):
                print(textwrap.fill(f"{place}. {' '.join(text.split())}", WIDTH, subsequent_indent="   "))
            return 0
    raise Refused(f"there is no exercise {number}")


def table(root, lesson):
    """Prints the exercises of a lesson as its README shows them: a table, and hints that unfold."""
    regions = {region.exercise: region for region in all_regions(read_tree(root))}
    exercises = questions.read_exercises(root, lesson)
    print("\n| exercise | kind | points | minutes | |\n|---|---|---:|---:|---|")
    for exercise in exercises:
        of = regions.get(exercise.number, exercise)
        place = f" (`{of.path}`)" if of is not exercise else ""
        print(f"| {exercise.number} | {exercise.kind} | {of.points} | {exercise.minutes} | {of.title}{place} |")
    print("\nHints, each more than the one before:")
    for exercise in exercises:
        print(f"\n<details><summary>{exercise.number}: {regions.get(exercise.number, exercise).title}</summary>\n")
        for place, text in enumerate(exercise.hints):
            if place:
                print("<details><summary>more</summary>\n")
            print(" ".join(text.split()) + "\n")
        print("</details>" * len(exercise.hints))
    print()
    return 0


# ---- command line -----------------------------------------------------------------------------------------------------

def main(arguments):
    root = pathlib.Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=root, help="the repository (default: the one of this script)")
    commands = parser.add_subparsers(dest="command", required=True)
    of = {name: commands.add_parser(name) for name in ("ask", "check", "hint", "table")}
    for name, command in of.items():
        command.add_argument("number", help="an exercise, as 06.5" if name == "hint" else "a lesson, as 06")
    of["check"].add_argument("file", type=pathlib.Path, help="the file of answers")
    of["check"].add_argument("--build", type=pathlib.Path, help="folder with the programs (default: build)")
    of["hint"].add_argument("--level", type=int, default=1, help="how many hints, 1 to 3")
    for name in ("ask", "check"):
        of[name].add_argument("--student", default="", help="whose sizes; each name has its own")
    options = parser.parse_args(arguments)
    root, number = options.root.resolve(), options.number
    if options.command == "ask":
        print(questions_file(root, number, options.student, ""), end="")
        return 0
    if options.command == "check":
        return check(root, (options.build or root / "build").resolve(), number, options.student, options.file)
    return hint(root, number, options.level) if options.command == "hint" else table(root, number)


if __name__ == "__main__":
    run_script(main)
