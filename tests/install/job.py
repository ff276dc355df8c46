"""Two ranks of data parallelism that collbench records into trace/."""

import time

import torch
import torch.distributed as dist

import collbench

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
collbench.record("trace/", steps=3, after=1)
for _ in range(6):
    optimizer.zero_grad()
    model(torch.ones(4, 64)).sum().backward()
    optimizer.step()
# torch aborts where a thread of Gloo frees what it had of its last call after Python has ended
time.sleep(0.2)
dist.destroy_process_group()
