"""Pipelines recorded by hand: what each stage does, played by a few lines that share nothing with the engine.

Times in us.  A layer's forward is 8 (5 + 2 + 1), its backward 16 (10 + 4 + 2); the embedding adds 3 to the
first stage's forward and 4 to its backward, the loss 6 and 7 to the last stage's; the optimizer takes 10 a
layer.  An exchange takes 2, and both stages wait for it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simcore.graph.schedules import Schedule
from tests.imports.traces import Event, call, kernel, step, sync_record, write

SEND = 2
_FORWARD = (("gemm_fwd", 5), ("norm_fwd", 2), ("act_fwd", 1))
_BACKWARD = (("act_bwd", 2), ("norm_bwd", 4), ("gemm_bwd", 10))
_NAME = "ncclDevKernel_SendRecv"

Kernels = list[tuple[str, int]]


def kernels(stage: int, stages: int, kind: str, layers: int) -> Kernels:
    """Kernels of a microbatch's forward or backward on a stage."""
    found = list(_FORWARD if kind == "F" else _BACKWARD) * layers
    first, last = stage == 0, stage == stages - 1
    if kind == "F":
        return [("embedding", 3)] * first + found + [("loss", 6)] * last
    return [("loss_bwd", 7)] * last + found + [("embedding_bwd", 4)] * first


def items(order: Schedule, stage: int) -> list[tuple[str, Any]]:
    """What a stage does: ("A", action) and ("X", [(sender, receiver, kind, microbatch), ...]) in turn."""
    stages, found = len(order), []
    done = None
    for action in [*order[stage], None]:
        moves = []
        for one, sends in ((done, True), (action, False)):
            if one is None:
                continue
            ahead = 1 if one.kind == "F" else -1
            sender, receiver = (stage, stage + ahead) if sends else (stage - ahead, stage)
            if 0 <= sender < stages and 0 <= receiver < stages:
                moves.append((sender, receiver, one.kind, one.microbatch))
        same = len(moves) == 2 and done is not None and action is not None and done.kind != action.kind
        found += [("X", moves)] if same else [("X", [move]) for move in moves]
        if action is not None:
            found.append(("A", action))
        done = action
    return found


def played(order: Schedule, layers: int) -> list[list[tuple[str, Any, int, int]]]:
    """By stage: what, when from, when to."""
    stages = len(order)
    todo = [items(order, stage) for stage in range(stages)]
    free, arrived = [0] * stages, {}
    done: list[list[tuple[str, Any, int, int]]] = [[] for _ in range(stages)]
    while any(todo):
        before = [len(one) for one in todo]
        for stage, own in enumerate(todo):
            if not own:
                continue
            what, which = own[0]
            start = free[stage]
            if what == "A":
                end = start + sum(length for _, length in kernels(stage, stages, which.kind, layers))
            else:
                for move in which:
                    arrived[move, stage] = start
                if not all((move, other) in arrived for move in which for other in move[:2]):
                    continue
                end = SEND + max(arrived[move, other] for move in which for other in move[:2])
            own.pop(0)
            done[stage].append((what, which, start, end))
            free[stage] = end
        # A stage that has left for the other side to come counts as progress, too.
        assert before != [len(one) for one in todo] or len(arrived) < 10_000
    return done


def step_us(order: Schedule, layers: int) -> int:
    """From the first kernel to the end of the last optimizer."""
    ends = [own[-1][3] for own in played(order, layers)]
    return max(ends) + 10 * layers


def record(
    folder: Path,
    order: Schedule,
    layers: int,
    *,
    autograd: bool = True,
    groups: bool = True,
    steps: int = 1,
    peers: bool = False,
) -> list[Path]:
    """Traces of all stages, one rank each, as a profiler writes them; ``peers``: exchanges name theirs."""
    folder.mkdir(exist_ok=True)
    stages, files = len(order), []
    span = step_us(order, layers) + 100
    done = played(order, layers)
    for stage in range(stages):
        events: list[Event] = []
        corr = 1
        for number in range(steps):
            origin = number * span + 50.0
            called = origin - 40
            events.append(step(number, called, span - 20))
            for what, which, start, end in done[stage]:
                if what == "A":
                    begun, at = called, start
                    for name, length in kernels(stage, stages, which.kind, layers):
                        events.append(call("cudaLaunchKernel", called, 0.004, corr=corr))
                        events.append(kernel(name, origin + at, length, corr=corr))
                        called, at, corr = called + 0.01, at + length, corr + 1
                    if which.kind == "B" and autograd:
                        events.append(
                            host("autograd::engine::evaluate_function: MmBackward0", begun, called, 2)
                        )
                    continue
                if peers:
                    events += [issued(stage, move, called) for move in which]
                record_corr, wait_corr = corr, corr + 1
                waits = {"stream": 20, "wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": record_corr}
                events += [
                    call("cudaEventRecord", called, 0.001, corr=record_corr),
                    call("cudaStreamWaitEvent", called + 0.002, 0.001, corr=wait_corr),
                    sync_record("Stream Wait Event", wait_corr, **waits),
                    call("cudaLaunchKernelExC", called + 0.004, 0.001, corr=corr + 2),
                    kernel(
                        _NAME, origin + start, end - start, stream=20, corr=corr + 2,
                        **(meta(stages) if groups else {}),
                    ),
                    call("cudaEventRecord", called + 0.006, 0.001, corr=corr + 3),
                    call("cudaStreamWaitEvent", called + 0.008, 0.001, corr=corr + 4),
                    sync_record(
                        "Stream Wait Event", corr + 4, stream=7, wait_on_stream=20,
                        wait_on_cuda_event_record_corr_id=corr + 3,
                    ),
                ]  # fmt: skip
                called, corr = called + 0.01, corr + 5
            begun = called
            events.append(call("cudaLaunchKernel", called, 0.004, corr=corr))
            events.append(kernel("multi_tensor_adam", origin + done[stage][-1][3], 10 * layers, corr=corr))
            events.append(host("Optimizer.step#Adam.step", begun, called + 0.005, 1, "user_annotation"))
            corr += 1
        header = {"distributedInfo": {"rank": stage, "world_size": stages}}
        files.append(write(folder / f"rank{stage}.json", events, **header))
    return files


def issued(stage: int, move: tuple[int, int, str, int], at: float) -> Event:
    """The call of a send or receive inside a batch."""
    sender, receiver = move[:2]
    sends = sender == stage
    towards = {"Dst Rank": receiver} if sends else {"Src Rank": sender}
    args = {"Collective name": "send" if sends else "recv", "Process Group Name": "pp", **towards}
    return {**host("record_param_comms", at, at + 0.001, 1), "args": args}


def meta(stages: int) -> dict[str, Any]:
    """NCCL's metadata of a send or receive among all stages."""
    return {
        "Collective name": "coalesced", "In msg nelems": 1024, "Out msg nelems": 1024, "dtype": "BFloat16",
        "Group size": stages, "Process Group Name": "pp", "Process Group Ranks": str(list(range(stages))),
    }  # fmt: skip


def host(name: str, start: float, end: float, tid: int, cat: str = "cpu_op") -> Event:
    """A framework's event on the host."""
    return {"ph": "X", "cat": cat, "name": name, "pid": 9, "tid": tid, "ts": start, "dur": end - start}
