"""What forward keeps, in the host's memory until its backward."""

from __future__ import annotations

import numpy as np
import pytest

from simcore.errors import InputError
from simcore.graph import OpKind
from simcore.hardware import load_cluster
from simcore.memory.caching import play
from simcore.run import run
from workloads.models.build import model_pieces
from workloads.models.local import Shard
from workloads.models.offload import OffloadModule, offloaded, share_bytes
from workloads.models.pieces import OFFLOAD, RELOAD
from workloads.models.public import named_model
from workloads.models.software import SoftwareSpec
from workloads.models.spec import ModelSpec
from workloads.parallel import ParallelSpec, TrainingSpec
from workloads.parallel.generate import generate, schedule_of
from workloads.parallel.job import Job
from workloads.parallel.lifetimes import stage_lifetimes
from workloads.parallel.memory import estimate_memory
from workloads.parallel.static import static_memory

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
    assert share_bytes(moved) == moved.backward[0].bytes_read


def test_one_layers_share_is_there_as_long_as_a_backward_is_ahead() -> None:
    training = TrainingSpec(seq=SEQ, global_batch=3, offload=("layer",))
    job = Job(LLAMA.model_copy(update={"layers": 6}), ParallelSpec(pp=2), training, SoftwareSpec())
    schedule, _ = schedule_of(job.parallel, job.num_microbatches)
    found = []
    for stage, actions in enumerate(schedule):
        one = stage_lifetimes(job, stage, actions)
        back = [k for k, holder in enumerate(one.holders) if holder.name == "back from the host"]
        made = np.isin(one.holder, back)
        assert set(one.events.num_bytes[made].tolist()) == {share_bytes(job.pieces.layers[0])}
        storages = one.events.storage[made].tolist()
        gone = [
            int(np.flatnonzero((one.events.storage == storage) & (one.events.num_bytes < 0))[0])
            for storage in storages
        ]
        names = [f"{action.kind}{action.microbatch}" for action in actions]
        found.append([
            (names[one.action[begin]], names[one.action[end]])
            for begin, end in zip(np.flatnonzero(made).tolist(), gone, strict=True)
        ])  # fmt: skip
        total = estimate_memory(job, stage, actions)
        played = play(one.events).peak_allocated
        assert total.total - total.fragmentation == pytest.approx(played, rel=0.01)
    # F0 F1 B0 F2 B1 B2: the next backward has its forward; F0 B0 F1 B1 F2 B2: it never has.  Two steps.
    assert found == [[("F0", "B2")] * 2, [("F0", "B0"), ("F1", "B1"), ("F2", "B2")] * 2]


def test_the_host_updates_its_share_of_the_optimizer_beside_the_gpu() -> None:
    def job(share: float) -> tuple[float, dict[str, float]]:
        training = TrainingSpec(seq=SEQ, global_batch=4, sharding="zero1", optimizer_offload=share)
        model = LLAMA.model_copy(update={"layers": 2})
        graph = generate(model, ParallelSpec(dp=4), training, SoftwareSpec())
        cluster = load_cluster("gb200-4")
        ops = graph.ops
        moved = {
            ops.name[row]: float(ops.bytes_read[row])
            for row in graph.flat_ops(graph.programs[0]).row
            if ops.kind[row] == OpKind.MEMCPY
        }
        return run(graph, cluster).result.step_ps * 1e-12, moved

    plain, nothing = job(0.0)
    whole, moved = job(1.0)
    half, of_half = job(0.5)
    assert not nothing
    owned = model_numel() / 4
    # A gradient of 4 bytes there, 28 bytes of gradient and states read and written, 2 bytes of weight back.
    for found, share in ((moved, 1.0), (of_half, 0.5)):
        sizes = {OFFLOAD: 4, "cpu_adam": 28, RELOAD: 2}
        assert found == pytest.approx({name: size * owned * share for name, size in sizes.items()}, rel=1e-4)
    # Half of 255 GB/s of Grace's memory, C2C at 225 GB/s; the GPU's own update and copy of weights are saved,
    # or beside that.
    seconds = owned * (28 / (0.5 * 255e9) + 6 / 225e9)
    saved = owned * 34 / (0.82 * 8e12)
    assert whole - plain == pytest.approx(seconds - saved, rel=0.01)
    assert half - plain == pytest.approx(seconds / 2 - saved, rel=0.01)


def model_numel() -> int:
    """Parameters of two layers with embedding, head and norm."""
    pieces = model_pieces(LLAMA.model_copy(update={"layers": 2}), Shard(1, SEQ))
    return sum(parameter.numel for piece in pieces.all_pieces for parameter in piece.parameters)


def test_states_that_the_host_keeps_take_no_room_on_the_gpu() -> None:
    def held(share: float) -> int:
        training = TrainingSpec(seq=SEQ, global_batch=2, sharding="zero1", optimizer_offload=share)
        job = Job(LLAMA, ParallelSpec(dp=2), training, SoftwareSpec())
        found = static_memory(job, 0)
        return found.masters + found.moments

    assert held(0.25) == pytest.approx(0.75 * held(0.0), rel=1e-6) and held(1.0) == 0


@pytest.mark.parametrize("change", [{"sharding": "fsdp2"}, {"optimizer": "sgd"}, {"engine": "deepspeed"}])
def test_others_offload_in_their_own_ways(change: dict[str, str]) -> None:
    training = TrainingSpec(seq=SEQ, global_batch=2, sharding="zero1", optimizer_offload=1.0).model_copy(
        update=change
    )
    with pytest.raises(InputError, match=r"nearest: training\.sharding=zero1"):
        generate(LLAMA, ParallelSpec(dp=2), training, SoftwareSpec())
