"""A job of FSDP2 on GPUs, recorded by one line: torchrun --nproc-per-node 2 fsdp_job.py FOLDER"""

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import collbench

rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
torch.manual_seed(1)
model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(3))).cuda()
for layer in model:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with collbench.record(sys.argv[1], steps=3, after=1):
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.randn(32, 64).cuda()).square().sum().backward()
        optimizer.step()
dist.destroy_process_group()
print("rank", rank, "done", flush=True)
