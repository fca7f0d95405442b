"""What would my script take on GPUs that I do not have?  It runs here, unmodified, without one.

Needs torch (make setup, or pip install stepsim[tracing]).
"""

import tempfile
from pathlib import Path

import rich

import simcore

TRAIN = """
import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
layers = [torch.nn.Linear(4096, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(8)]
model = DistributedDataParallel(torch.nn.Sequential(*layers))
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for _ in range(4):
    loss = model(torch.randn(8192, 4096, device="cuda", dtype=torch.bfloat16)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_text(TRAIN)
        job = simcore.trace(script, world_size=16, cluster="h100-16")
        for ranks in (job, job.changed(settings={"cluster.nic_bytes_per_s": "25e9"})):
            rich.print(simcore.simulate(ranks))
