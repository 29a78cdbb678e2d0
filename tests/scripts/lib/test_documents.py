"""Words and documents given to scripts: --help is answered, a word or a document that they cannot take is named in a
sentence, and no text of it or of its name reaches the terminal as a control character."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

SCRIPTS = pathlib.Path(__file__).resolve().parents[3] / "scripts"
READERS = ["plot/compare_losses.py IN IN", "plot/plot_memory.py bars IN --output=OUT", "plot/plot_memory.py time IN --output=OUT",
           "plot/plot_plan.py IN --output=OUT", "plot/plot_schedule.py IN OUT", "plot/plot_traffic.py IN OUT",
           "film/film.py IN IN --output=OUT", "page/compare_runs.py IN IN --output=OUT", "page/metrics.py IN --to=csv", "bench/gpu_check.py build --figures IN"]
UNREADABLE = {"deep": b"[" * 100000 + b"\n", "utf16": '{"loss": [1]}\n'.encode("utf-16"), "list": b'["\x1b[31m"]\n',
              "bytes": b'{"\x9b31m": "\xff"}\n'}


class Words(unittest.TestCase):
    """Words of every script that can be started; those that build or install find commands that do not."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.log = pathlib.Path(folder.name, "log")
        says = {"mpirun": 'echo "error: no lesson runs" >&2'}  # what a lesson says of its options is not tested here
        for name in ("cmake", "ninja", "nvcc", "apt-get", "mpirun", "clang-format", "clang-tidy", "doxygen"):
            does = says.get(name, 'echo "$0 $*" >>"${0%/*}/log"')
            (command := pathlib.Path(folder.name, name)).write_text(f'#!/bin/sh\n[ "$1" = --version ] || {does}; exit 1\n')
            command.chmod(0o755)
        self.environment = {**os.environ, "PATH": f"{folder.name}:{os.environ['PATH']}"}

    def test_are_answered_or_refused_before_anything_is_done(self):
        scripts = [path for path in sorted(SCRIPTS.rglob("*")) if path.is_file() and os.access(path, os.X_OK) and "exports" not in path.parts]
        self.assertGreater(len(scripts), 50)
        for path in scripts:
            for word, status in (("--help", 0), ("--no\x1bsuch\u202e", 2)):
                with self.subTest(script=path.relative_to(SCRIPTS), word=word):
                    done = subprocess.run([path, word], capture_output=True, text=True, timeout=60, cwd=self.log.parent, env=self.environment,
                                          check=False)
                    self.assertEqual(done.returncode, status, done.stderr)
                    self.assertNotRegex(done.stdout + done.stderr, "[\x1b\u202e]|Traceback")
                    self.assertRegex(done.stderr, "error: " if status else "^$")
                    if not status:
                        self.assertIn(path.name, done.stdout)
                    self.assertFalse(self.log.exists(), self.log.exists() and self.log.read_text(encoding="utf-8"))


class Documents(unittest.TestCase):
    def test_each_is_refused_in_a_sentence(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, content in UNREADABLE.items():
                document = pathlib.Path(folder) / f"{name}\x1b[31m.json"
                document.write_bytes(content)
                for reader in READERS:
                    script, *arguments = reader.replace("OUT", f"{folder}/out").split()
                    with self.subTest(document=name, reader=reader):
                        done = subprocess.run([sys.executable, SCRIPTS / script,
                                               *(str(document) if word == "IN" else word for word in arguments)],
                                              capture_output=True, timeout=60)
                        said = done.stdout + done.stderr
                        self.assertEqual(done.returncode, 2, said)
                        self.assertTrue(done.stderr.startswith(b"error: "), said)
                        self.assertNotIn(b"\x1b", said)

    def test_none_is_replaced_by_what_is_made_of_it(self):
        with tempfile.TemporaryDirectory() as folder:
            report = pathlib.Path(folder) / "report.json"
            report.write_text('{"lesson": "03", "ranks": 1, "loss": [1.5]}', encoding="utf-8")
            (link := report.with_name("link")).hardlink_to(report)
            for script, output in (("page/compare_runs.py", "--output"), ("plot/compare_losses.py", "--plot")):
                done = subprocess.run([sys.executable, SCRIPTS / script, report, f"{output}={link}"], capture_output=True)
                self.assertEqual(done.returncode, 2, done.stdout)
                self.assertIn(b"It is read here, and would be lost", done.stderr)
                self.assertIn("1.5", link.read_text(encoding="utf-8"))

    def test_what_a_browser_could_not_read_is_not_written(self):
        with tempfile.TemporaryDirectory() as folder:
            report, made = pathlib.Path(folder) / "\x1b.json", pathlib.Path(folder) / "made"
            report.write_text('{"lesson": "03", "ranks": NaN, "loss": [1.5]}', encoding="utf-8")
            for script, output, status in (("page/compare_runs.py", "--output", 2), ("plot/compare_losses.py", "--plot", 0)):
                done = subprocess.run([sys.executable, SCRIPTS / script, report, f"{output}={made}"], capture_output=True)
                self.assertEqual(done.returncode, status, done.stderr)
            self.assertIn("\\x1b", "".join(xml.etree.ElementTree.parse(made).getroot().itertext()))

    def test_an_output_that_cannot_be_written_and_an_interrupt_are_no_traceback(self):
        code = f"import os, sys; sys.path.insert(0, {str(SCRIPTS / 'lib')!r}); import documents; documents.show_control_characters(); "
        for shell, status, said in (("print(1)' >/dev/full", 1, b"error: the output cannot be written: No space left on device.\n"),
                                    ("print(1)' >&-", 0, b""), ("os.kill(os.getpid(), 2)'", -signal.SIGINT, b"")):
            with self.subTest(shell=shell):
                done = subprocess.run(["bash", "-c", f"exec {sys.executable} -c '{code.replace(chr(39), chr(34))}{shell}"],
                                      capture_output=True, timeout=60)
                self.assertEqual((done.returncode, done.stderr), (status, said))


if __name__ == "__main__":
    unittest.main(verbosity=2)
