"""Scripts that read documents of others: a document that cannot be read is named in a sentence, and no text of it or of its name
reaches the terminal as a control character."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

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


if __name__ == "__main__":
    unittest.main(verbosity=2)
