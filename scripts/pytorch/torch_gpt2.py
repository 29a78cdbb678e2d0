"""GPT-2 in PyTorch, with Hugging Face's names: learned positions, pre-norm, tanh GELU, tied embedding, no dropout."""

import torch
from torch import nn
from torch.nn import functional


class Linear(nn.Module):
    """x W + b with W (inputs, outputs), as GPT-2's files have it."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, x):
        return torch.addmm(self.bias, x.flatten(0, -2), self.weight).unflatten(0, x.shape[:-1])


def unnoted(_, *results):
    """What a result is given to with its name where nothing is noted: returns it."""
    return results if len(results) > 1 else results[0]


class Block(nn.Module):
    """Two residual branches: causal attention in the kernel that PyTorch chooses, and the MLP. `note` gets each result with its name,
    and returns it."""

    causal, gelu = True, "tanh"

    def __init__(self, heads, C, epsilon, note=unnoted):
        super().__init__()
        self.D, self.note = C // heads, note
        self.ln_1, self.ln_2 = nn.LayerNorm(C, epsilon), nn.LayerNorm(C, epsilon)
        self.attn = nn.ModuleDict({"c_attn": Linear(C, 3 * C), "c_proj": Linear(C, C)})
        self.mlp = nn.ModuleDict({"c_fc": Linear(C, 4 * C), "c_proj": Linear(4 * C, C)})

    def qkv(self, x):
        """Queries, keys and values, each (B, T, C)."""
        return self.attn["c_attn"](x).chunk(3, dim=2)

    def forward(self, x):
        note = self.note
        qkv = note("attn.q_k_v", *self.qkv(note("ln_1", self.ln_1(x))))
        q, k, v = (part.unflatten(2, (-1, self.D)).transpose(1, 2) for part in qkv)       # (B, H, T, D)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        heads = note("attn.heads", mixed.transpose(1, 2).flatten(2))                      # (B, T, C)
        x = note("attn.stream", x + note("attn", self.attn["c_proj"](heads)))
        inner = note("mlp.inner", self.mlp["c_fc"](note("ln_2", self.ln_2(x))))           # (B, T, 4 C)
        hidden = note("mlp.hidden", functional.gelu(inner, approximate=self.gelu))
        return note("mlp.stream", x + note("mlp", self.mlp["c_proj"](hidden)))


class Gpt2(nn.Module):
    """The model of a config.json of the transformers library; its parameters have to be loaded."""

    note = staticmethod(unnoted)  # of what is computed outside of blocks

    def __init__(self, config):
        super().__init__()
        C, epsilon = config["n_embd"], config["layer_norm_epsilon"]
        self.wte, self.wpe = nn.Embedding(config["vocab_size"], C), nn.Embedding(config["n_positions"], C)
        self.h = nn.ModuleList(self.block(i, config["n_head"], C, epsilon) for i in range(config["n_layer"]))
        self.ln_f = nn.LayerNorm(C, epsilon)

    def block(self, _, *sizes):
        """The block of this number."""
        return Block(*sizes)

    def head(self):
        """The weight of the output head, (V, C)."""
        return self.wte.weight

    def forward(self, inputs, targets):
        """Mean loss of the targets that are not -1; both are (B, T)."""
        x = self.note("embedding", self.wte(inputs) + self.wpe.weight[:inputs.shape[1]])  # (B, T, C)
        for block in self.h:
            x = block(x)
        logits = self.note("logits", functional.linear(self.note("ln_f", self.ln_f(x)), self.head()))  # (B, T, V)
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)


def make_adamw(model, rate, beta1, beta2, epsilon, decay):
    """PyTorch's AdamW, in one kernel, with decay of matrices and not of vectors."""
    groups = [{"params": [p for p in model.parameters() if (p.dim() == 2) == decays], "weight_decay": decay * decays}
              for decays in (True, False)]
    return torch.optim.AdamW(groups, lr=rate, betas=(beta1, beta2), eps=epsilon, fused=True)
