"""One truth for recommenders: a described DLRM, the traced one, and the same really run by gloo processes.

``tests/tracing/scripts/dlrm.py`` deals its tables out in plain PyTorch.  Products and collectives come in the
same order in all three, of the same bytes.  Where a trace and a description may differ, and why:

- Of an uneven all_to_all a trace has the even one that lasts as long, a description each rank's share.
- Lookups and updates are FBGEMM's kernels in a description, those of ``nn.EmbeddingBag`` in the script.
- addmm reads its bias; a description has the product alone.
- The script puts pairs into place by index_add and the loss by steps, a description by one kernel each.
- DDP copies gradients to and from buckets parameter by parameter, a description bucket by bucket.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from simcore.collectives.kinds.all_to_all import Uneven
from simcore.graph import Graph
from tests.models.listing import Line, in_order, of_graph, read, unmatched
from tests.tracing.against import run_really
from workloads.jobs import complete
from workloads.parallel.generate import generate
from workloads.tracing.drive.fork_server import WorkerPool
from workloads.tracing.drive.script_job import ScriptJob
from workloads.tracing.drive.trace import trace_in

SCRIPT = Path(__file__).parents[1] / "tracing" / "scripts" / "dlrm.py"
MODES = {"table_wise": 2, "row_wise": 2}
MODEL = {
    "name": "small",
    "blocks": [
        {"block": "features", "width": 16},
        {
            "block": "tables",
            "tables": [
                {"rows": rows, "dim": 32, "pooling": lookups}
                for rows, lookups in ((1000, 8), (400, 4), (60, 2))
            ],
        },
        {"block": "mlp", "widths": [512, 256, 32], "name": "bottom"},
        {"block": "dot"},
        {"block": "mlp", "widths": [512, 512, 256], "name": "top"},
        {"block": "click"},
    ],
}
#: What the script is: fp32, plain SGD, DDP with its usual buckets, keys sent in their own step.
TRAINING = {
    "micro_batch": 64, "global_batch": 128, "optimizer": "sgd", "precision": "fp32", "sharding": "ddp",
    "grad_dtype": "fp32", "grad_reduce_dtype": "fp32", "bucket_bytes": 25 * 2**20,
    "overlap_grad_reduce": True, "clip_gradients": False,
}  # fmt: skip
SOFTWARE = {
    "lookup_kernels": "each", "table_update": "atomic", "keys_ahead": False, "fused_interaction": False,
    "product_activation_fusion": False, "gradient_scaling": False,
}  # fmt: skip
#: Kernels without a counterpart, by pass: (of the trace, of the description).
DIFFER = {
    "fwd": (
        {"_embedding_bag", "arange", "cat", "index_select", "binary_cross_entropy_with_logits"},
        {"table_lookup", "index", "binary_cross_entropy_with_logits", "mean"},
    ),
    "bwd": (
        {"index_select", "index_add", "new_zeros", "clone", "copy_", "mul", "div_", "sigmoid"},
        {"table_gradients", "table_update", "index_put_", "split_copy", "copy_"},
    ),
}

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


def described(mode: str) -> Graph:
    job = complete(
        {
            "model": MODEL, "training": TRAINING, "software": SOFTWARE,
            "parallel": {"dp": 2, "strategy": {"embedding": "mp", "tables": mode}},
        },
        "test", num_gpus=2, generation="ampere", domain_gpus=2,
    )  # fmt: skip
    return generate(job.model, job.parallel, job.training, job.software)


@pytest.fixture(scope="module")
def really(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_really(tmp_path_factory.mktemp("gloo"), SCRIPT, MODES)


def sent_by(line: Line, rank: int) -> float:
    """Bytes that a rank puts into a described exchange: its share where ranks send unevenly."""
    shares = Uneven.parse(line.collective)
    if shares is None or shares.side == "to":
        return line.num_bytes
    return line.num_bytes * shares.shares[rank] * len(shares.shares) / sum(shares.shares)


def longest(line: Line) -> tuple[str, int, int]:
    """The even exchange that lasts as long as a described one: all ranks as the fullest."""
    shares = Uneven.parse(line.collective)
    if shares is None:
        return line.collective, line.ranks, line.num_bytes
    most = max(shares.shares) * len(shares.shares) / sum(shares.shares)
    return "all_to_all", line.ranks, round(line.num_bytes * most)


@pytest.mark.parametrize("mode", MODES)
def test_a_described_dlrm_communicates_as_real_processes_do(really: dict[str, Any], mode: str) -> None:
    lines = [line for _, each in of_graph(described(mode)).actions for line in each if line.collective]
    assert len(lines) == 5  # keys, rows, the top's bucket, rows' gradients, the other bucket
    for rank, events in enumerate(really[mode]):
        real = [(kind, size) for what, kind, size, *_ in (e for e in events if e[0] == "call")]
        ours = [(line.collective.partition(":")[0], round(sent_by(line, rank))) for line in lines]
        assert ours == real


@pytest.mark.parametrize("mode", MODES)
def test_a_described_dlrm_is_the_traced_one(pool: WorkerPool, mode: str) -> None:
    job = ScriptJob(SCRIPT, (mode,), world_size=2, gpus_per_node=2, max_ranks=1)
    traced, made = of_graph(trace_in(pool, job)), of_graph(described(mode))
    for kind in ("fwd", "bwd"):
        (theirs,), (ours,) = traced.passes(kind), made.passes(kind)
        expected = [longest(line) if line.collective else line.flops for line in ours if line.place]
        assert in_order(theirs) == expected
        waits = [
            [x.waits.partition(":")[0] for x in lines if x.waits and x.waits != "all_reduce"]
            for lines in (theirs, ours)
        ]
        assert waits[0] == waits[1] != []  # what reads rows, and what updates them
        missing, spare = unmatched(theirs, ours)
        products = [
            [(x.flops, x.bytes_written) for x in lines if x.flops and "mm" in x.name]
            for lines in (missing, spare)
        ]
        assert products[0] == products[1]  # the bias that addmm reads
        for lines, known in zip((missing, spare), DIFFER[kind], strict=True):
            names = {x.name.removeprefix("aten::").partition(".")[0] for x in lines if not x.flops}
            assert names <= known


def test_lookups_of_the_trace_read_as_many_rows(pool: WorkerPool) -> None:
    job = ScriptJob(SCRIPT, ("row_wise",), world_size=2, gpus_per_node=2, max_ranks=1)
    theirs, ours = (
        sorted(line.bytes_read for line in listing.passes("fwd")[0] if name in line.name)
        for listing, name in (
            (of_graph(trace_in(pool, job)), "_embedding_bag"),
            (of_graph(described("row_wise")), "table_lookup"),
        )
    )  # fmt: skip
    # A bag has an offset of 8 bytes besides: 128 bags of each table.
    assert theirs == [size + 8 * 128 for size in ours]


def test_torchrecs_own_dlrm_does_what_is_described() -> None:
    """Its trace, kept as a listing: ``tests/tracing/scripts/dlrm_torchrec.py``.

    TorchRec sends lengths before keys, computes the bottom network before either, and its DDP has one bucket.
    """
    traced = read(Path(__file__).with_name("traced") / "torchrec.csv")
    made = of_graph(described("table_wise"))
    for kind in ("fwd", "bwd"):
        (theirs,), (ours,) = traced.passes(kind), made.passes(kind)
        products = [[x.flops for x in lines if x.flops] for lines in (theirs, ours)]
        assert products[0] == products[1]
        rows = [longest(x) for x in ours if x.collective.startswith("all_to_all")][-1]
        assert [longest(x) for x in theirs if x.collective == "all_to_all"][-1] == rows
        summed = [sum(x.num_bytes for x in lines if x.collective == "all_reduce") for lines in (theirs, ours)]
        assert summed[0] == summed[1]
    lookups = [
        [x.name.rpartition("::")[2].partition(".")[0] for _, lines in one.actions for x in lines
         if "table_" in x.name and "puts" not in x.name and "gradients" not in x.name]
        for one in (traced, made)
    ]  # fmt: skip
    assert lookups[0] == ["table_lookup", "table_update"]
    assert set(lookups[1]) == set(lookups[0])
