"""What forward keeps, in the host's memory until its backward."""

from __future__ import annotations

import pytest

from simcore.graph import OpKind
from simcore.hardware import load_cluster
from simcore.run import run
from workloads.models.build import model_pieces
from workloads.models.local import Shard
from workloads.models.offload import OffloadModule, offloaded
from workloads.models.pieces import OFFLOAD, RELOAD
from workloads.models.public import named_model
from workloads.models.software import SoftwareSpec
from workloads.models.spec import ModelSpec
from workloads.parallel import ParallelSpec, TrainingSpec
from workloads.parallel.generate import generate

SEQ = 4096
LLAMA = named_model("llama3-8b")
assert isinstance(LLAMA, ModelSpec)


def test_what_leaves_is_what_was_kept() -> None:
    plain = model_pieces(LLAMA, Shard(1, SEQ)).layers[0]
    moved = offloaded(plain, ["layer"])
    assert moved.saved_bytes == 0
    assert (moved.forward[-1].name, moved.backward[0].name) == (OFFLOAD, RELOAD)
    assert moved.forward[-1].bytes_read == moved.backward[0].bytes_read == plain.saved_bytes
    part = offloaded(plain, ["core_attn"])
    # Queries, keys, values and the output of 32, 8, 8 and 32 heads of 128, and a sum in fp32 for each row.
    assert plain.saved_bytes - part.saved_bytes == SEQ * (80 * 128 * 2 + 32 * 4)
    assert offloaded(plain, ["expert_fc1"]) is plain  # there are none


@pytest.mark.parametrize(("layers", "copies"), [(-1, 6), (2, 2), (0, 0)])
def test_some_layers_or_all(layers: int, copies: int) -> None:
    graph = generate(
        LLAMA.model_copy(update={"layers": 6}), ParallelSpec(),
        TrainingSpec(seq=SEQ, offload=("layer",), offload_layers=layers), SoftwareSpec(),
    )  # fmt: skip
    played = graph.flat_ops(graph.programs[0]).row
    assert (graph.ops.kind[played] == OpKind.MEMCPY).sum() == 2 * copies


def test_copies_go_beside_compute_and_come_back_in_time() -> None:
    def step_s(offload: tuple[OffloadModule, ...], rate: str) -> float:
        training = TrainingSpec(seq=SEQ, global_batch=4, offload=offload)
        graph = generate(LLAMA.model_copy(update={"layers": 6}), ParallelSpec(), training, SoftwareSpec())
        cluster = load_cluster("gb200-4", (("gpu.host_bytes_per_s", rate),))
        return run(graph, cluster).result.step_ps * 1e-12

    plain = step_s((), "225GB/s")
    assert step_s(("layer",), "225GB/s") == pytest.approx(plain, rel=0.03)  # NVLink-C2C keeps up
    kept = model_pieces(LLAMA, Shard(1, SEQ)).layers[0].saved_bytes
    # Over a slow bus copies set the pace: forward's of six layers, backward's of the same, four microbatches.
    assert step_s(("layer",), "10GB/s") == pytest.approx(4 * 2 * 6 * kept / 10e9, rel=0.1)


@pytest.mark.parametrize(("dropout", "times"), [(0.0, 2), (0.1, 1)])
def test_probabilities_that_softmax_and_product_keep_leave_twice(dropout: float, times: int) -> None:
    model = LLAMA.model_copy(update={"dropout": dropout})
    shard = Shard(1, SEQ, software=SoftwareSpec(attention="unfused"))
    plain = model_pieces(model, shard).layers[0]
    moved = offloaded(plain, ["core_attn"])
    scores = 32 * SEQ * SEQ * 2
    again = moved.backward[0].bytes_read - (plain.saved_bytes - moved.saved_bytes)
    assert again == (times - 1) * scores
    assert moved.peak_bytes - plain.peak_bytes == moved.backward[0].bytes_read
