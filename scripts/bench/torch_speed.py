#!/usr/bin/env python3
"""Times PyTorch on the GPU of this machine:

    torch_speed.py attention LEAST_S B H T D          its flash attention, causal, bf16, forwards and backwards
    torch_speed.py step LEAST_S ROUNDS B T CONFIG     steps of GPT-2, compiled, bf16; CONFIG: config.json, as text

Prints JSON: seconds of one call, the mean of as many in a row as last LEAST_S seconds together, after others that made the
GPU warm. A step of which B sequences do not fit is made with half as many. Prints {} where there is no PyTorch, or none that
sees a GPU.
"""

import json
import math
import sys
import time


def time_calls(synchronise, least_s, call):
    """Seconds of one call, as tests/bench/gpu_rates.hpp takes them, after one that loads what is loaded when it is first used."""
    calls = 1
    call()
    while True:
        synchronise()
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        synchronise()
        seconds = time.perf_counter() - begin
        if seconds >= least_s:
            return seconds / calls
        calls = math.ceil(calls * min(10.0, max(2.0, 1.2 * least_s / seconds)))


def measure_attention(torch, least_s, *shape):
    """What one layer takes, forwards and backwards; the shape is (B, H, T, D)."""
    from torch.nn import functional
    from torch.nn.attention import SDPBackend, sdpa_kernel

    shape = [int(extent) for extent in shape]
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    dy = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        def forward():
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

        y = forward()
        with torch.no_grad():
            forward_s = time_calls(torch.cuda.synchronize, least_s, forward)
        backward_s = time_calls(torch.cuda.synchronize, least_s,
                                lambda: torch.autograd.grad(y, (q, k, v), dy, retain_graph=True))
    return {"forward_s": forward_s, "backward_s": backward_s}


def step_of(torch, config, B, T):
    """A function that makes one training step: forward and backward pass, clipping, AdamW."""
    from torch_gpt2 import Gpt2, make_adamw

    with torch.device("cuda"):
        model = Gpt2(config)
        inputs, targets = torch.randint(config["vocab_size"], (2, B, T))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    adamw, compiled = make_adamw(model, 1e-4, 0.9, 0.95, 1e-8, 0.1), torch.compile(model)

    def step():
        with torch.autocast("cuda", torch.bfloat16):
            loss = compiled(inputs, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adamw.step()
        adamw.zero_grad(set_to_none=True)

    return step


def measure_step(torch, least_s, rounds, B, T, config):
    """Seconds of a step in each round, and the sequences of one; the vocabulary is padded to a multiple of 64 rows."""
    config, B = json.loads(config), int(B)
    config["vocab_size"] += -config["vocab_size"] % 64
    torch.set_float32_matmul_precision("high")
    while True:
        try:
            step = step_of(torch, config, B, int(T))
            step()
            return {"micro_batch": B, "vocabulary": config["vocab_size"],
                    "rounds": [time_calls(torch.cuda.synchronize, least_s, step) for _ in range(int(rounds))]}
        except torch.cuda.OutOfMemoryError:
            if B == 1:
                raise
            B //= 2
        step = None  # its memory is free before the next attempt
        torch.cuda.empty_cache()


def main():
    what, least_s, *more = sys.argv[1:]
    try:
        import torch
    except (ImportError, OSError):  # not installed, or without a library that it needs
        print("{}")
        return
    if not torch.cuda.is_available():
        print("{}")
        return
    measure = {"attention": measure_attention, "step": measure_step}[what]
    print(json.dumps({"name": f"PyTorch {torch.__version__}", **measure(torch, float(least_s), *more)}))


if __name__ == "__main__":
    main()
