#!/usr/bin/env python3
"""Times PyTorch's flash attention, causal, bf16, on the GPU of this machine: torch_attention.py B H T D LEAST_S

Prints {"name", "forward_s", "backward_s"} as JSON: seconds of one call, the mean of as many in a row as last LEAST_S
seconds together, after others that made the GPU warm. Prints {} where there is no PyTorch, or none that sees a GPU.
"""

import json
import math
import sys
import time


def time_calls(synchronise, least_s, call):
    """Seconds of one call, as tests/bench/gpu_rates.hpp takes them."""
    calls = 1
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


def measure(torch, shape, least_s):
    """What one layer takes, forwards and backwards."""
    from torch.nn import functional
    from torch.nn.attention import SDPBackend, sdpa_kernel

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
    return {"name": f"PyTorch {torch.__version__}", "forward_s": forward_s, "backward_s": backward_s}


def main():
    *shape, least_s = sys.argv[1:]
    try:
        import torch
    except (ImportError, OSError):  # not installed, or without a library that it needs
        print("{}")
        return
    here = torch.cuda.is_available()
    print(json.dumps(measure(torch, tuple(int(extent) for extent in shape), float(least_s)) if here else {}))


if __name__ == "__main__":
    main()
