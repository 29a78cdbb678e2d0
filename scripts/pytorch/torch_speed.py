#!/usr/bin/env python3
"""Times PyTorch on this machine:

    torch_speed.py attention LEAST_S B H T D      its flash attention on a GPU, causal, bf16, forwards and backwards
    torch_speed.py step LEAST_S JOB               training steps of GPT-2, one turn for each line that it is sent
    mpirun -np 2 torch_speed.py ranks SHARDING CONFIG --global-batch=G --sequence=T --steps=N --report=FILE
                                                  steps on the ranks of that job, one thread each, over gloo; reports as a lesson does

JOB is JSON: {device: cuda or cpu, threads, precision: f32 or bf16, compiled, B, T, config: of a config.json}. Prints JSON: seconds
of one call, the mean of as many in a row as last LEAST_S seconds together, after one that loads what is loaded when it is first
used; of steps first a line that says what is measured. A step of which B sequences do not fit into a GPU is made with half as
many. Prints {} where there is no PyTorch, or none that sees a GPU.

SHARDING is ddp (DistributedDataParallel) or fsdp2 (fully_shard() of each block and of the whole), CONFIG a config.json of the
transformers library. The first step is not counted. The report has time.step_s and time.tokens_per_s.
"""

import argparse
import json
import math
import os
import pathlib
import statistics
import sys
import time

PORT = 29517  # where ranks meet


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


def step_of(torch, job, divided=lambda model: model):
    """A function that makes one training step: forward and backward pass, clipping, AdamW. divided(model) is the model on all ranks."""
    from torch_gpt2 import Gpt2, make_adamw

    with torch.device(job["device"]):
        model = Gpt2(job["config"])
        inputs, targets = torch.randint(job["config"]["vocab_size"], (2, job["B"], job["T"]))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    model = divided(model)
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


def prepare(torch, threads, config):
    """Pads the vocabulary to a multiple of 64 rows; numbers below the normal ones are zero."""
    config["vocab_size"] += -config["vocab_size"] % 64
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)


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
    """A turn for each line of the input."""
    job = json.loads(job)
    prepare(torch, job["threads"], job["config"])
    step = fitting_step(torch, job)
    yield {**job, "name": f"PyTorch {torch.__version__}"}
    wait = torch.cuda.synchronize if job["device"] == "cuda" else lambda: None
    for _ in sys.stdin:
        yield {"step_s": time_calls(wait, least_s, step)}


# ---- On the ranks of a job of mpirun -----------------------------------------------------------------------------------


def join_ranks(distributed):
    """Connects the ranks of this job; the launcher is Open MPI's or MPICH's."""
    rank, ranks = (int(os.environ.get(open_mpi) or os.environ[mpich])
                   for open_mpi, mpich in (("OMPI_COMM_WORLD_RANK", "PMI_RANK"), ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")))
    distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{PORT}", rank=rank, world_size=ranks)
    return rank, ranks


def sharded(torch, model, sharding):
    """The model on all ranks."""
    if sharding == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model)
    from torch.distributed.fsdp import fully_shard

    mesh = torch.distributed.init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    for unit in [*model.h, model]:
        fully_shard(unit, mesh=mesh)
    return model


def measure_ranks(torch, words):
    """Trains, and writes the report on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sharding", choices=["ddp", "fsdp2"])
    parser.add_argument("config", type=pathlib.Path)
    for number in ("global-batch", "sequence", "steps"):
        parser.add_argument(f"--{number}", type=int, required=True)
    parser.add_argument("--report", type=pathlib.Path, required=True)
    options = parser.parse_args(words)
    config, seconds = json.loads(options.config.read_text(encoding="utf-8")), []
    prepare(torch, 1, config)
    torch.manual_seed(1)
    rank, ranks = join_ranks(torch.distributed)
    job = {"device": "cpu", "precision": "f32", "compiled": False, "B": options.global_batch // ranks, "T": options.sequence, "config": config}
    step = step_of(torch, job, lambda model: sharded(torch, model, options.sharding))
    for _ in range(options.steps):
        torch.distributed.barrier()
        begin = time.perf_counter()
        step()
        torch.distributed.barrier()
        seconds.append(time.perf_counter() - begin)
    if rank == 0:
        step_s = statistics.median(seconds[1:])
        report = {"time": {"step_s": step_s, "tokens_per_s": options.global_batch * options.sequence / step_s}}
        options.report.write_text(json.dumps(report), encoding="utf-8")
    torch.distributed.destroy_process_group()


def main():
    what, least_s, *more = sys.argv[1:]
    if what == "ranks":
        import torch
        measure_ranks(torch, sys.argv[2:])
        return
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
