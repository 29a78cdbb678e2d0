#!/usr/bin/env python3
"""Times PyTorch on this machine:

    torch_speed.py attention LEAST_S B H T D      its flash attention on a GPU, causal, bf16, forwards and backwards
    torch_speed.py step LEAST_S JOB               training steps of GPT-2, one turn for each line that it is sent

JOB is JSON: {device: cuda or cpu, threads, precision: f32 or bf16, compiled, B, T, config: of a config.json}. Prints JSON: seconds
of one call, the mean of as many in a row as last LEAST_S seconds together, after one that loads what is loaded when it is first
used; of steps first a line that says what is measured. A step of which B sequences do not fit into a GPU is made with half as
many. Prints {} where there is no PyTorch, or none that sees a GPU.
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
    """Times one layer, forwards and backwards; the shape is (B, H, T, D)."""
    from torch.nn import functional
    from torch.nn.attention import SDPBackend, sdpa_kernel

    shape = tuple(int(extent) for extent in shape)
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
    yield {"name": f"PyTorch {torch.__version__}", "forward_s": forward_s, "backward_s": backward_s}


def step_of(torch, job):
    """A function that makes one training step: forward and backward pass, clipping, AdamW."""
    from torch_gpt2 import Gpt2, make_adamw

    with torch.device(job["device"]):
        model = Gpt2(job["config"])
        inputs, targets = torch.randint(job["config"]["vocab_size"], (2, job["B"], job["T"]))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    adamw = make_adamw(model, 1e-4, 0.9, 0.95, 1e-8, 0.1)
    forward = torch.compile(model) if job["compiled"] else model

    def step():
        with torch.autocast(job["device"], torch.bfloat16, enabled=job["precision"] == "bf16"):
            loss = forward(inputs, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adamw.step()
        adamw.zero_grad(set_to_none=True)

    return step


def fitting_step(torch, job):
    """The step with as many sequences as fit; job["B"] becomes their number."""
    while True:
        try:
            step = step_of(torch, job)
            step()
            return step
        except torch.cuda.OutOfMemoryError:
            if job["B"] == 1:
                raise
            job["B"] //= 2
        step = None  # its memory is free before the next attempt
        torch.cuda.empty_cache()


def measure_step(torch, least_s, job):
    """A turn for each line of the input. The vocabulary is padded to a multiple of 64 rows; numbers below the normal ones are
    zero."""
    job = json.loads(job)
    job["config"]["vocab_size"] += -job["config"]["vocab_size"] % 64
    torch.set_num_threads(job["threads"])
    torch.set_flush_denormal(True)
    step = fitting_step(torch, job)
    yield {**job, "name": f"PyTorch {torch.__version__}"}
    wait = torch.cuda.synchronize if job["device"] == "cuda" else lambda: None
    for _ in sys.stdin:
        yield {"step_s": time_calls(wait, least_s, step)}


def main():
    what, least_s, *more = sys.argv[1:]
    try:
        import torch
    except (ImportError, OSError):  # not installed, or without a library that it needs
        print("{}")
        return
    if (what == "attention" or json.loads(more[0])["device"] == "cuda") and not torch.cuda.is_available():
        print("{}")
        return
    measure = {"attention": measure_attention, "step": measure_step}[what]
    for document in measure(torch, float(least_s), *more):
        print(json.dumps(document), flush=True)


if __name__ == "__main__":
    main()
