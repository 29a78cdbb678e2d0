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


class Block(nn.Module):
    """Two residual branches: causal attention in the kernel that PyTorch chooses, and the MLP."""

    def __init__(self, heads, C, epsilon):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(C, epsilon), nn.LayerNorm(C, epsilon)
        self.attn = nn.ModuleDict({"c_attn": Linear(C, 3 * C), "c_proj": Linear(C, C)})
        self.mlp = nn.ModuleDict({"c_fc": Linear(C, 4 * C), "c_proj": Linear(4 * C, C)})

    def forward(self, x):
        qkv = self.attn["c_attn"](self.ln_1(x)).chunk(3, dim=2)
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in qkv)   # (B, H, T, D)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn["c_proj"](mixed.transpose(1, 2).flatten(2))                     # (B, T, C)
        return x + self.mlp["c_proj"](functional.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    """The model of a config.json of the transformers library; its parameters have to be loaded."""

    def __init__(self, config):
        super().__init__()
        C, epsilon = config["n_embd"], config["layer_norm_epsilon"]
        self.wte, self.wpe = nn.Embedding(config["vocab_size"], C), nn.Embedding(config["n_positions"], C)
        self.h = nn.ModuleList(Block(config["n_head"], C, epsilon) for _ in range(config["n_layer"]))
        self.ln_f = nn.LayerNorm(C, epsilon)

    def forward(self, inputs, targets):
        """Mean loss of the targets that are not -1; both are (B, T)."""
        x = self.wte(inputs) + self.wpe.weight[:inputs.shape[1]]                          # (B, T, C)
        for block in self.h:
            x = block(x)
        logits = functional.linear(self.ln_f(x), self.wte.weight)                         # (B, T, V)
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)


def make_adamw(model, rate, beta1, beta2, epsilon, decay):
    """PyTorch's AdamW, in one kernel, with decay of matrices and not of vectors."""
    groups = [{"params": [p for p in model.parameters() if (p.dim() == 2) == decays], "weight_decay": decay * decays}
              for decays in (True, False)]
    return torch.optim.AdamW(groups, lr=rate, betas=(beta1, beta2), eps=epsilon, fused=True)
