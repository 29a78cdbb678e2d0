"""GPT-2 in PyTorch that notes what it computes, with mistakes to plant."""

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    """Two residual branches, pre-norm. `note` gets each result with its name, and returns it."""

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
        q, k, v = (part.unflatten(2, (-1, self.D)).transpose(1, 2) for part in qkv)              # (B, H, T, D)
        heads = functional.scaled_dot_product_attention(q, k, v, is_causal=self.mistake != "full-mask")
        heads = note("attn.heads", heads.transpose(1, 2).flatten(2))                             # (B, T, C)
        x = note("attn.stream", x + note("attn", self.attn["c_proj"](heads)))
        inner = note("mlp.inner", self.mlp["c_fc"](note("ln_2", self.ln_2(x))))                  # (B, T, 4 C)
        hidden = note("mlp.hidden", functional.gelu(inner, approximate="none" if self.mistake == "gelu-erf" else "tanh"))
        return note("mlp.stream", x + note("mlp", self.mlp["c_proj"](hidden)))


class Gpt2(nn.Module):
    """GPT-2 without dropout. Queries, keys and values are three layers, so that tensor parallelism divides each by heads."""

    def __init__(self, options, mistake):
        super().__init__()
        C, self.mistake = options["channels"], mistake
        self.notes = {}  # by name, for each micro-batch: the sections of the tensor
        self.wte, self.wpe = nn.Embedding(options["vocabulary"], C), nn.Embedding(options["context"], C)
        self.h = nn.ModuleList(Block(C, C // options["heads"], mistake, self.note_in(f"h.{i}.")) for i in range(options["layers"]))
        self.ln_f = nn.LayerNorm(C)

    def note_in(self, prefix):
        """Returns a function that keeps a result, and later its gradient, under a name that begins with this."""
        def note(name, *sections):
            for section in sections:
                section.retain_grad()
            self.notes.setdefault(prefix + name, []).append(sections)
            return sections if len(sections) > 1 else sections[0]
        return note

    def forward(self, inputs, targets):
        """Mean loss; both are (B, T)."""
        note = self.note_in("")
        x = note("embedding", self.wte(inputs) + self.wpe.weight[:inputs.shape[1]])              # (B, T, C)
        for block in self.h:
            x = block(x)
        head = self.wte.weight.detach().clone() if self.mistake == "untied" else self.wte.weight
        logits = note("logits", functional.linear(note("ln_f", self.ln_f(x)), head))             # (B, T, V)
        targets = inputs if self.mistake == "targets" else targets
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


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
