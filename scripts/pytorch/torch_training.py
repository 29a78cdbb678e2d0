#!/usr/bin/env python3
"""One process of a training run in PyTorch that repeats a lesson's:  torch_training.py JOB.json KIND RANK RANKS RESULT.json

KIND is single, ddp, fsdp2, lightning-ddp or lightning-fsdp. JOB.json has the options of the lesson's report, the config.json
of its model, threads, and the names of files: the text to train on, the first weights, and where the processes meet. RESULT.json
gets {losses, seconds (of each step), grown, resident (bytes)}, or {unavailable: why} where this PyTorch cannot run the kind.
"""

import contextlib
import datetime
import importlib
import json
import os
import pathlib
import sys
import time

import torch
from torch import distributed

from torch_gpt2 import Gpt2, make_adamw
from training_rules import learning_rate, windows_of

TIMEOUT = datetime.timedelta(seconds=300)


class Unavailable(Exception):
    """This PyTorch cannot run what was asked for, and why."""


def resident(field):
    """VmRSS or VmHWM of this process, in bytes."""
    lines = pathlib.Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(field))


def weights(path):
    """The f32 tensors of a safetensors file, by name."""
    content = bytearray(pathlib.Path(path).read_bytes())
    begin = 8 + int.from_bytes(content[:8], "little")
    entries = {name: entry for name, entry in json.loads(content[8:begin]).items() if name != "__metadata__"}
    places = {name: [begin + offset for offset in entry["data_offsets"]] for name, entry in entries.items()}
    return {name: torch.frombuffer(content, dtype=torch.float32, count=(last - first) // 4, offset=first)
            .reshape(entries[name]["shape"]) for name, (first, last) in places.items()}


def micro_batches(job, rank, ranks):
    """For each step the pairs (inputs, targets) that this rank computes, each (B, T)."""
    options = job["options"]
    T, G = options["sequence"] or job["config"]["n_positions"], options["global-batch"]
    share = G // ranks
    tokens = torch.frombuffer(bytearray(pathlib.Path(job["text"]).read_bytes()), dtype=torch.uint8).long()
    for step in range(options["steps"]):
        mine = windows_of(step, len(tokens), T, G, options["seed"])[rank * share:(rank + 1) * share]
        whole = torch.stack([tokens[window * T:window * T + T + 1] for window in mine])
        yield [(part[:, :-1], part[:, 1:]) for part in whole.split(options["micro-batch"] or share)]


def optimizer_of(model, options):
    """AdamW and its schedule, as the lesson's options say."""
    adamw = make_adamw(model, 1.0, options["beta1"], options["beta2"], options["epsilon"], options["weight-decay"])
    return adamw, torch.optim.lr_scheduler.LambdaLR(adamw, lambda step: learning_rate(options, step))


def train(model, kind, options, steps):
    """Mean loss of this rank's sequences, and seconds, of each step."""
    if kind == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    if kind == "fsdp2":
        mesh = distributed.init_device_mesh("cpu", (distributed.get_world_size(),))
        for unit in [*model.h, model]:
            distributed.fsdp.fully_shard(unit, mesh=mesh)
    adamw, schedule = optimizer_of(model, options)
    losses, seconds = [], []
    for parts in steps:
        begin = time.perf_counter()
        adamw.zero_grad()
        loss = 0
        for i, part in enumerate(parts):
            # Gradients are sent after the last micro-batch only.
            last = i + 1 == len(parts)
            if kind == "fsdp2":
                model.set_requires_gradient_sync(last)
            with model.no_sync() if kind == "ddp" and not last else contextlib.nullcontext():
                mean = model(*part) / len(parts)
                mean.backward()
            loss += mean.item()
        if options["clip"] > 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), options["clip"])
        adamw.step()
        schedule.step()
        losses.append(loss)
        seconds.append(time.perf_counter() - begin)
    return losses, seconds


def train_with_lightning(model, kind, options, steps):
    """Trains by PyTorch Lightning's loop and strategies."""
    import lightning
    from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy
    micro, losses, times = len(steps[0]), [], []

    class Training(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = model

        def training_step(self, part, number):
            mean = self.model(*part)
            losses.append(mean.item() / micro)
            return mean

        def on_train_start(self):
            times.append(time.perf_counter())

        def on_train_batch_end(self, *_):
            times.append(time.perf_counter())

        def configure_optimizers(self):
            adamw, schedule = optimizer_of(self, options)
            return {"optimizer": adamw, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    strategy = DDPStrategy(gradient_as_bucket_view=True) if kind == "lightning-ddp" else FSDPStrategy()
    try:
        trainer = lightning.Trainer(
            accelerator="cpu", devices=distributed.get_world_size(), strategy=strategy, max_steps=len(steps), logger=False,
            accumulate_grad_batches=micro, gradient_clip_val=options["clip"] or None, use_distributed_sampler=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    except Exception as error:  # of Lightning's own kinds, which differ between its versions
        raise Unavailable(str(error).split(". ")[0]) from error
    parts = [part for step in steps for part in step]
    trainer.fit(Training(), torch.utils.data.DataLoader(parts, batch_size=None))
    ends = times[::micro]
    return [sum(losses[i:i + micro]) for i in range(0, len(losses), micro)], [b - a for a, b in zip(ends, ends[1:])]


def run(job, kind, rank, ranks):
    """The result of this process; losses are those of the whole global batch."""
    torch.set_num_threads(job["threads"])
    torch.set_flush_denormal(True)
    try:  # What is imported later would count as memory of the training.
        for module in ["torch._dynamo", "torch.distributed.fsdp"] + ["lightning"] * kind.startswith("lightning"):
            importlib.import_module(module)
    except ImportError as error:
        raise Unavailable(f"{error.name} is not installed") from error
    if kind == "fsdp2" and not hasattr(distributed.fsdp, "fully_shard"):
        raise Unavailable("this PyTorch has no fully_shard")
    imported = resident("VmRSS")
    if kind != "single":
        distributed.init_process_group("gloo", init_method=job["meeting"], rank=rank, world_size=ranks, timeout=TIMEOUT)
    model = Gpt2(job["config"])
    model.load_state_dict(weights(job["weights"]))
    trained = train_with_lightning if kind.startswith("lightning") else train
    losses, seconds = trained(model, kind, job["options"], list(micro_batches(job, rank, ranks)))
    mean = torch.tensor(losses, dtype=torch.float64) / ranks
    if kind != "single":
        distributed.all_reduce(mean)
        distributed.destroy_process_group()
    most = resident("VmHWM")
    return {"losses": mean.tolist(), "seconds": seconds, "grown": most - imported, "resident": most}


def main(job, kind, rank, ranks, result):
    os.environ.update(MASTER_ADDR="localhost", LOCAL_RANK=rank, RANK=rank, WORLD_SIZE=ranks, NODE_RANK="0")  # for Lightning
    try:
        document = run(json.loads(pathlib.Path(job).read_text(encoding="utf-8")), kind, int(rank), int(ranks))
    except Unavailable as reason:
        document = {"unavailable": str(reason)}
    pathlib.Path(result).write_text(json.dumps(document), encoding="utf-8")
    os._exit(0)  # a thread of PyTorch that still runs would abort the process


if __name__ == "__main__":
    main(*sys.argv[1:])
