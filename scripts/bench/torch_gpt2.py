"""GPT-2 in PyTorch, with Hugging Face's names: learned positions, pre-norm, tanh GELU, tied embedding, no dropout."""

import json

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


class Attention(nn.Module):
    """Causal attention of H heads, in the kernel that PyTorch chooses."""

    def __init__(self, H, C):
        super().__init__()
        self.heads = H
        self.c_attn, self.c_proj = Linear(C, 3 * C), Linear(C, C)

    def forward(self, x):
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.c_attn(x).chunk(3, dim=2))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)    # (B, H, T, D)
        return self.c_proj(mixed.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    """Two linear maps with a GELU in tanh form between them."""

    def __init__(self, C):
        super().__init__()
        self.c_fc, self.c_proj = Linear(C, 4 * C), Linear(4 * C, C)

    def forward(self, x):
        return self.c_proj(functional.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    """Two residual branches."""

    def __init__(self, H, C, epsilon):
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(C, epsilon), Attention(H, C)
        self.ln_2, self.mlp = nn.LayerNorm(C, epsilon), Mlp(C)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt2(nn.Module):
    """The model of a config.json of the transformers library; parameters are to be loaded."""

    def __init__(self, config):
        super().__init__()
        C, epsilon = config["n_embd"], config["layer_norm_epsilon"]
        self.wte, self.wpe = nn.Embedding(config["vocab_size"], C), nn.Embedding(config["n_positions"], C)
        self.h = nn.ModuleList(Block(config["n_head"], C, epsilon) for _ in range(config["n_layer"]))
        self.ln_f = nn.LayerNorm(C, epsilon)

    def forward(self, inputs, targets):
        """Mean loss of the targets that are not -1; both are (B, T)."""
        x = self.wte(inputs) + self.wpe.weight[:inputs.shape[1]]
        for block in self.h:
            x = block(x)
        logits = functional.linear(self.ln_f(x), self.wte.weight)
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)


def read_safetensors(path):
    """The f32 tensors of a file, by name."""
    content = bytearray(path.read_bytes())
    begin = 8 + int.from_bytes(content[:8], "little")
    tensors = {}
    for name, entry in json.loads(content[8:begin]).items():
        if name != "__metadata__":
            first, last = entry["data_offsets"]
            flat = torch.frombuffer(content, dtype=torch.float32, count=(last - first) // 4, offset=begin + first)
            tensors[name] = flat.reshape(entry["shape"])
    return tensors


def make_adamw(model, rate, beta1, beta2, epsilon, decay):
    """AdamW with decay on matrices and not on vectors."""
    parameters = list(model.parameters())
    return torch.optim.AdamW([dict(params=[p for p in parameters if p.dim() == 2], weight_decay=decay),
                              dict(params=[p for p in parameters if p.dim() == 1], weight_decay=0.0)],
                             lr=rate, betas=(beta1, beta2), eps=epsilon, fused=True)
