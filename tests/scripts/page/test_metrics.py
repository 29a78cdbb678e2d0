"""scripts/page/metrics.py: what it reads, tables, what TensorBoard (and itself if it is here), Weights & Biases and MLflow are given."""

import contextlib
import importlib.util
import io
import pathlib
import sys
import tempfile
import types
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "scripts/page"))
import metrics  # noqa: E402
from documents import status_of  # noqa: E402

LOG = """{"run": {"lesson": "03_ddp"}}
{"step": 0, "loss": 5.5, "memory": {"gradients": 8}}
{"step": 1, "loss": 5.25, "memory": {"gradients": 8}}
{"step": 1, "validation_loss": 5.4}
"""


class Metrics(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.log = pathlib.Path(folder.name) / "run.jsonl"
        self.log.write_text(LOG, encoding="utf-8")

    def run_script(self, *options, modules=()):
        """Status, output, complaints."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), mock.patch.dict(sys.modules, dict(modules)):
            status = status_of(metrics.main, [str(self.log), *options])
        return status, out.getvalue(), err.getvalue()

    def test_a_table(self):
        self.assertEqual(self.run_script("--to=csv"), (0, f"{self.log}.csv\n", ""))
        table = pathlib.Path(f"{self.log}.csv").read_text(encoding="utf-8")
        self.assertEqual(table, "step,loss,memory/gradients,validation_loss\n0,5.5,8,\n1,5.25,8,5.4\n")

    def test_tensorboard(self):
        for missing, module in (((), "tensorboardX"), (("tensorboardX",), "torch.utils.tensorboard")):
            writer = mock.MagicMock()
            stand_in = types.SimpleNamespace(SummaryWriter=lambda _, w=writer: contextlib.nullcontext(w))
            modules = {"torch": types.SimpleNamespace(), "torch.utils": types.SimpleNamespace(), **dict.fromkeys(missing), module: stand_in}
            self.assertEqual(self.run_script("--to=tensorboard", modules=modules), (0, f"{self.log}.tensorboard\n", ""))
            self.assertEqual([call.args for call in writer.add_scalar.call_args_list],
                             [("loss", 5.5, 0), ("memory/gradients", 8, 0), ("loss", 5.25, 1), ("memory/gradients", 8, 1),
                              ("validation_loss", 5.4, 1)])
            writer.add_text.assert_called_once()

    @unittest.skipUnless(importlib.util.find_spec("tensorboard") and importlib.util.find_spec("tensorboardX"), "no TensorBoard here")
    def test_tensorboard_reads_it(self):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        self.assertEqual(self.run_script("--to=tensorboard")[0], 0)
        read = EventAccumulator(f"{self.log}.tensorboard").Reload()
        found = {name: [(event.step, event.value) for event in read.Scalars(name)] for name in read.Tags()["scalars"]}
        self.assertEqual(found, {"loss": [(0, 5.5), (1, 5.25)], "memory/gradients": [(0, 8), (1, 8)],
                                 "validation_loss": [(1, mock.ANY)]})
        self.assertAlmostEqual(found["validation_loss"][0][1], 5.4, places=6)  # f32

    def test_wandb(self):
        run = mock.MagicMock()
        wandb = types.SimpleNamespace(init=lambda **_: contextlib.nullcontext(run))
        self.assertEqual(self.run_script("--to=wandb", modules={"wandb": wandb}), (0, "", ""))
        run.config.update.assert_called_once_with({"lesson": "03_ddp"}, allow_val_change=True)
        self.assertEqual(run.log.call_args_list[0], mock.call({"loss": 5.5, "memory/gradients": 8}, step=0))

    def test_mlflow(self):
        mlflow = mock.MagicMock()
        self.assertEqual(self.run_script("--to=mlflow", modules={"mlflow": mlflow}), (0, "", ""))
        mlflow.log_dict.assert_called_once_with({"lesson": "03_ddp"}, "run.json")
        self.assertEqual(mlflow.log_metrics.call_args_list[0], mock.call({"loss": 5.5, "memory/gradients": 8}, step=0))

    def test_lines_as_they_come(self):
        """A line is read when it is whole, however it is written."""
        line = '{"step": 2, "loss": 5}\n'
        with open(self.log, "a", encoding="utf-8") as log, mock.patch.object(metrics.time, "sleep") as sleep:
            rest = iter([line[:9], line[9:]])
            sleep.side_effect = lambda _: (log.write(next(rest)), log.flush())
            lines = metrics.lines_of(self.log, True)
            self.assertEqual([next(lines).get("step") for _ in range(5)], [None, 0, 1, 1, 2])
            self.assertEqual(sleep.call_count, 2)

    def test_ctrl_c_ends_it(self):
        mlflow = mock.MagicMock()
        with mock.patch.object(metrics.time, "sleep", side_effect=KeyboardInterrupt):
            self.assertEqual(self.run_script("--to=mlflow", "--follow", modules={"mlflow": mlflow}), (0, "", ""))
        self.assertEqual(mlflow.log_metrics.call_count, 3)

    def test_numbers(self):
        self.assertEqual(dict(metrics.numbers_of({"step": 3, "loss": None, "time": {"io": 0.5}})), {"time/io": 0.5})

    def refused(self, says, *options, **modules):
        status, out, err = self.run_script(*options, **modules)
        self.assertEqual((status, out, err.count("error:")), (2, "", 1))
        self.assertIn(says, err)

    def test_what_it_refuses(self):
        self.refused("pip install tensorboardX", "--to=tensorboard", modules={"tensorboardX": None, "torch.utils.tensorboard": None})
        self.refused("pip install wandb", "--to=wandb", modules={"wandb": None})
        self.refused("--follow with --to=csv", "--to=csv", "--follow")
        self.log.write_text("no JSON\n", encoding="utf-8")
        self.refused("is not a log of a lesson", "--to=csv")
        self.log.write_text("[1]\n", encoding="utf-8")
        self.refused("is not a log of a lesson", "--to=csv")
        self.log.write_bytes(b"\xff\n")
        self.refused(f"error: {self.log} is not a log of a lesson.\n", "--to=csv")
        self.log.write_text('{"run": {}}\n', encoding="utf-8")
        self.refused("run.jsonl has no steps", "--to=csv")
        self.log.unlink()
        self.refused(f"error: {self.log}: No such file or directory.\n", "--to=csv")
        self.log.symlink_to("/proc/self/mem")
        self.refused(f"error: {self.log}: Input/output error.\n", "--to=csv")


if __name__ == "__main__":
    unittest.main()
