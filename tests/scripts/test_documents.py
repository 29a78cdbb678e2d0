"""Scripts that read documents of others: a document that cannot be read is named in a sentence, and no text of it or of its name
reaches the terminal as a control character."""

import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"
READERS = ["plot/compare_losses.py IN IN", "plot/plot_memory.py bars IN --output=OUT", "plot/plot_memory.py time IN --output=OUT",
           "plot/plot_plan.py IN --output=OUT", "plot/plot_schedule.py IN OUT", "plot/plot_traffic.py IN OUT",
           "film/film.py IN IN --output=OUT", "compare_runs.py IN IN --output=OUT", "metrics.py IN --to=csv"]
UNREADABLE = {"deep": b"[" * 100000 + b"\n", "utf16": '{"loss": [1]}\n'.encode("utf-16"), "list": b'["\x1b[31m"]\n',
              "bytes": b'{"\x9b31m": "\xff"}\n'}


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
            for script, output in (("compare_runs.py", "--output"), ("plot/compare_losses.py", "--plot")):
                done = subprocess.run([sys.executable, SCRIPTS / script, report, f"{output}={link}"], capture_output=True)
                self.assertEqual(done.returncode, 2, done.stdout)
                self.assertIn(b"It is read here, and would be lost", done.stderr)
                self.assertIn("1.5", link.read_text(encoding="utf-8"))

    def test_what_a_browser_could_not_read_is_not_written(self):
        with tempfile.TemporaryDirectory() as folder:
            report, made = pathlib.Path(folder) / "\x1b.json", pathlib.Path(folder) / "made"
            report.write_text('{"lesson": "03", "ranks": NaN, "loss": [1.5]}', encoding="utf-8")
            for script, output, status in (("compare_runs.py", "--output", 2), ("plot/compare_losses.py", "--plot", 0)):
                done = subprocess.run([sys.executable, SCRIPTS / script, report, f"{output}={made}"], capture_output=True)
                self.assertEqual(done.returncode, status, done.stderr)
            self.assertIn("\\x1b", "".join(xml.etree.ElementTree.parse(made).getroot().itertext()))

    def test_an_output_that_cannot_be_written_and_an_interrupt_are_no_traceback(self):
        code = f"import os, sys; sys.path.insert(0, {str(SCRIPTS)!r}); import documents; documents.show_control_characters(); "
        for shell, status, said in (("print(1)' >/dev/full", 1, b"error: the output cannot be written: No space left on device.\n"),
                                    ("print(1)' >&-", 0, b""), ("os.kill(os.getpid(), 2)'", -signal.SIGINT, b"")):
            with self.subTest(shell=shell):
                done = subprocess.run(["bash", "-c", f"exec {sys.executable} -c '{code.replace(chr(39), chr(34))}{shell}"],
                                      capture_output=True, timeout=60)
                self.assertEqual((done.returncode, done.stderr), (status, said))


if __name__ == "__main__":
    unittest.main(verbosity=2)
