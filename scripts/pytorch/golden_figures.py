#!/usr/bin/env python3
"""Writes what PyTorch finds to tests/gpt2/golden/: tiny_gpt2.json, when it trains a tiny GPT-2 for 10 steps, and
tiny_bert.json, losses and gradients of a tiny BertForPreTraining of transformers.

The files are committed; PyTorch and transformers are needed only to make them again:

    python3 -m venv /tmp/golden && /tmp/golden/bin/pip install torch transformers
    /tmp/golden/bin/python scripts/pytorch/golden_figures.py

Everything the other side must rebuild is given in closed form, without a random number generator. i is the
row-major index of an element and k the number of its tensor in the table order below.

    parameters   offset + 0.1 sin(0.7 i + 0.05 i i + 1.3 k), computed in f64 and rounded to f32;
                 offset is 1 for the weights of the norms, else 0.  The square keeps matrices of full rank.
    input        (7 (s mod 2) + 5 b b + 3 t t + b t) mod V     of step s, sequence b, position t, all from 0
    target       input(s, b, t + 1), but -1 (not counted) where s is even and (s / 2 + b + 2 t) mod 5 is 0

The model is GPT-2 as published: learned positions, pre-norm, causal attention, GELU in tanh form, tied embedding,
biases, norm epsilon 1e-5, no dropout. Matrices are (inputs, outputs), as in Hugging Face's tables. The loss is the sum
over the counted targets divided by their number.

AdamW, constant learning rate, decay on tensors with two dimensions (embeddings included) and not on the others:

    m = beta1 m + (1 - beta1) g        v = beta2 v + (1 - beta2) g g        both from 0, step n = 1, 2, ...
    w = w - rate decay w - rate (m / (1 - beta1^n)) / (sqrt(v / (1 - beta2^n)) + epsilon)

where g is the gradient times min(1, clip / (norm + 1e-6)), norm being that of all tensors together.

All figures are computed in f64 from the f32 initial values: they are the truth that f32 code is compared with, by the
norm of the difference divided by the norm of the figure. The program also trains in f32 and prints how far that is.
The epsilon of AdamW is large because the gradient of the keys' bias is zero but for rounding (soft-max does not see
what is added to all scores), and AdamW with a tiny epsilon would turn that noise into steps of full size.

Layout of tiny_gpt2.json:

    model            {vocabulary, context, layers, heads, channels, norm_epsilon}
    optimizer        {learning_rate, beta1, beta2, epsilon, weight_decay, clip}
    batch            sequences in each step (of `context` tokens each)
    steps            number of steps
    valid_tokens     [steps] number of counted targets
    losses           [steps] mean loss before the update of that step
    gradient_norms   [steps] norm of the gradient of that mean loss, before clipping
    tensors          in table order, a list of {name, shape, gradient, final}, the last two row-major and flat:
                     the gradient of the first step before clipping, and the parameter after the last step

The BERT is transformers' own, without dropout, with GELU in tanh form and norm epsilon 1e-12; one batch goes through it,
and nothing is trained. Its parameters have the closed form above, over the table of this project: q, k and v are one
tensor (inputs, 3 outputs), and the other matrices are transposed too. Its last token is [PAD]; with special = V - 4 and

    length       8 - 3 b mod 5     of sequence b; tokens after it are [PAD], which attention does not see
    input        (5 b b + 3 t t + b t) mod special
    segment      1 where 2 t > length, else 0
    target       input(b, t + 1) where (b + 2 t) mod 3 is 0 and t < length, else -1 (not counted)
    label        1 where b mod 3 is 1 (the second sentence does not follow the first), else 0

tiny_bert.json has model and batch as above, and masked_tokens (number of targets), masked_loss and next_sentence_loss
(means), and tensors with the gradient of the sum of both means.
"""

import json
import math
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "scripts/lib"))
from documents import plain_words  # noqa: E402
from whole_file import write_whole  # noqa: E402

plain_words(__doc__, sys.argv[1:])
try:
    import torch
    import transformers
except ImportError as error:
    print(f"error: this Python has no PyTorch or no transformers: {error}.\n       With --help the script says how to install them.", file=sys.stderr)
    sys.exit(2)

from golden_states import parameter_shapes  # noqa: E402
from torch_gpt2 import Gpt2, make_adamw  # noqa: E402

V, T, L, H, C = 40, 8, 2, 2, 16
B = 4
STEPS = 10
NORM_EPSILON = 1e-5
OPTIMIZER = dict(learning_rate=1e-2, beta1=0.9, beta2=0.95, epsilon=1e-5, weight_decay=0.1, clip=1.0)
GOLDEN = ROOT / "tests/gpt2/golden"
BERT_NORM_EPSILON = 1e-12


def table():
    """Names and shapes of all parameters, in table order."""
    return list(parameter_shapes(L, V, T, C).items())


def initial_parameters(rows, dtype):
    """The closed form of the docstring, by name."""
    parameters = {}
    for k, (name, shape) in enumerate(rows):
        offset = 1.0 if ("ln_" in name or "LayerNorm" in name) and name.endswith("weight") else 0.0
        values = [offset + 0.1 * math.sin(0.7 * i + 0.05 * i * i + 1.3 * k) for i in range(math.prod(shape))]
        rounded = torch.tensor(values, dtype=torch.float64).to(torch.float32)
        parameters[name] = rounded.reshape(shape).to(dtype)
    return parameters


def token(s, b, t):
    return (7 * (s % 2) + 5 * b * b + 3 * t * t + b * t) % V


def batch(s):
    """Inputs and targets of step s, both (B, T)."""
    inputs = [[token(s, b, t) for t in range(T)] for b in range(B)]
    targets = [[-1 if s % 2 == 0 and (s // 2 + b + 2 * t) % 5 == 0 else token(s, b, t + 1) for t in range(T)]
               for b in range(B)]
    return torch.tensor(inputs), torch.tensor(targets)


def train(dtype):
    """Losses, gradient norms, first gradient and final parameters of one run."""
    model = Gpt2(dict(vocab_size=V, n_positions=T, n_layer=L, n_head=H, n_embd=C, layer_norm_epsilon=NORM_EPSILON)).to(dtype)
    model.load_state_dict(initial_parameters(table(), dtype))
    p = {name: model.get_parameter(name) for name, _ in table()}
    adamw = make_adamw(model, *(OPTIMIZER[name] for name in ("learning_rate", "beta1", "beta2", "epsilon", "weight_decay")))
    losses, norms, first = [], [], {}
    for s in range(STEPS):
        adamw.zero_grad()
        loss = model(*batch(s))
        loss.backward()
        if s == 0:
            first = {name: tensor.grad.clone() for name, tensor in p.items()}
        losses.append(loss.item())
        norms.append(torch.nn.utils.clip_grad_norm_(list(p.values()), OPTIMIZER["clip"]).item())
        adamw.step()
    return losses, norms, first, {name: tensor.detach() for name, tensor in p.items()}


def distance(values, truth):
    """Relative norm of the difference of two tables of tensors."""
    flat = [torch.cat([tensor.double().flatten() for tensor in tensors.values()]) for tensors in (values, truth)]
    return ((flat[0] - flat[1]).norm() / flat[1].norm()).item()


def digits(values):
    """Numbers with nine significant digits, enough to name any f32."""
    return [float(f"{value:.9g}") for value in values]


def write(name, document, rows):
    """A file with a line for each figure and each tensor."""
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in document.items()]
    lines.append('  "tensors": [\n    ' + ",\n    ".join(json.dumps(row) for row in rows) + "\n  ]")
    GOLDEN.mkdir(parents=True, exist_ok=True)
    write_whole(GOLDEN / name, "{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{name}: {(GOLDEN / name).stat().st_size} bytes")


def gpt2():
    """Writes tiny_gpt2.json."""
    losses, norms, gradient, final = train(torch.float64)
    valid = [int((batch(s)[1] >= 0).sum()) for s in range(STEPS)]
    write("tiny_gpt2.json",
          dict(model=dict(vocabulary=V, context=T, layers=L, heads=H, channels=C, norm_epsilon=NORM_EPSILON),
               optimizer=OPTIMIZER, batch=B, steps=STEPS, valid_tokens=valid, losses=digits(losses),
               gradient_norms=digits(norms)),
          [dict(name=name, shape=shape, gradient=digits(gradient[name].flatten().tolist()),
                final=digits(final[name].flatten().tolist())) for name, shape in table()])
    print("counted targets", valid)
    print("losses        ", " ".join(f"{loss:.4f}" for loss in losses))
    print("gradient norms", " ".join(f"{value:.4f}" for value in norms))
    losses32, norms32, gradient32, final32 = train(torch.float32)
    print("f32 is away by: losses %.1e, norms %.1e, gradient %.1e, final parameters %.1e" % (
        max(abs(a / b - 1) for a, b in zip(losses32, losses)), max(abs(a / b - 1) for a, b in zip(norms32, norms)),
        distance(gradient32, gradient), distance(final32, final)))


def bert_table():
    """Names and shapes of all parameters of the BERT, in table order."""
    def linear(name, inputs, outputs):
        return [(name + ".weight", (inputs, outputs)), (name + ".bias", (outputs,))]

    def layer_norm(name):
        return [(name + ".LayerNorm.weight", (C,)), (name + ".LayerNorm.bias", (C,))]

    embeddings, transform = "bert.embeddings", "cls.predictions.transform"
    rows = [(f"{embeddings}.{kind}_embeddings.weight", (number, C))
            for kind, number in (("word", V), ("position", T), ("token_type", 2))] + layer_norm(embeddings)
    for i in range(L):
        layer = f"bert.encoder.layer.{i}."
        rows += [*layer_norm(layer + "attention.output"), *linear(layer + "attention.self.qkv", C, 3 * C),
                 *linear(layer + "attention.output.dense", C, C), *layer_norm(layer + "output"),
                 *linear(layer + "intermediate.dense", C, 4 * C), *linear(layer + "output.dense", 4 * C, C)]
    return [*rows, *linear("bert.pooler.dense", C, C), *linear("cls.seq_relationship", C, 2),
            *linear(transform + ".dense", C, C), *layer_norm(transform), ("cls.predictions.bias", (V,))]


def published(name):
    """The names of transformers' tensors that make up one of the table, and whether they are transposed."""
    transposed = name.endswith("weight") and "Norm" not in name and "embeddings" not in name
    parts = ["query", "key", "value"] if ".qkv." in name else ["qkv"]
    return [name.replace("qkv", part) for part in parts], transposed


def bert_batch():
    """Inputs, attention mask, segments, targets and labels of the docstring."""
    special = V - 4
    lengths = [T - 3 * b % 5 for b in range(B)]
    places = [[(b, t) for t in range(T)] for b in range(B)]

    def tokens(value):
        return torch.tensor([[value(b, t, lengths[b]) for b, t in row] for row in places])

    def token_at(b, t):
        return (5 * b * b + 3 * t * t + b * t) % special

    return (tokens(lambda b, t, n: token_at(b, t) if t < n else V - 1), tokens(lambda b, t, n: int(t < n)),
            tokens(lambda b, t, n: int(t < n < 2 * t)),
            tokens(lambda b, t, n: token_at(b, t + 1) if t < n and (b + 2 * t) % 3 == 0 else -1),
            torch.tensor([int(b % 3 == 1) for b in range(B)]))


def bert_losses(dtype):
    """Both losses and the gradient of their sum, by name of the table."""
    model = transformers.BertForPreTraining(transformers.BertConfig(
        vocab_size=V, hidden_size=C, num_hidden_layers=L, num_attention_heads=H, intermediate_size=4 * C,
        max_position_embeddings=T, hidden_act="gelu_new", layer_norm_eps=BERT_NORM_EPSILON, pad_token_id=V - 1,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)).to(dtype)
    tensors = dict(model.named_parameters())
    with torch.no_grad():
        for name, value in initial_parameters(bert_table(), dtype).items():
            names, transposed = published(name)
            for part, section in zip(names, value.chunk(len(names), dim=-1)):
                tensors.pop(part).copy_(section.T if transposed else section)
    assert not tensors, f"parameters that the table lacks: {list(tensors)}"
    inputs, mask, segments, targets, labels = bert_batch()
    out = model(input_ids=inputs, attention_mask=mask, token_type_ids=segments, next_sentence_label=labels,
                labels=targets.masked_fill(targets < 0, -100))
    out.loss.backward()
    next_sentence = torch.nn.functional.cross_entropy(out.seq_relationship_logits, labels).item()
    tensors, gradient = dict(model.named_parameters()), {}
    for name, _ in bert_table():
        names, transposed = published(name)
        parts = [tensors[part].grad for part in names]
        gradient[name] = torch.cat([part.T if transposed else part for part in parts], dim=-1)
    return [out.loss.item() - next_sentence, next_sentence], gradient


def bert():
    """Writes tiny_bert.json."""
    losses, gradient = bert_losses(torch.float64)
    write("tiny_bert.json",
          dict(model=dict(vocabulary=V, context=T, layers=L, heads=H, channels=C, norm_epsilon=BERT_NORM_EPSILON),
               batch=B, masked_tokens=int((bert_batch()[3] >= 0).sum()), masked_loss=digits(losses)[0],
               next_sentence_loss=digits(losses)[1]),
          [dict(name=name, shape=shape, gradient=digits(gradient[name].flatten().tolist()))
           for name, shape in bert_table()])
    losses32, gradient32 = bert_losses(torch.float32)
    print("losses %.6f %.6f; f32 is away by: losses %.1e, gradient %.1e" % (
        *losses, max(abs(a / b - 1) for a, b in zip(losses32, losses)), distance(gradient32, gradient)))


if __name__ == "__main__":
    gpt2()
    bert()
