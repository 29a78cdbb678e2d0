#!/usr/bin/env python3
"""Trains GPT-2 in PyTorch on the ranks of a job of mpirun, one thread each, over gloo, and reports as a lesson does:

    mpirun -np 2 torch_ranks.py SHARDING CONFIG --global-batch=G --sequence=T --steps=N --report=FILE

SHARDING is ddp (DistributedDataParallel) or fsdp2 (fully_shard() of each block and of the whole), CONFIG a config.json of the
transformers library. The first step is not counted. The report has time.step_s and time.tokens_per_s.
"""

import argparse
import json
import os
import pathlib
import statistics
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from torch_gpt2 import Gpt2, make_adamw

PORT = 29517


def join_ranks():
    """Connects the ranks of this job; the launcher is Open MPI's or MPICH's."""
    rank, ranks = (int(os.environ.get(open_mpi) or os.environ[mpich])
                   for open_mpi, mpich in (("OMPI_COMM_WORLD_RANK", "PMI_RANK"), ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")))
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{PORT}", rank=rank, world_size=ranks)


def sharded(model, sharding):
    """The model on all ranks."""
    if sharding == "ddp":
        return DistributedDataParallel(model)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.h:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def train(arguments):
    """Seconds of each step but the first."""
    torch.manual_seed(1)
    config = json.loads(pathlib.Path(arguments.config).read_text(encoding="utf-8"))
    config["vocab_size"] += -config["vocab_size"] % 64
    plain = Gpt2(config)
    for parameter in plain.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    model = sharded(plain, arguments.sharding)
    adamw = make_adamw(model, 1e-4, 0.9, 0.95, 1e-8, 0.1)
    share = arguments.global_batch // dist.get_world_size()
    seconds = []
    for _ in range(arguments.steps):
        inputs, targets = torch.randint(config["vocab_size"], (2, share, arguments.sequence))
        dist.barrier()
        begin = time.perf_counter()
        model(inputs, targets).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adamw.step()
        adamw.zero_grad(set_to_none=True)
        dist.barrier()
        seconds.append(time.perf_counter() - begin)
    return seconds[1:]


def main():
    """Trains, and writes the report on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sharding", choices=["ddp", "fsdp2"])
    parser.add_argument("config")
    for number in ("global-batch", "sequence", "steps"):
        parser.add_argument(f"--{number}", type=int, required=True)
    parser.add_argument("--report", required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    join_ranks()
    step_s = statistics.median(train(arguments))
    if dist.get_rank() == 0:
        tokens = arguments.global_batch * arguments.sequence
        report = {"time": {"step_s": step_s, "tokens_per_s": tokens / step_s}}
        pathlib.Path(arguments.report).write_text(json.dumps(report), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
