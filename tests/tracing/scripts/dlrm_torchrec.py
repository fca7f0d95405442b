"""TorchRec's DLRM under DistributedModelParallel: three tables on two ranks, SGD in backward.

Traced with ``--setup workloads/tracing/recipes/fbgemm_lookups.py --value jagged_tensor.py:96=896``, the keys
of a batch.  The listing in ``tests/models/traced/torchrec.csv`` is what its rank 0 does.
"""

import os

import torch
import torch.distributed as dist
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.datasets.utils import Batch
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.models.dlrm import DLRM, DLRMTrain
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

BATCH, DENSE, DIM = 64, 16, 32
ROWS, POOLING = (1000, 400, 60), (8, 4, 2)


def main(steps=3):
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    tables = [
        EmbeddingBagConfig(
            name=f"t{number}", embedding_dim=DIM, num_embeddings=rows, feature_names=[f"f{number}"]
        )
        for number, rows in enumerate(ROWS)
    ]
    collection = EmbeddingBagCollection(tables=tables, device=torch.device("meta"))
    model = DLRMTrain(
        DLRM(
            embedding_bag_collection=collection, dense_in_features=DENSE, dense_device=device,
            dense_arch_layer_sizes=[512, 256, DIM], over_arch_layer_sizes=[512, 512, 256, 1],
        )
    )  # fmt: skip
    apply_optimizer_in_backward(torch.optim.SGD, model.model.sparse_arch.parameters(), {"lr": 0.01})
    world = dist.get_world_size()
    dealt = ParameterConstraints(sharding_types=["table_wise"], compute_kernels=["fused"])
    planner = EmbeddingShardingPlanner(
        topology=Topology(world_size=world, compute_device="cuda", local_world_size=world),
        constraints={one.name: dealt for one in tables},
    )
    sharders = [EmbeddingBagCollectionSharder()]
    model = DistributedModelParallel(
        module=model, device=device, plan=planner.plan(model, sharders), sharders=sharders
    )
    dense = [one for name, one in model.named_parameters() if "sparse" not in name]
    optimizer = torch.optim.SGD(dense, lr=0.01)
    for _ in range(steps):
        lengths = torch.tensor([lookups for lookups in POOLING for _ in range(BATCH)], dtype=torch.int32)
        keys = torch.randint(min(ROWS), (BATCH * sum(POOLING),), device=device)
        sparse = KeyedJaggedTensor(["f0", "f1", "f2"], keys, lengths=lengths.to(device))
        batch = Batch(torch.randn(BATCH, DENSE, device=device), sparse, torch.ones(BATCH, device=device))
        loss, _ = model(batch)
        optimizer.zero_grad()
        loss.sum().backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
