"""Which module launched a kernel, in forward and in backward; times in us."""

from tests.imports.traces import framework_call, launched, write
from workloads.imports import import_traces


def module(name, ts, dur):
    return {**framework_call(f"nn.Module: {name}", ts, dur), "cat": "python_function"}


def numbered(name, ts, dur, number, tid=1):
    return {**framework_call(name, ts, dur, tid=tid), "args": {"Sequence number": number}}


def columns(folder, events):
    job = import_traces([write(folder / "t.json", events)])
    ops = job.graph.ops
    inside = sum(module != "" for module in ops.module.tolist())
    assert any(text.startswith(f"{inside} of ") and "module" in text for text in job.report.found)
    return {
        name: (module, layer, phase)
        for name, module, layer, phase in zip(
            ops.name.tolist(), ops.module.tolist(), ops.layer.tolist(), ops.phase.tolist(), strict=True
        )
        if name not in ("host", "gap before the next op")
    }


def test_kernels_belong_to_modules_backwards_by_sequence_number(tmp_path):
    # Two blocks with a linear each; the backward of the second runs first, on autograd's thread.
    node = "autograd::engine::evaluate_function: AddmmBackward0"
    events = [
        module("Net_0", 0, 100),
        module("Block_0", 10, 30), module("Linear_0", 12, 20), numbered("aten::addmm", 14, 10, 40),
        module("Block_1", 50, 30), module("Linear_1", 52, 20), numbered("aten::addmm", 54, 10, 41),
        *launched("input", 2, 3, 1, corr=1), *launched("first", 15, 16, 5, corr=2),
        *launched("second", 55, 56, 5, corr=3), *launched("loss", 110, 111, 5, corr=4),
        numbered(node, 200, 10, 41, tid=2), *launched("second again", 202, 203, 5, corr=5, tid=2),
        numbered(node, 220, 10, 40, tid=2), *launched("first again", 222, 223, 5, corr=6, tid=2),
        numbered(node, 240, 10, 39, tid=2), *launched("unknown", 242, 243, 5, corr=7, tid=2),
    ]  # fmt: skip
    assert columns(tmp_path, events) == {
        "input": ("Net_0", -1, "fwd"),
        "first": ("Net_0.Block_0.Linear_0", 0, "fwd"),
        "second": ("Net_0.Block_1.Linear_1", 1, "fwd"),
        "loss": ("", -1, "fwd"),
        "second again": ("Net_0.Block_1.Linear_1", 1, "bwd"),
        "first again": ("Net_0.Block_0.Linear_0", 0, "bwd"),
        "unknown": ("", -1, "bwd"),
    }


def test_annotations_name_modules(tmp_path):
    note = {**framework_call("FSDP::all_gather (layers.3)", 10, 10), "cat": "user_annotation"}
    gather = "ncclDevKernel_AllGather_RING_LL"
    events = [note, *launched(gather, 12, 20, 5, corr=1, stream=20), *launched("a", 30, 40, 5, corr=2)]
    assert columns(tmp_path, events) == {gather: ("layers.3", 3, "fwd"), "a": ("", -1, "fwd")}
