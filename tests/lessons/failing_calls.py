"""Programs beside which tests/programs/failing_calls.c is loaded: something goes wrong at one of their calls."""

import glob
import json
import os
import re
import shutil
import subprocess

from program_case import BUILD, TIME_LIMIT_S, ProgramCase

LIBRARY = os.environ["FAILING_CALLS"]


def failing(folder, **variables):
    """The environment in which calls that concern this folder fail; how=, call= and so on are the library's variables."""
    # Sanitizers want to be loaded first; that they are not does no harm here.
    options = os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"
    return {"LD_PRELOAD": LIBRARY, "ASAN_OPTIONS": options, "FAILING_FOLDER": folder,
            **{f"FAILING_{name.upper()}": str(value) for name, value in variables.items()}}


def calls_in(log):
    """The calls that the library has logged: name and file of each, in order."""
    with open(log, encoding="utf-8") as file:
        return [tuple(line.rstrip("\n").split(" ", 1)) for line in file]


class FailingCase(ProgramCase):
    """Runs of a small model in exact arithmetic, on a text so short that most of a run is its steps."""

    layers = 1

    def setUp(self):
        super().setUp()
        text, tokens = os.path.join(self.folder, "text.txt"), os.path.join(self.folder, "tokens.h5")
        with open(text, "w", encoding="utf-8") as file:
            file.write("the owl sees 12 cats.\n" * 20)
        done = self.run_program("--tokenizer=byte", text, tokens, program="data/prepare")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.small = (f"--data={tokens}", f"--layers={self.layers}", "--channels=8", "--heads=2", "--context=16",
                      "--vocabulary=256", "--global-batch=4", "--arithmetic=exact")

    def new_folder(self, *words):
        path = os.path.join(self.folder, "-".join(re.sub(r"\W+", "-", str(word)) for word in words))
        os.makedirs(path)
        return path

    @staticmethod
    def remove(folder):
        """This folder and those beside it whose names begin with its name: there are thousands of them."""
        for path in (folder, *glob.glob(glob.escape(folder) + ".*")):
            if os.path.isdir(path):
                shutil.rmtree(path)
            else:
                os.remove(path)

    def run_failing(self, ranks, lesson, *options, environment):
        """Runs the job, without a launcher if it has one rank, and returns the finished process."""
        launcher = [] if ranks == 1 else ["mpirun", "-np", str(ranks)]
        command = [*launcher, os.path.join(BUILD, "lessons", lesson), *self.small, *options]
        return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=TIME_LIMIT_S,
                              env={**os.environ, **environment})

    @staticmethod
    def report_in(path):
        with open(path, encoding="utf-8") as file:
            return json.load(file)
