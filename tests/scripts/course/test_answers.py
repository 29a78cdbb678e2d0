#!/usr/bin/env python3
"""Tests scripts/course/answers.py: expressions, the questions of all lessons, and the instructors' key."""

import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest
from fractions import Fraction

ROOT = pathlib.Path(__file__).resolve().parents[3]
BUILD = pathlib.Path(os.environ.get("RANKWISE_BUILD", ROOT / "build"))
sys.path[:0] = [str(ROOT / "scripts/course"), str(ROOT / "scripts/check")]
sys.dont_write_bytecode = True

import answers  # noqa: E402
import expressions  # noqa: E402
import questions  # noqa: E402
import update_output  # noqa: E402
from exercise_tree import Refused, all_regions, read_tree  # noqa: E402

LESSONS = sorted(path.parent.name[:2] for path in ROOT.glob("lessons/*/exercises.toml"))
KEY = re.compile(r"^    (\d\d\.\d+) (\w+) = (.+)$", re.MULTILINE)  # a line of docs/instructor/answers/NN.md
STUDENTS = ("", "alice", "bob")
ALL = "RANKWISE_ALL" in os.environ  # all students, at night
SCRIPT = ROOT / "scripts/course/answers.py"


def key_of(lesson):
    """The key of a lesson: (exercise, name) -> expression."""
    path = ROOT / f"docs/instructor/answers/{lesson}.md"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return {(match[1], match[2]): match[3] for match in KEY.finditer(text)}


class Expressions(unittest.TestCase):
    NAMES = {"N": 4, "P": 220544}

    def test_values(self):
        for text, value in [("2 * (N - 1) * 4 * P / N", 1323264), ("8*P - 8*P/N", 1323264), ("7 / 2", Fraction(7, 2)), ("7 // 2", 3),
                            ("7 % 4", 3), ("-N ** 2", -16), ("N ** -1", Fraction(1, 4)), ("min(N, 3) + max(1, N, 2)", 7),
                            ("ceil(7 / 2) + floor(-7 / 2)", 0), ("0.1 + 0.2", Fraction(3, 10)), ("1e3", 1000), (" N \n", 4)]:
            self.assertEqual(expressions.evaluate(text, self.NAMES), value, text)

    def test_anything_else_is_refused_at_once(self):
        for text in ["9**9**9**9", "2 ** 65", "((9**64)**64)**64", "1e999", "9" * 450 + "**64", "__import__('os').system('true')",
                     "(1).__class__", "open('x')", "[1][0]", "{}", "'a'", "f'{N}'", "lambda: 1", "N if N else 1", "N < 3", "True",
                     "None", "1j", "x := 1", "min(1)", "ceil(1, 2)", "min(*[1, 2])", "max(1, 2, key=abs)", "sum(1 for i in 1)", "Q",
                     "N.real", "min", "2^3", "~N", "1 / 0", "1 % 0", "0 ** -1", "2 ** 0.5", "", "(", "1 1", "\0", "(" * 240 + "1" + ")" * 240,
                     "-" * 499 + "(", "1" * 10**6, "(" * 10**6, "min(" * 120 + "1, 1" + ")" * 120]:
            began = time.perf_counter()
            with self.assertRaises(expressions.BadExpression, msg=text[:50]):
                expressions.evaluate(text, self.NAMES)
            self.assertLess(time.perf_counter() - began, 1, text[:50])

    def test_a_refusal_says_what_to_write(self):
        for text, says in [("2^N", "**"), ("Q", "The names are: N, P"), ("1 / 0", "divides by zero"), ("abs(N)", "min, max, ceil and floor")]:
            with self.assertRaisesRegex(expressions.BadExpression, re.escape(says)):
                expressions.evaluate(text, self.NAMES)


class Tables(unittest.TestCase):
    """lessons/NN/exercises.toml beside the regions in the sources and the READMEs."""

    @classmethod
    def setUpClass(cls):
        cls.exercises = {lesson: questions.read_exercises(ROOT, lesson) for lesson in LESSONS}
        cls.regions = {region.exercise for region in all_regions(read_tree(ROOT))}

    def test_every_region_has_a_table_and_the_other_way_round(self):
        implement = {exercise.number for all_ in self.exercises.values() for exercise in all_ if exercise.kind == "implement"}
        self.assertEqual(implement, {region for region in self.regions if region[:2] in LESSONS})

    def test_every_exercise_is_complete(self):
        for lesson, exercises in self.exercises.items():
            self.assertEqual({exercise.number for exercise in exercises}, {f"{lesson}.{n + 1}" for n in range(len(exercises))})
            for exercise in exercises:
                self.assertEqual(len(exercise.hints), 3, exercise.number)
                self.assertTrue(all(hint.endswith((".", "?")) for hint in exercise.hints), exercise.number)
                self.assertIn(exercise.minutes, range(5, 91), exercise.number)
                if exercise.kind != "implement":
                    self.assertTrue(exercise.points > 0 and exercise.title and exercise.text and exercise.asks, exercise.number)

    def test_every_lesson_has_all_kinds_a_plan_and_a_clock(self):
        for lesson, exercises in self.exercises.items():
            self.assertEqual({exercise.kind for exercise in exercises}, set(questions.KINDS), lesson)
            options = [" ".join(exercise.options) for exercise in exercises]
            self.assertTrue(any("--link=" in text for text in options), lesson)
            self.assertTrue(lesson in ("00", "02") or any("--dry-run" in text and exercise.kind == "account"
                                                  for text, exercise in zip(options, exercises)), lesson)
        self.assertGreaterEqual(sum(map(len, self.exercises.values())), 65)

    def test_a_question_names_only_what_it_has(self):
        for exercises in self.exercises.values():
            for exercise in (exercise for exercise in exercises if exercise.kind != "implement"):
                sizes = questions.draw_sizes(exercise, "carol", "")
                text = "\n".join(questions.question_of(exercise, sizes))
                self.assertNotIn("{", text, exercise.number)
                self.assertIn("build/lessons/", text, exercise.number)
                self.assertEqual(exercise.kind == "derive", bool(exercise.names), exercise.number)
                self.assertLessEqual(set(exercise.names), {*sizes, *exercise.figures}, exercise.number)

    def test_a_section_is_a_heading_of_the_readme(self):
        for lesson, exercises in self.exercises.items():
            page = (questions.folder_of(ROOT, lesson) / "README.md").read_text(encoding="utf-8")
            anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in re.findall(r"^#+ (.+)$", page, re.MULTILINE)}
            for exercise in exercises:
                if exercise.kind != "implement":
                    self.assertIn(exercise.section, anchors, exercise.number)

    def test_the_readmes_have_the_tables(self):
        for lesson in LESSONS:
            page = (questions.folder_of(ROOT, lesson) / "README.md").read_text(encoding="utf-8")
            blocks = [block for block in update_output.TEXT.finditer(page) if block["command"] == f"scripts/course/answers.py table {lesson}"]
            self.assertEqual(len(blocks), 1, lesson)
            printed = subprocess.run([SCRIPT, "table", lesson], capture_output=True, text=True, check=True).stdout
            self.assertEqual(blocks[0]["old"], printed, f"run scripts/check/update_output.py on the README of lesson {lesson}")

    def test_sizes_are_those_of_a_student(self):
        exercise = next(exercise for exercise in self.exercises["01"] if exercise.kind == "account")
        drawn = {(student, secret): str(questions.draw_sizes(exercise, student, secret)) for student in "abcdefgh" for secret in ("", "s")}
        self.assertGreater(len(set(drawn.values())), 12)
        self.assertEqual(drawn["a", "s"], str(questions.draw_sizes(exercise, "a", "s")))
        of_exercises = set()
        for number in range(4, 12):
            exercise.number = f"01.{number}"
            of_exercises.add(str(questions.draw_sizes(exercise, "a", "s")))
        self.assertGreater(len(of_exercises), 6)


def digits(value):
    """A number as a student copies it from a report: four decimal places or four digits, whichever is more."""
    return f"{float(value):.4f}" if abs(value) > 1 else f"{float(value):.4g}"


class Key(unittest.TestCase):
    """The answers of docs/instructor/answers/, given by three students, and wrong ones."""

    @classmethod
    def setUpClass(cls):
        cls.programs = questions.Programs(ROOT, BUILD)

    def answer(self, exercise, ask, sizes, key):
        """The right answer: of a derivation the formula, of an account its value, of a measure what the report has."""
        expression = key.get((exercise.number, ask.name))
        if exercise.kind == "derive":
            return expression
        values = questions.figures_of(exercise, sizes, self.programs)
        if exercise.kind == "account":
            return f"({expressions.evaluate(expression, {**questions.numbers_of(sizes), 'P': values.get('P', 0)})}) * 1"
        return digits(expressions.evaluate(ask.value, values))

    def verdict(self, exercise, ask, text, draws):
        return answers.check_ask(exercise, ask, text, draws, self.programs)

    def check_exercise(self, exercise, student, key):
        """Faults of key or grader, in a list."""
        draws = [questions.draw_sizes(exercise, student, "", number) for number in range(questions.DRAWS[exercise.kind])]
        found = []
        for ask in exercise.asks:
            right = self.answer(exercise, ask, draws[0], key)
            if wrong := self.verdict(exercise, ask, right, draws):
                found.append(f"{exercise.number} {ask.name}: the key's {right} is refused: {wrong}")
            for text in (f"2 * ({right})", f"({right}) / 4", f"({right}) * 1.01", f"({right}) - 1", f"-({right})", "0", "1"):
                if not self.verdict(exercise, ask, text, draws) and not (text == "1" and ask.tolerance):
                    found.append(f"{exercise.number} {ask.name}: {text} is accepted, the answer is {right}")
            if exercise.kind == "derive" and (wrong := self.verdict(exercise, ask, f"(3 * ({right}) + 0) / 3", draws)):
                found.append(f"{exercise.number} {ask.name}: another form of {right} is refused: {wrong}")
        return found

    def test_the_key_is_right_for_three_students_and_wrong_answers_are_not(self):
        jobs = []
        for lesson in LESSONS:
            key = key_of(lesson)
            for exercise in questions.read_exercises(ROOT, lesson):
                if exercise.kind != "implement":
                    students = STUDENTS[:1] if exercise.kind == "measure" else STUDENTS
                    if not ALL:  # by day each exercise is that of one of them
                        students = students[len(jobs) % len(students)::len(STUDENTS)]
                    jobs += [(exercise, student, key) for student in students]
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            found = [text for texts in pool.map(lambda job: self.check_exercise(*job), jobs) for text in texts]
        self.assertEqual(found, [], "\n".join(found))

    def test_every_question_has_a_key(self):
        for lesson in LESSONS:
            asked = {(exercise.number, ask.name) for exercise in questions.read_exercises(ROOT, lesson)
                     if exercise.kind in ("account", "derive") for ask in exercise.asks}
            self.assertEqual(set(key_of(lesson)), asked)

    def test_a_measure_is_the_same_at_each_run(self):
        for lesson in ("06", "10"):
            exercise = questions.read_exercises(ROOT, lesson)[-1]
            sizes = questions.draw_sizes(exercise, "", "")
            again = questions.Programs(ROOT, BUILD)
            self.assertEqual(questions.figures_of(exercise, sizes, again), questions.figures_of(exercise, sizes, self.programs))


class Fake(questions.Programs):
    """One report for every command."""

    def __init__(self, *_):
        super().__init__("", "")

    def report(self, command):
        n = int(command[-1].split("=")[1])
        return {"sent": 1000 * n * (n - 1), "all": [{"x": 1}, {"x": 5}], "share": 3 / 11}


TOML = '''
[[exercise]]
number = "42.1"
kind = "account"
points = 7
minutes = 5
title = "Bytes"
section = "traffic"
text = "With {N} ranks: {command}"
options = ["--n={N}"]
sizes = { N = [3, 5] }
figures = { sent = "sent", largest = "max:all.*.x", all = "sum:all.*.x", share = "ratio:share" }
asks = [{ name = "bytes", what = "bytes sent", unit = "bytes", value = "sent" },
        { name = "share", what = "a share", value = "share + largest - all", tolerance = 0.001 }]
hints = ["First.", "Second.", "Third."]

[[exercise]]
number = "42.2"
kind = "derive"
points = 5
minutes = 5
title = "A formula"
section = "traffic"
text = "A formula."
options = ["--n={N}"]
sizes = { N = [3, 4, 5, 7] }
figures = { sent = "sent" }
names = { N = "ranks" }
asks = [{ name = "bytes", what = "bytes sent", value = "sent" }]
hints = ["First.", "Second.", "Third."]
'''


class Grading(unittest.TestCase):
    """Files of answers to two questions whose program is not run."""

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.root = pathlib.Path(temporary.name)
        (self.root / "lessons/42_last").mkdir(parents=True)
        (self.root / "lessons/42_last/exercises.toml").write_text(TOML, encoding="utf-8")
        real = questions.Programs
        questions.Programs = Fake
        self.addCleanup(setattr, questions, "Programs", real)

    def grade(self, text, student="alice", secret="s"):
        return answers.grade_answers(self.root, "", "42", student, text.encode() if isinstance(text, str) else text, secret)

    def filled(self, bytes_="", share="", formula=""):
        text = answers.questions_file(self.root, "42", "alice", "s")
        for value in (bytes_, share, formula):
            text = re.sub(r'^(bytes|share) = ""$', rf"\1 = {value or repr('')}", text, count=1, flags=re.MULTILINE)
        return text

    @property
    def ranks(self):
        return questions.draw_sizes(questions.read_exercises(self.root, "42")[0], "alice", "s")["N"]

    def test_right_answers(self):
        n = self.ranks
        for bytes_, share in [(str(1000 * n * (n - 1)), "-0.7273"), (f'"1000 * {n} * ({n} - 1)"', '"-8/11"'), (f"{1000 * n * (n - 1)}.0", "-0.7275")]:
            rows = self.grade(self.filled(bytes_, share, '"1e3 * (N**2 - N)"'))
            self.assertEqual([(row["verdict"], row["points"], row["of"], row["detail"]) for row in rows],
                             [("passed", 7, 7, ""), ("passed", 5, 5, "")])
        self.assertEqual([(row["exercise"], row["kind"], row["title"]) for row in rows],
                         [("42.1", "account", "Bytes"), ("42.2", "derive", "A formula")])

    def test_wrong_answers_are_told_in_which_way_but_not_the_value(self):
        n = self.ranks
        text = self.filled(str(4000 * n * (n - 1)), "-0.72", '"1000 * N * N"')
        account, derive = self.grade(text)
        line = text.split("\n").index(f"bytes = {4000 * n * (n - 1)}") + 1
        self.assertEqual((account["verdict"], account["points"]), ("failed", 0))
        self.assertIn(f"bytes (line {line}): {4000 * n * (n - 1):,} is wrong: it is too large, by a factor of 4", account["detail"])
        self.assertIn("it is too large.", account["detail"].split("\n")[1])  # -0.72 beside -0.7273
        self.assertIn("lessons/42_last/README.md#traffic", account["detail"])
        self.assertRegex(derive["detail"], r"With N = \d this gives [\d,]+: it is too large, by a factor of (N / \(N - 1\)|2|3 / 2)")
        for row in (account, derive):
            self.assertNotRegex(row["detail"].replace(",", ""), rf"\b{1000 * n * (n - 1)}\b")

    def test_a_formula_that_is_right_at_one_size_is_wrong(self):
        exercise = questions.read_exercises(self.root, "42")[1]
        sizes = [questions.draw_sizes(exercise, "alice", "s", number)["N"] for number in range(3)]
        self.assertGreater(len(set(sizes)), 1)
        for n in set(sizes):
            text = self.filled("1", "1", f'"{1000 * n * (n - 1)}"')
            row = self.grade(text)[1]
            self.assertEqual(row["verdict"], "failed")
            self.assertIn(f"(line {[n for n, line in enumerate(text.split(chr(10)), 1) if line.startswith('bytes')][1]})", row["detail"])

    def test_missing_and_malformed_answers(self):
        self.assertIn("line 2 answers bytes, which stands in front of all exercises", self.grade('\nbytes = 1\n["42.1"]')[0]["detail"])
        first, second = self.grade(self.filled())
        self.assertEqual((first["verdict"], second["verdict"]), ("not answered", "not answered"))
        self.assertRegex(first["detail"], r"bytes \(line \d+\): there is no answer")
        self.assertEqual(self.grade(self.filled("[1]"))[0]["verdict"], "failed")
        self.assertRegex(self.grade(self.filled("[1]"))[0]["detail"], r"bytes \(line \d+\): `\[1\]`: It holds something that is not allowed")
        self.assertIn("There is no true", self.grade(self.filled("true"))[0]["detail"])
        self.assertIn("There is no M", self.grade(self.filled(formula='"M * 2"'))[1]["detail"])
        for text, says in [("nan", "There is no nan"), ('"9**9**9"', "a whole exponent"), ("9" * 4000, "4000 characters")]:
            self.assertIn(says, self.grade(self.filled(text))[0]["detail"])
        self.assertIn("no N", self.grade(self.filled('"N"'))[0]["detail"])  # an account has no names

    def test_files_that_cannot_be_read(self):
        for text, says in [(b"#" * 200_000, "more than 100000 bytes"), ('student = "bob"', "questions of another student"), ('student = "\\ud800"', "of another student"),
                           ("[" * 50_000, "there is no answer"), (b"\xff\xfe", "there is no answer")]:
            for row in self.grade(text):
                self.assertEqual((row["verdict"], row["points"]), ("not answered", 0))
                self.assertIn(says, row["detail"])

    def test_what_can_mean_only_one_thing_is_read(self):
        n = self.ranks
        right, formula = 1000 * n * (n - 1), '"1e3 * (N**2 - N)"'
        for given in (f"{right:,}", f'"{right:,}"', f"{right:,}".replace(",", "'"), f'"{right:,} bytes"'.replace(",", "\u202f"), f"{right},0",
                      f"\u201c{right}\u201d", f"'{right}' # mine", f'"{right}', f"`{right}`", f'"= {right}"', f"\u2248 {right}", f'"{right}bytes"', f'"1000 \u00d7 {n} \u00b7 ({n} \u2212 1)"'):
            for encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"):
                text = self.filled(given, "-0,7273", formula)
                rows = self.grade(text[text.index("["):].replace("\n", "\r\n").encode(encoding))
                self.assertEqual([row["verdict"] for row in rows], ["passed"] * 2, (given, encoding, rows))
        rows = self.grade(self.filled(f"\u201c{right}\u201d", "-0.7273", formula).replace('["42.1"]', "[42.1]").encode("cp1252"))
        self.assertEqual([row["verdict"] for row in rows], ["passed"] * 2, rows)

    def test_a_line_that_cannot_be_read_costs_its_own_question(self):
        formula = '"1e3 * (N**2 - N)"'
        for line, says in (("1 2 3", "`1 2 3`: It cannot be read"), ('"""', "there is no answer"), ("16 apples", "`16 apples`"), ("= 1 =", "`= 1 =`"),
                           (".".join("a" * 20_000), "characters"), ("1\nbytes = 2", r"several answers, in the lines \d+, \d+"),
                           ("\nbites = 1", "answers bites, which is not asked"), ("\nit is 1\x1b", "is no answer: it is 1"), ("\n" * 90_000, "no answer")):
            first, second = self.grade(self.filled(line, "1", formula))
            self.assertEqual(second["verdict"], "passed", line[:50])
            self.assertEqual(first["points"], 0, line[:50])
            self.assertRegex(first["detail"], says)

    def test_names_that_are_not_there_do_no_harm(self):
        for text in ['"42.1" = 3', '["42.1"]\nother = 1', '["42.9"]\nbytes = 1', "x = {}"]:
            self.assertEqual([row["verdict"] for row in self.grade(text)], ["not answered"] * 2)

    def test_a_name_with_quotes_is_quoted(self):
        text = answers.questions_file(self.root, "42", 'al"ice\\\n', "s")
        for one in (text, text.replace("answers", "\ufeffanswers", 1)):
            self.assertEqual(answers.read_answers(one.encode(), 'al"ice\\\n').answer("", "student")[0], 'al"ice\\\n')

    def test_tables_that_are_malformed_are_refused(self):
        for old, new, says in [('kind = "account"', 'kind = "guess"', "guess is not one of"), ("minutes = 5", "length = 5", "42.1"),
                               ("points = 7", "points = ", "line")]:
            (self.root / "lessons/42_last/exercises.toml").write_text(TOML.replace(old, new, 1), encoding="utf-8")
            with self.assertRaisesRegex(Refused, says):
                questions.read_exercises(self.root, "42")


class CommandLine(unittest.TestCase):
    def run_script(self, *words):
        return subprocess.run([SCRIPT, *words], capture_output=True, text=True, check=False)

    def test_ask_check_hint(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "answers-04.toml"
            asked = self.run_script("ask", "04", "--student", "alice")
            self.assertEqual((asked.returncode, asked.stderr), (0, ""))
            file.write_text(asked.stdout.replace('state = ""', 'state = "6 * P * N + 12 * P"'), encoding="utf-8")
            checked = self.run_script("check", "04", str(file), "--student", "alice", "--build", str(BUILD))
            self.assertEqual((checked.returncode, checked.stderr), (1, ""))
            self.assertRegex(checked.stdout, r"04\.5 +10/10 +passed")
            self.assertRegex(checked.stdout, r"total +10/")
            self.assertEqual(self.run_script("check", "04", str(file), "--student", "bob", "--build", str(BUILD)).returncode, 1)
        hints = self.run_script("hint", "06.1", "--level", "2")
        self.assertEqual(hints.returncode, 0)
        self.assertEqual(re.findall(r"^\d\.", hints.stdout, re.MULTILINE), ["1.", "2."])

    def test_what_is_impossible_is_refused(self):
        for words, says in [(["ask", "99"], "no lesson 99"), (["ask", "../x"], "no lesson"), (["hint", "06.99"], "no exercise 06.99"),
                            (["hint", "06.1", "--level", "4"], "levels 1 to 3"), (["check", "04", "nowhere.toml"], "no file nowhere.toml")]:
            done = self.run_script(*words)
            self.assertEqual(done.returncode, 2, words)
            self.assertIn(says, done.stderr)


if __name__ == "__main__":
    unittest.main()
