"""A job of DDP on GPUs, recorded by one line: torchrun --nproc-per-node 2 ddp_job.py FOLDER"""

import os
import sys

import torch
import torch.distributed as dist

import collbench

rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
torch.manual_seed(1)
layers = torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 16)
model = torch.nn.parallel.DistributedDataParallel(
    torch.nn.Sequential(*layers).cuda(), device_ids=[rank]
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with collbench.record(sys.argv[1], steps=3, after=1):
    for _ in range(6):
        optimizer.zero_grad()
        loss = model(torch.randn(32, 64).cuda()).square().sum()
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss.detach())
dist.destroy_process_group()
print("rank", rank, "done", flush=True)
