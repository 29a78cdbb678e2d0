"""scripts/follow/: what it reads of a log, and what Weights & Biases and MLflow are given (stand-ins of them)."""

import contextlib
import importlib
import pathlib
import sys
import tempfile
import types
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts/follow"))
import log_lines  # noqa: E402

RUN = '{"run": {"lesson": "03_ddp"}}\n'
STEP = '{"step": 0, "loss": 5.5, "memory": {"gradients": 8}}\n'


class Follow(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.log = pathlib.Path(folder.name) / "run.jsonl"
        self.log.write_text(RUN + STEP, encoding="utf-8")

    def given(self, name, **modules):
        """Runs a script with stand-ins for what it imports."""
        with mock.patch.dict(sys.modules, modules), mock.patch.object(sys, "argv", [name, str(self.log), "--once"]):
            sys.modules.pop(name, None)
            importlib.import_module(name).main()

    def test_lines_as_they_come(self):
        """A line is read when it is whole, however it is written."""
        options = types.SimpleNamespace(log=self.log, once=False)
        half = len(STEP) // 2
        with open(self.log, "a", encoding="utf-8") as log, mock.patch.object(log_lines.time, "sleep") as sleep:
            rest = iter([STEP[:half], STEP[half:]])
            sleep.side_effect = lambda _: (log.write(next(rest)), log.flush())
            lines = log_lines.lines_of(options)
            self.assertEqual([next(lines).get("step") for _ in range(3)], [None, 0, 0])
            self.assertEqual(sleep.call_count, 2)

    def test_numbers(self):
        self.assertEqual(dict(log_lines.numbers_of({"step": 3, "loss": None, "time": {"io": 0.5}})), {"time/io": 0.5})

    def test_wandb(self):
        run = mock.MagicMock()
        self.given("to_wandb", wandb=types.SimpleNamespace(init=lambda **_: contextlib.nullcontext(run)))
        run.config.update.assert_called_once_with({"lesson": "03_ddp"}, allow_val_change=True)
        run.log.assert_called_once_with({"loss": 5.5, "memory/gradients": 8}, step=0)

    def test_mlflow(self):
        mlflow = mock.MagicMock()
        self.given("to_mlflow", mlflow=mlflow)
        mlflow.log_dict.assert_called_once_with({"lesson": "03_ddp"}, "run.json")
        mlflow.log_metrics.assert_called_once_with({"loss": 5.5, "memory/gradients": 8}, step=0)


if __name__ == "__main__":
    unittest.main()
