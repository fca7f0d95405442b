from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcore.cost import OP_CLASSES, KernelShape, RooflineCost
from simcore.cost.parameters import TrafficParameters
from simcore.hardware import load_gpu
from tests.cost.toys import TOY, TOY_GPU, op_table

_NOT_STREAMING = {"gemm", "bgemm", "attention_fwd", "attention_bwd", "conv", "other", "layout", "pool"}
STREAMING = sorted(set(OP_CLASSES) - {*_NOT_STREAMING, "batch_norm_fwd", "batch_norm_bwd"})


def stream(op_class: str, read: int, written: int) -> KernelShape:
    return KernelShape(op_class, op_class, "bfloat16", (), (), bytes_read=read, bytes_written=written)


def test_elementwise_takes_its_bytes() -> None:
    # 300 MB read and 200 MB written at 1 TB/s: 500 us, and 1 us to start.
    assert (
        RooflineCost(TOY_GPU, parameters=TOY).seconds(stream("elementwise", 300_000_000, 200_000_000))
        == 501e-6
    )


def test_bytes_follow_from_shapes_when_not_recorded() -> None:
    kernel = KernelShape("aten::add", "elementwise", "float32", ((1000, 250), (1000, 250)), ((1000, 250),))
    # Three tensors of 250,000 fp32 values: 3 MB, 3 us at 1 TB/s; 1 us to start.
    assert RooflineCost(TOY_GPU, parameters=TOY).seconds(kernel) == pytest.approx(4e-6)


def test_passes_and_launches() -> None:
    classes = {**TOY.memory.classes, "norm_bwd": TrafficParameters(2, 1, 2, 0.5)}
    parameters = replace(TOY, memory=replace(TOY.memory, classes=classes))
    work = RooflineCost(TOY_GPU, parameters=parameters).work(stream("norm_bwd", 100_000_000, 50_000_000))
    # Two passes over 100 MB and one over 50 MB; this class reaches half of 1 TB/s: 500 us in two launches.
    assert work.hbm_bytes == 250_000_000
    assert work.sm_s == pytest.approx(500e-6)
    assert (work.launches, work.blocks) == (2, 0)


def test_small_tensors_come_from_l2() -> None:
    parameters = replace(TOY, memory=replace(TOY.memory, warm_l2_share=0.5))
    # L2 of 1 MB, half of it warm: 400 kB never leave L2 (100 TB/s: 4 ns); of 1.5 MB, 1 MB comes from HBM.
    cost = RooflineCost(TOY_GPU, parameters=parameters)
    small, large = cost.work(stream("copy", 200_000, 200_000)), cost.work(stream("copy", 750_000, 750_000))
    assert (small.hbm_bytes, small.sm_s) == (0, 4e-9)
    assert large.hbm_bytes == 1_000_000


def test_latency_of_the_first_bytes() -> None:
    parameters = replace(TOY, memory=replace(TOY.memory, ramp_bytes=1e6))
    # bytes / (bytes + ramp) of the bandwidth: 4 MB take (4 + 1) MB / 1 TB/s = 5 us, and 1 us to start.
    cost = RooflineCost(TOY_GPU, parameters=parameters)
    assert cost.seconds(stream("fill", 0, 4_000_000)) == pytest.approx(6e-6)


@pytest.mark.parametrize(
    ("tensors", "elements", "lists", "launches"),
    [
        (1, 1000, 1, 1),
        (110, 1000, 1, 1),
        (111, 1000, 1, 2),  # 110 tensors a launch with one list
        (111, 1000, 4, 4),  # 36 with four lists
        (1, 65536 * 321, 1, 2),  # 320 blocks of 65536 elements a launch
    ],
)
def test_foreach_launches_once_per_chunk(tensors: int, elements: int, lists: int, launches: int) -> None:
    shapes = ((elements,),) * tensors
    kernel = KernelShape("aten::_foreach_mul_", "foreach", "float32", shapes * lists, shapes, 0, 1, 1)
    assert RooflineCost(TOY_GPU, parameters=TOY).work(kernel).launches == launches


@settings(max_examples=60, deadline=None)
@given(
    op_class=st.sampled_from(STREAMING),
    read=st.integers(0, 10**9),
    written=st.integers(0, 10**9),
    more=st.integers(0, 10**8),
)
def test_more_bytes_never_take_less_time_nor_pass_the_bandwidth(
    op_class: str, read: int, written: int, more: int
) -> None:
    spec = load_gpu("h800")
    cost = RooflineCost(spec)
    base = cost.seconds(stream(op_class, read, written))
    assert cost.seconds(stream(op_class, read + more, written)) >= base
    assert cost.seconds(stream(op_class, read, written + more)) >= base
    double = RooflineCost(replace(spec, hbm_bytes_per_s=2 * spec.hbm_bytes_per_s))
    assert double.seconds(stream(op_class, read, written)) <= base
    moved = cost.work(stream(op_class, read, written)).hbm_bytes
    assert base > moved / spec.hbm_bytes_per_s


def test_host_copies_use_a_copy_engine_over_pcie() -> None:
    table = op_table(
        {"name": "memcpy_htod", "kind": 4, "bytes_read": 10_000_000, "bytes_written": 10_000_000},
        {"name": "memcpy_dtod", "kind": 4, "bytes_read": 10_000_000, "bytes_written": 10_000_000},
        {"name": "nccl::copy", "kind": 4, "bytes_read": 10_000_000, "bytes_written": 10_000_000},
    )
    cost = RooflineCost(TOY_GPU, parameters=TOY)
    demands = cost.demands(table)
    assert demands.copy_engine.tolist() == [1, 1, 1]
    # 10 MB over 10 GB/s of PCIe: 1 ms; within HBM 20 MB at 1 TB/s: 20 us; both 1 us to start.
    assert demands.alone_ps(TOY_GPU.hbm_bytes_per_s).tolist() == [1_001_000_000, 21_000_000, 21_000_000]


def indexed(instructions: float) -> RooflineCost:
    return RooflineCost(
        TOY_GPU, parameters=replace(TOY, memory=replace(TOY.memory, index_instructions=instructions))
    )


def test_broadcast_and_rearranged_tensors_compute_addresses() -> None:
    # 64 instructions an element, 64 a clock on 100 SMs at 1 GHz: 1e8 elements take 1e8 / 100 / 1e9 = 1 ms,
    # where their 200 MB in and 200 MB out take 0.4 ms.
    cost, shape = indexed(64.0), (10_000, 10_000)
    same = KernelShape("aten::neg", "elementwise", "bfloat16", (shape,), (shape,))
    broadcast = KernelShape("aten::add", "elementwise", "bfloat16", (shape, (10_000,)), (shape,))
    clone = KernelShape("aten::clone", "copy", "bfloat16", (shape,), (shape,))
    cast = KernelShape("aten::_to_copy", "copy", "bfloat16", (shape,), (shape,))
    fused = replace(broadcast, name="bias_gelu_fwd")
    assert cost.work(broadcast).sm_s == cost.work(clone).sm_s == pytest.approx(1e-3)
    for kernel in (same, cast, fused):
        assert cost.seconds(kernel) == pytest.approx(0.4e-3, rel=0.01)


def test_random_numbers_cost_instructions_forward_only() -> None:
    classes = {**TOY.memory.classes, "dropout": TrafficParameters(1, 1, 1, 1.0, instructions=64.0)}
    cost = RooflineCost(TOY_GPU, parameters=replace(TOY, memory=replace(TOY.memory, classes=classes)))
    shape = (10_000, 10_000)
    forward = KernelShape("aten::native_dropout", "dropout", "bfloat16", (shape,), (shape, shape), 0, 1, 1)
    assert cost.work(forward).sm_s == pytest.approx(2e-3)  # as many masks as values
    assert cost.work(replace(forward, name="aten::native_dropout_backward")).sm_s < 1e-6


def test_a_class_may_wait_for_itself() -> None:
    classes = {**TOY.memory.classes, "reduction": TrafficParameters(1, 1, 1, 1.0, waits=2.0)}
    memory = replace(TOY.memory, classes=classes, prologue_s=2e-6)
    cost = RooflineCost(TOY_GPU, parameters=replace(TOY, memory=memory))
    # 1 MB at 1 TB/s, 1 us of gap, 2 us to start, and twice that until the last block has added up.
    assert cost.seconds(stream("reduction", 1_000_000, 0)) == pytest.approx(8e-6)
