#!/usr/bin/env python3
"""Writes the states of five training steps, number by number, to hold another implementation of GPT-2 against.

    scripts/pytorch/golden_states.py FOLDER [--build=build]

It runs lesson 01 in exact arithmetic, whose results are the same bits everywhere, for a nano model and for one with three layers
and odd sizes, and writes FOLDER/nano.safetensors and FOLDER/odd.safetensors. docs/conformance.md says what each tensor is and how
to compare. read() reads such a file and finds damage.
"""

import hashlib
import json
import math
import pathlib
import shlex
import struct
import subprocess
import sys
import tempfile
from array import array

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "scripts/lib"))
from documents import Refused, option_parser, run_script  # noqa: E402
from whole_file import write_whole  # noqa: E402
from training_rules import philox, windows_of  # noqa: E402
from with_mpi import with_mpi  # noqa: E402

VERSION, STEPS = "1", 5
MODELS = {"nano": {"layers": 4, "heads": 4, "channels": 64, "context": 64, "vocabulary": 256, "sequence": 32, "global-batch": 4},
          "odd": {"layers": 3, "heads": 3, "channels": 24, "context": 19, "vocabulary": 257, "sequence": 16, "global-batch": 6}}
TRAINING = {"arithmetic": "exact", "steps": STEPS, "learning-rate": 1e-3, "min-learning-rate": 1e-4, "warmup": 2,
            "learning-rate-schedule": "cosine"}
STILL = {"steps": 1, "warmup": 0, "learning-rate": 0, "min-learning-rate": 0}  # a step that leaves the initial parameters
LAYERS = ["ln_1", "attn.q_k_v", "attn.heads", "attn", "attn.stream", "ln_2", "mlp.inner", "mlp.hidden", "mlp", "mlp.stream"]
FOLDERS = {"": "parameter", "first moment of ": "first_moment", "second moment of ": "second_moment"}
SIZES = {"F32": 4, "F64": 8, "I64": 8}
WORDS = "an arc of stars spins over the calm sea 7 times and 42 more while old maps fade to gray".split()


# ---- The file ----------------------------------------------------------------------------------------------------------


def write(path, tensors, metadata):
    """Writes {name: (dtype, shape, bytes)} as safetensors. The header keeps the order of the names; elements of eight bytes
    are stored first, so that all are aligned. The metadata get the SHA-256 of the data."""
    header, data = dict.fromkeys(["__metadata__", *tensors]), bytearray()
    for name, (dtype, shape, content) in sorted(tensors.items(), key=lambda item: -SIZES[item[1][0]]):
        if len(content) != SIZES[dtype] * math.prod(shape):
            raise ValueError(f"{name} has {len(content)} bytes, which are not a {shape} of {dtype}")
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    header["__metadata__"] = {**metadata, "sha256": hashlib.sha256(data).hexdigest()}
    first = json.dumps(header).encode("ascii")
    first += b" " * (-len(first) % 8)
    write_whole(path, struct.pack("<Q", len(first)) + first + data)


def read(path):
    """The tensors {name: (dtype, shape, bytes)} of a file, in the order of its header, and its metadata.
    @throws Refused  if it is none, or is damaged."""
    try:
        content = pathlib.Path(path).read_bytes()
        begin = 8 + struct.unpack("<Q", content[:8])[0]
        header, data = json.loads(content[8:begin]), memoryview(content)[begin:]
        metadata = header.pop("__metadata__", {})
        tensors = {name: (entry["dtype"], tuple(entry["shape"]), bytes(data[slice(*entry["data_offsets"])]))
                   for name, entry in header.items()}
    except (OSError, ValueError, KeyError, TypeError, struct.error) as error:
        raise Refused(f"{path} is not a safetensors file: {error}.\n"
                      "       Name a file that scripts/pytorch/golden_states.py or data/record_values has written.") from error
    if metadata.get("sha256", "") not in ("", hashlib.sha256(data).hexdigest()):
        raise Refused(f"{path} is damaged: the SHA-256 of its data is not the one in its metadata.\n"
                      "       Write it again with scripts/pytorch/golden_states.py.")
    return tensors, metadata


# ---- What it holds -----------------------------------------------------------------------------------------------------


def parameter_shapes(layers, V, T, C):
    """Names and shapes of all parameters, in the order of GPT-2's files; a matrix is (inputs, outputs)."""
    def norm(name):
        return {f"{name}.weight": (C,), f"{name}.bias": (C,)}

    def linear(name, inputs, outputs):
        return {f"{name}.weight": (inputs, outputs), f"{name}.bias": (outputs,)}

    shapes = {"wte.weight": (V, C), "wpe.weight": (T, C)}
    for i in range(layers):
        block = f"h.{i}."
        shapes |= norm(block + "ln_1") | linear(block + "attn.c_attn", C, 3 * C) | linear(block + "attn.c_proj", C, C)
        shapes |= norm(block + "ln_2") | linear(block + "mlp.c_fc", C, 4 * C) | linear(block + "mlp.c_proj", 4 * C, C)
    return shapes | norm("ln_f")


def activations(layers):
    """Names of all activations, in the order of the forward pass."""
    return ["embedding", *(f"h.{i}.{layer}" for i in range(layers) for layer in LAYERS), "ln_f", "logits"]


def text():
    """3000 words, the same everywhere; each byte is a token."""
    return " ".join(WORDS[philox((i, 0, 0, 0), (1, 0)) % len(WORDS)] for i in range(3000)).encode("ascii")


class States:
    """Recorded runs of one model, and the tensors of its file."""

    def __init__(self, build, folder, sizes):
        self.build, self.folder, self.sizes, self.tensors = build, folder, sizes, {}
        self.shapes = parameter_shapes(*(sizes[name] for name in ("layers", "vocabulary", "context", "channels")))
        (folder / "text.txt").write_bytes(text())
        self.text = text()[:len(text()) * 9 // 10]  # what is trained on; the rest is for validation
        self.run("data/prepare", "--tokenizer=byte", folder / "text.txt", folder / "text.h5")

    def run(self, program, *arguments):
        """Runs a program. @throws Refused with its message if it fails."""
        command = [str(self.build / program), *map(str, arguments)]
        done = subprocess.run(with_mpi(*command), capture_output=True, text=True, check=False)
        if done.returncode:
            raise Refused(f"{shlex.join(command)} has ended with status {done.returncode}:\n{done.stderr.strip()}")

    def recorded(self, changed):
        """The report of a run, its log, and its recorded values by (step, phase, name): parts in the order of sequences."""
        names = [self.folder / name for name in ("report.json", "log.jsonl", "record.h5", "values.safetensors")]
        report, log, record, values = names
        log.unlink(missing_ok=True)
        options = {**self.sizes, **TRAINING, **changed}
        self.run("lessons/01_single_device", *(f"--{name}={value}" for name, value in options.items()), f"--data={self.folder / 'text.h5'}",
                 f"--report={report}", f"--log={log}", f"--record={record}", "--record-values=*")
        self.run("data/record_values", record, values)
        found = {}
        for full, (_, _, content) in read(values)[0].items():
            what, place = full.rsplit(" sequences ", 1)
            step, rest = what.split(" ", 1)
            phase = next(name for name in ("forward", "backward", "gradients summed", "loss and norm", "update")
                         if rest.startswith(name + " "))
            parts = found.setdefault((int(step), phase, rest[len(phase) + 1:]), {})
            parts[int(place.split("+")[0])] = content
        lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
        return (json.loads(report.read_text(encoding="utf-8")), [line for line in lines if "loss" in line],
                {key: b"".join(parts[first] for first in sorted(parts)) for key, parts in found.items()})

    def add(self, name, shape, content):
        """Adds an f32 tensor; rows that pad the vocabulary, at its end, are left out."""
        self.tensors[name] = ("F32", tuple(shape), content[:4 * math.prod(shape)])

    def add_rows(self, name, G, T, content):
        """Adds rows of tokens; columns that pad the vocabulary, at the end of each, are left out."""
        stride, V = len(content) // (G * T), self.sizes["vocabulary"]
        columns = min(stride // 4, V) if name.endswith("logits") else stride // 4
        kept = b"".join(content[first:first + 4 * columns] for first in range(0, len(content), stride))
        self.add(name, (G, T, columns), kept)

    def add_number(self, step, name, number):
        """Adds a scalar."""
        self.tensors[f"step{step}/{name}"] = ("F64", (), struct.pack("<d", number))

    def add_parameters(self, folder, values, step, phase, prefix=""):
        """Adds a tensor for each parameter: its value, its gradient or one of its moments."""
        for name, shape in self.shapes.items():
            self.add(f"{folder}/{name}", shape, values[step, phase, prefix + name])

    def add_tokens(self, step, options):
        """Adds inputs and targets of a step, (G, T)."""
        G, T = self.sizes["global-batch"], self.sizes["sequence"]
        starts = [window * T for window in windows_of(step, len(self.text), T, G, options["seed"])]
        for name, shift in (("input_tokens", 0), ("targets", 1)):
            tokens = array("q", [self.text[start + t + shift] for start in starts for t in range(T)])
            self.tensors[f"step{step}/{name}"] = ("I64", (G, T), tokens.tobytes())

    def add_activations(self, phase, values):
        """Adds the activations of the first step, or their gradients, of which the passes keep none of attn.heads and mlp.hidden."""
        G, T = self.sizes["global-batch"], self.sizes["sequence"]
        names = activations(self.sizes["layers"])
        for name in names if phase == "forward" else reversed(names):
            if (0, phase, name) in values:
                self.add_rows(f"step0/{phase}/{name}", G, T, values[0, phase, name])

    def add_step(self, step, report, lines, values):
        """Adds what a step has computed, in its order."""
        self.add_tokens(step, report["options"])
        if step == 0:
            self.add_activations("forward", values)
        self.add_number(step, "loss", report["loss"][step])
        if step == 0:
            self.add_activations("backward", values)
            self.add_parameters("step0/gradient", values, 0, "gradients summed")
        self.add_number(step, "gradient_norm", report["grad_norm"][step])
        self.add_number(step, "learning_rate", lines[step]["learning_rate"])
        for prefix in ("first moment of ", "second moment of ", "") if step in (0, STEPS - 1) else ():
            self.add_parameters(f"step{step}/{FOLDERS[prefix]}", values, step, "update", prefix)

    def write(self, path):
        """Runs the model and writes its file."""
        _, _, still = self.recorded(STILL)
        report, lines, values = self.recorded({})
        self.add_parameters("initial", still, 0, "update")
        for step in range(STEPS):
            self.add_step(step, report, lines, values)
        options = {name: value for name, value in report["options"].items() if str(self.folder) not in str(value)}
        write(path, self.tensors, {"version": VERSION, "options": json.dumps(options), "digest": report["digest"]})
        print(f"{path}: {len(self.tensors)} tensors, {pathlib.Path(path).stat().st_size:,} bytes, digest {report['digest'][:16]}")


def main(arguments):
    parser = option_parser(__file__, __doc__.split("\n")[0])
    parser.add_argument("folder", type=pathlib.Path, help="an existing folder for the files")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build", help="the folder of the build (default: build)")
    known = parser.parse_args(arguments)
    if not known.folder.is_dir():
        raise Refused(f"{known.folder} is not a folder, so no files can be written there.\n       Make it, or name another.")
    missing = [one for one in ("lessons/01_single_device", "data/prepare", "data/record_values") if not (known.build / one).exists()]
    if missing:
        raise Refused(f"{known.build} has no {missing[0]}.\n       Run scripts/build.sh, or name another folder with --build.")
    for name, options in MODELS.items():
        with tempfile.TemporaryDirectory() as folder:
            States(known.build, pathlib.Path(folder), options).write(known.folder / f"{name}.safetensors")


if __name__ == "__main__":
    run_script(main)
