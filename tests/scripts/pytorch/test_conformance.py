"""scripts/pytorch/golden_states.py: its files; scripts/pytorch/conformance_adapter.py: PyTorch conforms to them, and planted mistakes do not."""

import array
import hashlib
import importlib.util
import json
import math
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "scripts/pytorch")]
import golden_states  # noqa: E402
from program_case import BUILD, ProgramCase, SLOWNESS  # noqa: E402

PAGE = (ROOT / "docs/conformance.md").read_text(encoding="utf-8")
HAS_TORCH = importlib.util.find_spec("torch") is not None
FIRST = dict(re.findall(r"^\| `([a-z0-9-]+)`:[^|]*\| `(step0/[^`]*)` \|", PAGE, re.MULTILINE))  # of each mistake, by the page
NOT_EVERYWHERE = {"sum": ("ddp", "fsdp2"), "no-all-reduce": ("ddp",), "lost-rank": ("ddp",), "local-norm": ("fsdp2",),
                  "partial": ("tp",)}


def values(tensor):
    """The numbers of a tensor."""
    dtype, _, content = tensor
    return array.array({"F32": "f", "F64": "d", "I64": "q"}[dtype], content)


class GoldenCase(ProgramCase):
    """Tests with the files of one run of the script."""

    program = "data/record_values"

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.golden = pathlib.Path(folder.name)
        done = cls.script(folder.name)
        if done.returncode:
            raise AssertionError(done.stderr)
        cls.files = {name: golden_states.read(cls.golden / f"{name}.safetensors") for name in ("nano", "odd")}

    @staticmethod
    def script(*arguments):
        return subprocess.run([sys.executable, ROOT / "scripts/pytorch/golden_states.py", f"--build={BUILD}", *arguments], capture_output=True,
                              text=True, check=False)


class Files(GoldenCase):
    def test_tensors_of_the_page(self):
        named = set(re.findall(r"^\| `((?:step[S0]|initial)/[^`]*)` \| [^|]*\| [^|]*\|[^|]*\|$", PAGE, re.MULTILINE))
        for model, (tensors, _) in self.files.items():
            parameters = "|".join(re.escape(name[8:]) for name in tensors if name.startswith("initial/"))
            found = set()
            for name in tensors:
                name = re.sub(f"/({parameters})$", "/NAME", name)
                name = re.sub(r"^step0/backward/.*", "step0/backward/X", re.sub(r"/h\.\d+\.", "/h.i.", name))
                found.add(name if re.match("step0/(forward|backward|gradient)/", name) else re.sub(r"^step\d", "stepS", name))
            self.assertEqual(found, named, model)

    def test_digests_and_sizes_of_the_page(self):
        for model, (tensors, metadata) in self.files.items():
            _, row = PAGE.split(f"| `{model}.safetensors` |")
            self.assertIn(f"`{metadata['digest'][:16]}...`", row.split("\n")[0])
            parameters = b"".join(content for name, (_, _, content) in tensors.items() if name.startswith("step4/parameter/"))
            self.assertEqual(hashlib.sha256(parameters).hexdigest(), metadata["digest"], model)

    def test_numbers_agree_with_each_other(self):
        """The embedding is that of the tokens, the loss that of the logits, the norm that of the gradient."""
        for model, (tensors, _) in self.files.items():
            with self.subTest(model=model):
                G, T, V = tensors["step0/forward/logits"][1]
                C = tensors["initial/wte.weight"][1][1]
                wte, wpe = (values(tensors[f"initial/{name}.weight"]) for name in ("wte", "wpe"))
                tokens, targets = (values(tensors[f"step0/{name}"]) for name in ("input_tokens", "targets"))
                sums = array.array("f", (wte[token * C + c] + wpe[i % T * C + c] for i, token in enumerate(tokens) for c in range(C)))
                self.assertEqual(sums.tobytes(), tensors["step0/forward/embedding"][2])
                self.assertEqual([target for i, target in enumerate(targets) if (i + 1) % T], [t for i, t in enumerate(tokens) if i % T])
                logits = values(tensors["step0/forward/logits"])
                loss = sum(math.log(math.fsum(map(math.exp, logits[i * V:(i + 1) * V]))) - logits[i * V + target]
                           for i, target in enumerate(targets)) / (G * T)
                self.assertAlmostEqual(values(tensors["step0/loss"])[0], loss, delta=1e-6)
                norm = math.sqrt(math.fsum(x * x for name in tensors if "/gradient/" in name for x in values(tensors[name])))
                self.assertAlmostEqual(values(tensors["step0/gradient_norm"])[0], norm / (G * T), delta=1e-6 * norm)

    def test_a_lesson_on_two_ranks_has_these_losses_and_this_digest(self):
        (pathlib.Path(self.folder) / "text.txt").write_bytes(golden_states.text())
        done = self.run_program("--tokenizer=byte", f"{self.folder}/text.txt", f"{self.folder}/text.h5", program="data/prepare")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.program = "lessons/03_ddp"
        for model, (tensors, metadata) in self.files.items():
            options = {**golden_states.MODELS[model], **golden_states.TRAINING}
            report = self.report(*(f"--{name}={value}" for name, value in options.items()), f"--data={self.folder}/text.h5", ranks=2)
            self.assertEqual(report["digest"], metadata["digest"])
            self.assertEqual(report["loss"], [values(tensors[f"step{step}/loss"])[0] for step in range(5)])
            recorded = json.loads(metadata["options"])
            self.assertEqual({name: recorded[name] for name in options}, options)

    def test_damage_is_found(self):
        path, copy = self.golden / "odd.safetensors", pathlib.Path(self.folder) / "copy.safetensors"
        content = path.read_bytes()
        begin = 8 + struct.unpack("<Q", content[:8])[0]
        for place in (begin, (begin + len(content)) // 2, len(content) - 1):
            damaged = bytearray(content)
            damaged[place] ^= 1
            copy.write_bytes(damaged)
            self.assertRaisesRegex(golden_states.Refused, "is damaged", golden_states.read, copy)
        for length in (0, 7, begin // 2):
            copy.write_bytes(content[:length])
            self.assertRaisesRegex(golden_states.Refused, "is not a safetensors file", golden_states.read, copy)
        copy.write_bytes(content[:-1])
        self.assertRaisesRegex(golden_states.Refused, "is damaged", golden_states.read, copy)

    def test_refusals(self):
        for arguments, says in ((("/no/such/folder",), "/no/such/folder is not a folder"),
                                ((self.folder, "--build=/no/such/build"), "/no/such/build has no lessons/01_single_device")):
            done = self.script(*arguments)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn(says, done.stderr)
            self.assertEqual(done.stderr.count("error:"), 1)

    def test_record_values_refuses(self):
        record, out = f"{self.folder}/record.h5", f"{self.folder}/values.safetensors"
        done = self.run_program("--layers=1", "--heads=1", "--channels=16", "--context=16", "--steps=1", f"--record={record}",
                                program="lessons/01_single_device")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assert_all_refused([((record, out), ["has no values", "--record-values"]), ((record,), ["1 files given"]),
                                 ((f"{self.folder}/none.h5", out), ["none.h5"]), ((record, record), ["record.h5"])])
        self.assertFalse(os.path.exists(out))


@unittest.skipUnless(HAS_TORCH, "this Python has no PyTorch")
class Adapter(GoldenCase):
    def adapter(self, model, *options, ranks=1):
        """The finished process, alone or under torchrun, and its lines by kind and mistake."""
        launcher = ["-m", "torch.distributed.run", f"--nproc-per-node={ranks}"] if ranks > 1 else []
        done = subprocess.run([sys.executable, *launcher, ROOT / "scripts/pytorch/conformance_adapter.py", self.golden / f"{model}.safetensors",
                               *options], capture_output=True, text=True, check=False, timeout=120 * SLOWNESS)
        found = re.findall(r"^(\w+), np \d(?:, ([\w-]+) \([^)]*\))?: (.*)$", done.stdout, re.MULTILINE)
        return done, {(kind, mistake): text for kind, mistake, text in found}

    def test_pytorch_conforms(self):
        for model, ranks, kinds in (("nano", 1, "plain"), ("odd", 1, "plain,ddp,fsdp2,tp"), ("nano", 2, "ddp,fsdp2,tp"),
                                    ("odd", 3, "ddp,fsdp2,tp"), ("nano", 4, "ddp,fsdp2,tp")):
            with self.subTest(model=model, ranks=ranks):
                done, lines = self.adapter(model, f"--kind={kinds}", ranks=ranks)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                self.assertEqual([kind for kind, _ in lines], kinds.split(","))
                for text in lines.values():
                    self.assertTrue(text.startswith("conforms; "), text)

    def test_each_mistake_is_found_at_its_tensor(self):
        for ranks, kinds in ((1, ["plain"]), (2, ["ddp", "fsdp2", "tp"])):
            done, lines = self.adapter("nano", f"--kind={','.join(kinds)}", "--mistake=all", ranks=ranks)
            self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
            expected = {(kind, mistake): first for kind in kinds for mistake, first in FIRST.items()
                        if kind in NOT_EVERYWHERE.get(mistake, kinds)}
            self.assertEqual({key: text.split(" is the first that differs")[0] for key, text in lines.items()}, expected)
        self.assertEqual(len(FIRST), 14)

    def test_refusals(self):
        for options, says in ((["--kind=zero"], "--kind has no 'zero'"), (["--mistake=none"], "--mistake has no 'none'"),
                              (["--mistake=sum"], "plain at np 1 cannot make --mistake=sum")):
            done, _ = self.adapter("odd", *options)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn(says, done.stderr)
        done, _ = self.adapter("none")
        self.assertEqual(done.returncode, 2)
        self.assertIn("none.safetensors is not a safetensors file", done.stderr)
        done, _ = self.adapter("odd", "--kind=tp", ranks=2)
        self.assertEqual(done.returncode, 1)
        self.assertIn("np 2 does not divide heads=3", done.stderr)


class WithoutPyTorch(unittest.TestCase):
    @unittest.skipIf(HAS_TORCH, "this Python has PyTorch")
    def test_the_adapter_says_what_to_install(self):
        done = subprocess.run([sys.executable, ROOT / "scripts/pytorch/conformance_adapter.py", "any"], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("pip install torch", done.stderr)


if __name__ == "__main__":
    unittest.main()
