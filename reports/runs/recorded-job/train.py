"""A job that records three of its iterations: ``torchrun --nproc-per-node 2 train.py``."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import collbench

dist.init_process_group("gloo")
torch.manual_seed(0)
layers = nn.Sequential(*(nn.Linear(512, 512) for _ in range(6)))
model = DistributedDataParallel(layers, bucket_cap_mb=2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
collbench.record("trace/", steps=3, after=2)
for _ in range(6):
    model(torch.randn(64, 512)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
