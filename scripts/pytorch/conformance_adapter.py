#!/usr/bin/env python3
"""Holds GPT-2 in PyTorch, on one process and on many, against the states that scripts/pytorch/golden_states.py has written.

    python3 scripts/pytorch/conformance_adapter.py FOLDER/nano.safetensors
    torchrun --nproc-per-node=2 scripts/pytorch/conformance_adapter.py FOLDER/nano.safetensors --kind=ddp,fsdp2,tp [--mistake=NAME,...|all]

Kinds are plain, ddp, fsdp2 and tp (tensor parallelism), over gloo. Every tensor is compared in the order of computation. The first
that leaves its tolerance is named, and the exit status is 1. --mistake plants mistakes, one at a time, to show how they look.
An adapter of another implementation has the same parts: it loads the weights, notes what is computed, makes whole tensors of
what the ranks have, and holds them in order (docs/conformance.md).
"""

import datetime
import json
import math
import os
import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
from documents import option_parser, plain_words, run_script  # noqa: E402

try:
    import torch
    from torch import distributed, nn
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor, Partial, parallel
except ImportError as error:
    plain_words(__doc__, [word for word in sys.argv if word == "--help"])
    print(f"error: this Python has no PyTorch with FSDP2: {error}.\n       Run the script with one that has: python3 -m venv FOLDER && "
          "FOLDER/bin/pip install torch numpy && FOLDER/bin/python scripts/pytorch/conformance_adapter.py", file=sys.stderr)
    sys.exit(2)

from golden_states import STEPS, Refused, read  # noqa: E402
from torch_gpt2 import Block, Gpt2, unnoted  # noqa: E402
from training_rules import learning_rate  # noqa: E402

TIMEOUT = datetime.timedelta(seconds=300)
KINDS = ["plain", "ddp", "fsdp2", "tp"]
ON_MANY = {"sum": ("ddp", "fsdp2"), "no-all-reduce": ("ddp",), "lost-rank": ("ddp",), "local-norm": ("fsdp2",), "partial": ("tp",)}
MISTAKES = {"gelu-erf": "GELU by the error function", "full-mask": "attention sees later tokens",
            "targets": "targets are not shifted", "untied": "the head's weight is a copy of the embedding",
            "micro-batches": "the loss is not divided by the number of micro-batches",
            "sum": "gradients are added up, not averaged", "no-all-reduce": "gradients stay local",
            "lost-rank": "the last rank's gradient is lost", "local-norm": "each rank takes the norm of its own shards",
            "rate": "the learning rate of the next step", "beta2": "beta2 is 0.999", "bias-correction": "moments are not corrected",
            "decay-all": "weight decay of vectors too", "partial": "no all-reduce after row-parallel products"}

TYPES = {"F32": torch.float32, "F64": torch.float64, "I64": torch.int64}
# Largest norm of a difference, relative to the norm of the right tensor, for f32. Where activations and gradients are computed
# one from the other, rounding errors add up like a random walk: times the root of the number of blocks that were passed.
LIMITS = {"forward": 1e-6, "loss": 1e-6, "backward": 1e-6, "gradient": 1e-6, "gradient_norm": 2e-6, "learning_rate": 1e-7,
          "first_moment": 1e-5, "second_moment": 2e-5, "parameter": 1e-5}
WITH_DEPTH = "forward", "backward", "gradient"
NOT_COMPUTED = "initial", "input_tokens", "targets"


# ---- The right tensors, and the verdict on others ----------------------------------------------------------------------


class Departs(Exception):
    """A tensor has left its tolerance; the text names it."""


class Golden:
    """The right tensors, and how far the others are."""

    def __init__(self, path):
        tensors, metadata = read(path)
        if not {"options", "digest"} <= set(metadata):
            raise Refused(f"{path} has no states of a training run.\n       Name a file that scripts/pytorch/golden_states.py has written.")
        self.options = json.loads(metadata["options"])
        self.right = {name: torch.frombuffer(bytearray(content), dtype=TYPES[dtype]).reshape(shape)
                      for name, (dtype, shape, content) in tensors.items()}
        self.worst, self.waiting = {}, {name for name in self.right if not any(part in NOT_COMPUTED for part in name.split("/"))}

    def limit(self, name):
        """The tolerance of a tensor. A gradient has passed all blocks forward, and those above it backward."""
        kind, block, layers = name.split("/")[1], name.split("/h.")[1:], self.options["layers"]
        if kind not in WITH_DEPTH:
            return LIMITS[kind]
        forward = int(block[0].split(".")[0]) + 1 if block else 1 if "/embedding" in name else layers
        depth = forward if kind == "forward" else 2 * layers if "/w" in name or "/embedding" in name else 2 * layers - forward + 1
        return LIMITS[kind] * math.sqrt(depth)

    def hold(self, name, values):
        """Compares a tensor. @throws Departs  if it is too far."""
        right, mine = self.right[name].double(), torch.as_tensor(values).detach().double()
        if "/parameter/" in name and name.endswith(".c_attn.bias"):
            # The gradient of the keys' bias is 0; AdamW brings what rounding left of it to the size of any other.
            right, mine = (torch.cat([one.chunk(3)[0], one.chunk(3)[2]]) for one in (right, mine))
        kind, size, own = name.split("/")[1], right.norm().item(), mine.norm().item()
        off, limit = (mine - right).norm().item() / size, self.limit(name)
        self.waiting.discard(name)
        self.worst[kind] = max(self.worst.get(kind, 0), off)
        if not off <= limit:
            raise Departs(f"{name} is the first that differs: by {off:.1e} of its norm, at most {limit:.1e} is allowed; "
                          f"its norm is {own / size:.4g} times the right one")

    def verdict(self):
        """The line of a run whose tensors all conform. @throws Departs  if one was never compared."""
        if self.waiting:
            raise Departs(f"{min(self.waiting)} was not compared, nor were {len(self.waiting) - 1} others")
        return "conforms; off by at most " + ", ".join(f"{kind} {off:.1e}" for kind, off in self.worst.items())


# ---- The model that is held: it notes what it computes, and makes mistakes ---------------------------------------------


class NotedBlock(Block):
    """Queries, keys and values are three layers, so that tensor parallelism divides each by heads."""

    def __init__(self, heads, C, epsilon, note, mistake):
        super().__init__(heads, C, epsilon, note)
        self.attn = nn.ModuleDict({name: nn.Linear(C, C) for name in ("q", "k", "v", "c_proj")})
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(C, 4 * C), "c_proj": nn.Linear(4 * C, C)})
        self.causal, self.gelu = mistake != "full-mask", "none" if mistake == "gelu-erf" else "tanh"

    def qkv(self, x):
        return [self.attn[name](x) for name in "qkv"]


class NotedGpt2(Gpt2):
    """Keeps each result, and later its gradient, in `notes`: by name, for each micro-batch, the sections of the tensor."""

    def __init__(self, options, mistake):
        self.mistake, self.notes = mistake, {}
        super().__init__({"n_embd": options["channels"], "layer_norm_epsilon": 1e-5, "vocab_size": options["vocabulary"],
                          "n_positions": options["context"], "n_head": options["heads"], "n_layer": options["layers"]})

    def note(self, name, *sections):
        for section in sections:
            section.retain_grad()
        self.notes.setdefault(name, []).append(sections)
        return unnoted(name, *sections)

    def block(self, i, *sizes):
        return NotedBlock(*sizes, lambda name, *sections: self.note(f"h.{i}.{name}", *sections), self.mistake)

    def head(self):
        return self.wte.weight.detach().clone() if self.mistake == "untied" else self.wte.weight

    def forward(self, inputs, targets):
        return super().forward(inputs, inputs if self.mistake == "targets" else targets)


def parts_of(name):
    """Names in this model of what makes up a tensor of GPT-2's files."""
    return [name.replace("c_attn", part) for part in "qkv"] if "c_attn" in name else [name]


def as_stored(name, parts):
    """A tensor in the layout of GPT-2's files, where a matrix is (inputs, outputs), from this model's."""
    return torch.cat([part.T if part.dim() == 2 and name.startswith("h.") else part for part in parts], -1)


def load(model, name, value):
    """The reverse: gives the model a tensor of GPT-2's files."""
    own, names = dict(model.named_parameters()), parts_of(name)
    for one, part in zip(names, value.chunk(len(names), -1)):
        own[one].data.copy_(part.T if part.dim() == 2 and name.startswith("h.") else part)


# ---- Training ----------------------------------------------------------------------------------------------------------


def distribute(model, kind, mistake):
    """Divides the work of a model among all processes. Returns the module to call."""
    ranks = distributed.get_world_size()
    mesh = distributed.init_device_mesh("cpu", (ranks,))
    if kind == "ddp":
        for parameter in model.parameters():
            if mistake == "lost-rank" and distributed.get_rank() == ranks - 1:
                parameter.register_hook(torch.zeros_like)
        return nn.parallel.DistributedDataParallel(model)
    if kind == "fsdp2":
        for unit in [*model.h, model]:
            fully_shard(unit, mesh=mesh)
    if kind == "tp":
        columns, rows = parallel.ColwiseParallel(), parallel.RowwiseParallel(output_layouts=Partial() if mistake == "partial" else None)
        plan = {**{f"attn.{name}": columns for name in "qkv"}, "attn.c_proj": rows, "mlp.c_fc": columns, "mlp.c_proj": rows}
        for block in model.h:
            parallel.parallelize_module(block, mesh, plan)
    return model


def gathered(tensor, shape):
    """The whole of a tensor of which each rank has a run of sequences or of columns."""
    for dim, size in enumerate(shape):
        if tensor.shape[dim] != size:
            parts = [torch.empty(tensor.shape) for _ in range(distributed.get_world_size())]
            distributed.all_gather(parts, tensor.detach().contiguous())
            tensor = torch.cat(parts, dim)
    return tensor


class Training:
    """Steps of one kind, held against the golden states."""

    def __init__(self, golden, kind, mistake):
        self.golden, self.kind, self.mistake, self.options = golden, kind, mistake, golden.options
        self.names = [name.split("/")[1] for name in golden.right if name.startswith("initial/")]
        self.model = NotedGpt2(self.options, mistake)
        for name in self.names:
            load(self.model, name, golden.right[f"initial/{name}"])
        self.module = distribute(self.model, kind, mistake)
        self.parameters, o = dict(self.model.named_parameters()), self.options
        groups = [{"params": [p for p in self.parameters.values() if (p.dim() == 2) == matrix],
                   "weight_decay": o["weight-decay"] if matrix or mistake == "decay-all" else 0} for matrix in (True, False)]
        self.adamw = torch.optim.AdamW(groups, betas=(o["beta1"], 0.999 if mistake == "beta2" else o["beta2"]), eps=o["epsilon"],
                                       foreach=False)

    def backward(self, step):
        """Leaves the gradients, from two micro-batches where a rank has two sequences. Returns the mean loss, and the tokens
        of one micro-batch times the number of micro-batches, by which the gradients of activations were divided."""
        shares, share = (distributed.get_world_size(), distributed.get_rank()) if self.kind in ("ddp", "fsdp2") else (1, 0)
        own = [self.golden.right[f"step{step}/{name}"].chunk(shares)[share] for name in ("input_tokens", "targets")]
        parts = list(zip(*(one.split(max(len(one) // 2, 1)) for one in own)))
        self.model.notes.clear()
        self.adamw.zero_grad()
        if self.kind == "ddp":
            self.module.require_backward_grad_sync = self.mistake != "no-all-reduce"
        loss = torch.zeros((), dtype=torch.float64)
        for part in parts:
            mean = self.module(*part)
            (mean / (1 if self.mistake == "micro-batches" else len(parts))).backward()
            loss += mean.detach() / len(parts)
        distributed.all_reduce(loss)
        for parameter in self.parameters.values():
            parameter.grad.mul_(shares if self.mistake == "sum" else 1)
        return loss.item() / distributed.get_world_size(), own[0].numel()

    def hold_notes(self, phase, scale):
        """Holds the activations of the first step, or their gradients times `scale`."""
        for name, right in self.golden.right.items():
            if name.startswith(f"step0/{phase}/"):
                notes = self.model.notes[name.split("/")[2]]
                sections = [torch.cat([one if phase == "forward" else one.grad for one in section]) for section in zip(*notes)]
                shape = (*right.shape[:2], right.shape[2] // len(sections))
                self.golden.hold(name, scale * torch.cat([gathered(section, shape) for section in sections], 2))

    def whole(self, name, value_of):
        """A tensor of GPT-2's files: what `value_of` has for each parameter that makes it up, from all ranks."""
        parts = [value_of(self.parameters[part]) for part in parts_of(name)]
        return as_stored(name, [part.full_tensor() if isinstance(part, DTensor) else part for part in parts])

    def hold_all(self, folder, value_of, scale=1):
        """Holds something of every parameter, where the file has it."""
        for name in self.names:
            if f"{folder}/{name}" in self.golden.right:
                self.golden.hold(f"{folder}/{name}", scale * self.whole(name, value_of))

    def gradient_norm(self):
        if self.mistake == "local-norm":
            gradients = [parameter.grad.to_local() for parameter in self.parameters.values()]
        else:
            gradients = [self.whole(name, lambda parameter: parameter.grad) for name in self.names]
        return math.sqrt(sum(one.double().square().sum().item() for one in gradients))

    def update(self, step, norm, rate):
        """AdamW with clipping."""
        o, t = self.options, step + 1
        if self.mistake == "bias-correction":
            rate *= (1 - o["beta1"] ** t) / math.sqrt(1 - o["beta2"] ** t)
        for group in self.adamw.param_groups:
            group["lr"] = rate
        for parameter in self.parameters.values():
            parameter.grad.mul_(min(1, o["clip"] / norm))
        self.adamw.step()

    def step(self, step):
        """One training step. @throws Departs  at the first tensor that is too far."""
        golden, begin = self.golden, f"step{step}"
        loss, tokens = self.backward(step)
        if step == 0:
            self.hold_notes("forward", 1)
        golden.hold(f"{begin}/loss", loss)
        if step == 0:
            self.hold_notes("backward", tokens)
        self.hold_all(f"{begin}/gradient", lambda parameter: parameter.grad, golden.right[f"{begin}/targets"].numel())
        norm = self.gradient_norm()
        golden.hold(f"{begin}/gradient_norm", norm)
        rate = learning_rate(self.options, step + (self.mistake == "rate"))
        golden.hold(f"{begin}/learning_rate", rate)
        self.update(step, norm, rate)
        self.hold_all(f"{begin}/first_moment", lambda parameter: self.adamw.state[parameter]["exp_avg"])
        self.hold_all(f"{begin}/second_moment", lambda parameter: self.adamw.state[parameter]["exp_avg_sq"])
        self.hold_all(f"{begin}/parameter", lambda parameter: parameter)


# ---- The command line --------------------------------------------------------------------------------------------------


def verdict(path, kind, mistake):
    """(True if five steps conform, the line that says so)."""
    golden = Golden(path)
    title = f"{kind}, np {distributed.get_world_size()}" + (f", {mistake} ({MISTAKES[mistake]})" if mistake else "")
    try:
        training = Training(golden, kind, mistake)
        for step in range(STEPS):
            training.step(step)
        return True, f"{title}: {golden.verdict()}"
    except Departs as departure:
        return False, f"{title}: {departure}"


def fits(mistake, kind, ranks, G):
    """True if this kind at this np can make the mistake."""
    if mistake == "micro-batches":
        return G >= 2 * (ranks if kind in ("ddp", "fsdp2") else 1)
    return mistake not in ON_MANY or (ranks > 1 and kind in ON_MANY[mistake])


def plan(known, ranks):
    """The pairs of kinds and mistakes to run. @throws Refused  for what cannot be."""
    options, runs = Golden(known.file).options, []
    for kind in known.kind.split(","):
        if kind not in KINDS:
            raise Refused(f"--kind has no {kind!r}.\n       Choose from {','.join(KINDS)}.")
        for what, number in (("heads", options["heads"]), ("global-batch", options["global-batch"])):
            if (kind == "tp") == (what == "heads") and kind != "plain" and number % ranks:
                raise Refused(f"np {ranks} does not divide {what}={number} of {known.file}, as {kind} needs it.\n"
                              f"       Start as many processes as divide {number}.")
        asked = list(MISTAKES) if known.mistake == "all" else known.mistake.split(",")
        for mistake in asked:
            if mistake and mistake not in MISTAKES:
                raise Refused(f"--mistake has no {mistake!r}.\n       Choose from {','.join(MISTAKES)}, or all.")
            if not mistake or fits(mistake, kind, ranks, options["global-batch"]):
                runs.append((kind, mistake))
            elif known.mistake != "all":
                raise Refused(f"{kind} at np {ranks} cannot make --mistake={mistake}.\n       Choose another kind, or more ranks, or "
                              "--mistake=all for those that it can.")
    return runs


def main(arguments):
    parser = option_parser(__file__, __doc__.split("\n")[0])
    parser.add_argument("file", help="written by scripts/pytorch/golden_states.py")
    parser.add_argument("--kind", default="plain", help=f"of {','.join(KINDS)}, one after the other (default: plain)")
    parser.add_argument("--mistake", default="", help=f"of {','.join(MISTAKES)}, one at a time; or all")
    known = parser.parse_args(arguments)
    torch.set_num_threads(1)
    alone = {} if "RANK" in os.environ else {"store": distributed.HashStore(), "rank": 0, "world_size": 1}
    distributed.init_process_group("gloo", timeout=TIMEOUT, **alone)
    first, passed = distributed.get_rank() == 0, True
    try:
        for kind, mistake in plan(known, distributed.get_world_size()):
            conforms, line = verdict(known.file, kind, mistake)
            passed &= conforms
            if first:
                print(line, flush=True)
    except Refused as refusal:
        if first:
            print(f"error: {refusal}", file=sys.stderr)
        return 2
    distributed.destroy_process_group()
    return 0 if passed else 1


if __name__ == "__main__":
    run_script(main)
