#!/usr/bin/env python3
"""Holds GPT-2 in PyTorch, on one process and on many, against the states that scripts/golden_states.py has written.

    python3 scripts/conformance_adapter.py nano.safetensors
    torchrun --nproc-per-node=2 scripts/conformance_adapter.py nano.safetensors --kind=ddp,fsdp2,tp [--mistake=NAME,...]

Kinds are plain, ddp, fsdp2 and tp (tensor parallelism by DTensor), over gloo. Every tensor is compared in the order of
computation; the first that leaves its tolerance is named, and the exit status is 1. --mistake plants mistakes, one at a time, to
show how they look. Another implementation needs the same three things: notes of what it computes, whole tensors made of what its
ranks have, and names. docs/conformance.md says more.
"""

import argparse
import json
import math
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "scripts/bench")]

import golden_states  # noqa: E402
from golden_states import Refused  # noqa: E402
from training_rules import learning_rate  # noqa: E402

try:
    import torch
    from torch import distributed, nn
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor, Partial, parallel
    from torch.nn import functional
except ImportError as error:
    print(f"error: this Python has no PyTorch with FSDP2 ({error}).\n       Run the script with one that has: python3 -m venv FOLDER && "
          "FOLDER/bin/pip install torch numpy && FOLDER/bin/python scripts/conformance_adapter.py", file=sys.stderr)
    sys.exit(2)

# Largest norm of a difference, relative to the norm of the right tensor, in f32.
TOLERANCE = {"forward": 2e-6, "loss": 1e-6, "backward": 5e-6, "gradient": 5e-6, "gradient_norm": 1e-6, "learning_rate": 1e-7,
             "first_moment": 5e-6, "second_moment": 1e-5, "parameter": 5e-1}
TYPES = {"F32": torch.float32, "F64": torch.float64, "I64": torch.int64}
MISTAKES = {"gelu-erf": "GELU by erf, not by tanh", "full-mask": "attention sees later tokens", "untied": "a head of its own",
            "micro-batches": "the loss is not divided by the micro-batches", "sum": "gradients are added up, not averaged",
            "no-all-reduce": "gradients of DDP stay local", "lost-rank": "the last rank's gradient is lost",
            "local-norm": "the norm is that of a rank's own shards", "rate": "the learning rate of the next step",
            "beta2": "beta2 is 0.999", "bias-correction": "moments are not corrected", "decay-all": "weight decay of vectors too",
            "partial": "no all-reduce after row-parallel products"}


class Departs(Exception):
    """A tensor has left its tolerance; the text names it."""


class Golden:
    """The right tensors, and how far the others are."""

    def __init__(self, path):
        tensors, metadata = golden_states.read(path)
        self.options = json.loads(metadata.get("options", "{}"))
        self.right = {name: torch.frombuffer(bytearray(content), dtype=TYPES[dtype]).reshape(shape)
                      for name, (dtype, shape, content) in tensors.items()}
        self.worst = {}

    def hold(self, name, values):
        """Compares a tensor. @throws Departs if it is too far."""
        right, mine = self.right[name].double(), torch.as_tensor(values).detach().double()
        kind = name.split("/")[1]
        size, own = right.norm().item(), mine.norm().item()
        off = (mine - right).norm().item() / size
        self.worst[kind] = max(self.worst.get(kind, (0, "")), (off, name))
        if not off <= TOLERANCE[kind]:
            raise Departs(f"{name} is the first that differs: by {off:.1e} of its norm, allowed {TOLERANCE[kind]:.0e}; "
                          f"its norm is {own / size:.4f} times the right one")


class Block(nn.Module):
    """Two residual branches, pre-norm. `note` gets each result with its name."""

    def __init__(self, C, D, mistake, note):
        super().__init__()
        self.D, self.mistake, self.note = D, mistake, note
        self.ln_1, self.ln_2 = nn.LayerNorm(C), nn.LayerNorm(C)
        self.attn = nn.ModuleDict({name: nn.Linear(C, C) for name in ("q", "k", "v", "c_proj")})
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(C, 4 * C), "c_proj": nn.Linear(4 * C, C)})

    def forward(self, x):
        note = self.note
        normed = note("ln_1", self.ln_1(x))
        qkv = note("attn.q_k_v", *(self.attn[name](normed) for name in "qkv"))
        q, k, v = (part.unflatten(2, (-1, self.D)).transpose(1, 2) for part in qkv)                # (B, H, T, D)
        heads = functional.scaled_dot_product_attention(q, k, v, is_causal=self.mistake != "full-mask")
        x = note("attn.stream", x + note("attn", self.attn["c_proj"](note("attn.heads", heads.transpose(1, 2).flatten(2)))))
        inner = note("mlp.inner", self.mlp["c_fc"](note("ln_2", self.ln_2(x))))
        hidden = note("mlp.hidden", functional.gelu(inner, approximate="none" if self.mistake == "gelu-erf" else "tanh"))
        return note("mlp.stream", x + note("mlp", self.mlp["c_proj"](hidden)))


class Gpt2(nn.Module):
    """GPT-2 without dropout. Queries, keys and values are three layers, so that tensor parallelism divides each by heads."""

    def __init__(self, options, mistake):
        super().__init__()
        C, self.mistake, self.notes = options["channels"], mistake, {}
        self.wte, self.wpe = nn.Embedding(options["vocabulary"], C), nn.Embedding(options["context"], C)
        self.h = nn.ModuleList(Block(C, C // options["heads"], mistake, self.note_in(f"h.{i}.")) for i in range(options["layers"]))
        self.ln_f = nn.LayerNorm(C)

    def note_in(self, prefix):
        def note(name, *tensors):
            for tensor in tensors:
                tensor.retain_grad()
            self.notes.setdefault(prefix + name, []).append(tensors)
            return tensors if len(tensors) > 1 else tensors[0]
        return note

    def forward(self, inputs, targets):
        """Mean loss; both are (B, T)."""
        note = self.note_in("")
        x = note("embedding", self.wte(inputs) + self.wpe.weight[:inputs.shape[1]])                # (B, T, C)
        for block in self.h:
            x = block(x)
        head = self.wte.weight.detach().clone() if self.mistake == "untied" else self.wte.weight
        logits = note("logits", functional.linear(note("ln_f", self.ln_f(x)), head))               # (B, T, V)
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def distribute(model, kind, mistake):
    """The module to call."""
    ranks = distributed.get_world_size()
    mesh = distributed.init_device_mesh("cpu", (ranks,))
    if kind == "ddp":
        if mistake == "lost-rank" and distributed.get_rank() == ranks - 1:
            for parameter in model.parameters():
                parameter.register_hook(torch.zeros_like)
        return nn.parallel.DistributedDataParallel(model)
    if kind == "fsdp2":
        for unit in [*model.h, model]:
            fully_shard(unit, mesh=mesh)
    if kind == "tp":
        out = {"output_layouts": Partial()} if mistake == "partial" else {}
        plan = {f"attn.{name}": parallel.ColwiseParallel() for name in "qkv"} | {"mlp.c_fc": parallel.ColwiseParallel()}
        plan |= {name: parallel.RowwiseParallel(**out) for name in ("attn.c_proj", "mlp.c_proj")}
        for block in model.h:
            parallel.parallelize_module(block, mesh, plan)
    return model


def gathered(tensor, shape):
    """The whole of a tensor of which each rank has a run of sequences or of columns."""
    for dim, size in enumerate(shape):
        if tensor.shape[dim] != size:
            parts = [torch.empty_like(tensor) for _ in range(distributed.get_world_size())]
            distributed.all_gather(parts, tensor.detach().contiguous())
            tensor = torch.cat(parts, dim)
    return tensor


def as_stored(name, part_of):
    """A tensor of the file's name and layout, (inputs, outputs), from this model's, of which `part_of` gives each."""
    parts = [part_of(name.replace("c_attn", part)) for part in ("qkv" if "c_attn" in name else "_")]
    whole = [part.full_tensor() if isinstance(part, DTensor) else part for part in parts]
    return torch.cat([part.T if part.dim() == 2 and name.startswith("h.") else part for part in whole], -1)


class Training:
    """Steps of one kind, held against the golden states."""

    def __init__(self, golden, kind, mistake):
        self.golden, self.kind, self.mistake, self.options = golden, kind, mistake, golden.options
        self.names = [name[8:] for name in golden.right if name.startswith("initial/")]
        self.model = Gpt2(self.options, mistake)
        self.load()
        self.module = distribute(self.model, kind, mistake)
        self.parameters, o = dict(self.model.named_parameters()), self.options
        groups = [{"params": [p for p in self.parameters.values() if (p.dim() == 2) == matrices],
                   "weight_decay": o["weight-decay"] * (matrices or mistake == "decay-all")} for matrices in (True, False)]
        self.adamw = torch.optim.AdamW(groups, betas=(o["beta1"], 0.999 if mistake == "beta2" else o["beta2"]),
                                       eps=o["epsilon"], foreach=False)

    def load(self):
        own = dict(self.model.named_parameters())
        for name in self.names:
            names = [name.replace("c_attn", part) for part in ("qkv" if "c_attn" in name else "_")]
            for one, value in zip(names, self.golden.right[f"initial/{name}"].chunk(len(names), -1)):
                own[one].data.copy_(value.T if value.dim() == 2 and name.startswith("h.") else value)

    def backward(self, step):
        """Leaves the gradients of the mean loss, from two micro-batches where a rank has two sequences. Returns that loss."""
        ranks, rank = distributed.get_world_size(), distributed.get_rank()
        shares, share = (1, 0) if self.kind in ("plain", "tp") else (ranks, rank)
        own = [self.golden.right[f"step{step}/{name}"].chunk(shares)[share] for name in ("input_tokens", "targets")]
        parts = list(zip(*(one.split(max(len(one) // 2, 1)) for one in own)))
        self.model.notes.clear()
        self.adamw.zero_grad()
        if self.kind == "ddp":
            self.module.require_backward_grad_sync = self.mistake != "no-all-reduce"
        losses = []
        for part in parts:
            loss = self.module(*part) / (1 if self.mistake == "micro-batches" else len(parts))
            loss.backward()
            losses.append(loss.detach())
        loss = sum(losses).double()
        distributed.all_reduce(loss)
        for parameter in self.parameters.values():
            parameter.grad.mul_(ranks if self.mistake == "sum" else 1)
        return loss.item() / ranks, own[0].numel()

    def hold_notes(self, phase, scale):
        """Compares activations, or their gradients times `scale`."""
        for name, right in self.golden.right.items():
            if name.startswith(f"step0/{phase}/"):
                notes = self.model.notes[name.split("/", 2)[2]]
                sections = [torch.cat([one if phase == "forward" else one.grad for one in section]) for section in zip(*notes)]
                shape = (*right.shape[:2], right.shape[2] // len(sections))
                self.golden.hold(name, scale * torch.cat([gathered(section, shape) for section in sections], 2))

    def step(self, step):
        golden, o = self.golden, self.options
        loss, tokens = self.backward(step)
        if step == 0:
            self.hold_notes("forward", 1)
        golden.hold(f"step{step}/loss", loss)
        if step == 0:
            self.hold_notes("backward", tokens)
        gradients = {name: as_stored(name, lambda part: self.parameters[part].grad) for name in self.names}
        self.hold_parameters(step, "gradient", lambda name: golden.right[f"step{step}/input_tokens"].numel() * gradients[name])
        local = [p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad for p in self.parameters.values()]
        summed = local if self.mistake == "local-norm" else gradients.values()
        norm = math.sqrt(sum(one.double().square().sum().item() for one in summed))
        golden.hold(f"step{step}/gradient_norm", norm)
        rate = learning_rate(o, step + (self.mistake == "rate"))
        golden.hold(f"step{step}/learning_rate", rate)
        t, corrected = step + 1, self.mistake != "bias-correction"
        for group in self.adamw.param_groups:
            group["lr"] = rate * (1 if corrected else (1 - o["beta1"] ** t) / math.sqrt(1 - o["beta2"] ** t))
        for parameter in self.parameters.values():
            parameter.grad.mul_(min(1, o["clip"] / norm))
        self.adamw.step()
        state = self.adamw.state
        self.hold_parameters(step, "first_moment", lambda name: as_stored(name, lambda part: state[self.parameters[part]]["exp_avg"]))
        self.hold_parameters(step, "second_moment",
                             lambda name: as_stored(name, lambda part: state[self.parameters[part]]["exp_avg_sq"]))
        self.hold_parameters(step, "parameter", lambda name: as_stored(name, self.parameters.get))

    def hold_parameters(self, step, folder, value_of):
        for name in self.names:
            if f"step{step}/{folder}/{name}" in self.golden.right:
                self.golden.hold(f"step{step}/{folder}/{name}", value_of(name))


def main(arguments):
    parser = argparse.ArgumentParser(prog="scripts/conformance_adapter.py", allow_abbrev=False, description=__doc__.split("\n")[0])
    parser.add_argument("file", help="written by scripts/golden_states.py")
    parser.add_argument("--kind", default="plain")
    parser.add_argument("--mistake", default="")
    known = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        distributed.init_process_group("gloo")
    else:
        distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    ok = True
    for kind in known.kind.split(","):
        for mistake in known.mistake.split(","):
            golden = Golden(known.file)
            title = f"{kind} on {distributed.get_world_size()}" + (f" with {mistake}" if mistake else "")
            try:
                training = Training(golden, kind, mistake)
                for step in range(5):
                    training.step(step)
                text = "conforms: " + ", ".join(f"{k} {v[0]:.1e} {v[1]}" for k, v in golden.worst.items())
            except Departs as d:
                text, ok = str(d), False
            if distributed.get_rank() == 0:
                print(f"{title}: {text}", flush=True)
    distributed.destroy_process_group()
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
