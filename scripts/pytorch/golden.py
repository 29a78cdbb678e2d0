"""The right tensors of a file of scripts/pytorch/golden_states.py, and the verdict on others."""

import json
import math

import golden_states
import torch

TYPES = {"F32": torch.float32, "F64": torch.float64, "I64": torch.int64}
# Largest norm of a difference, relative to the norm of the right tensor, for f32. Where activations and gradients are computed
# one from the other, rounding errors add up like a random walk: times the root of the number of blocks that were passed.
LIMITS = {"forward": 1e-6, "loss": 1e-6, "backward": 1e-6, "gradient": 1e-6, "gradient_norm": 2e-6, "learning_rate": 1e-7,
          "first_moment": 1e-5, "second_moment": 2e-5, "parameter": 1e-5}
WITH_DEPTH = "forward", "backward", "gradient"
NOT_COMPUTED = "initial", "input_tokens", "targets"


class Departs(Exception):
    """A tensor has left its tolerance; the text names it."""


class Golden:
    """The right tensors, and how far the others are."""

    def __init__(self, path):
        tensors, metadata = golden_states.read(path)
        if not {"options", "digest"} <= set(metadata):
            raise golden_states.Refused(f"{path} has no states of a training run.\n       Name a file that scripts/pytorch/golden_states.py has "
                                        "written.")
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
