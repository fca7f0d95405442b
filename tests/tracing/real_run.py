"""Real gloo jobs of a few processes that run a script, once per mode, and write down what it communicates.

``python -m tests.tracing.real_run SCRIPT FOLDER MODE@RANKS=PORT...``.  Independent of the tracer: the
operators of c10d pass through a dispatch mode and do their work.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # every optimizer imports it: half a second of each rank
import torch.distributed as dist
import torch.distributed.fsdp
import torch.distributed.pipelining
import torch.distributed.tensor.experimental
import torch.distributed.tensor.parallel
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import TorchDispatchMode

#: Operator -> (collective, position of the group, whose bytes count: argument number, or -1 for the result).
CALLS = {
    "c10d::allreduce_": ("all_reduce", 1, 0),
    "c10d::_allgather_base_": ("all_gather", 2, 0),
    "c10d::_reduce_scatter_base_": ("reduce_scatter", 2, 1),
    "c10d::broadcast_": ("broadcast", 1, 0),
    "c10d::allgather_": ("all_gather", 2, 0),
    "c10d::alltoall_base_": ("all_to_all", 2, 1),
    "_c10d_functional::all_to_all_single": ("all_to_all", -1, 0),
    "c10d::send": ("send", 1, 0),
    "c10d::recv_": ("recv", 1, 0),
    "_c10d_functional::all_reduce": ("all_reduce", -1, 0),
    "_c10d_functional::all_gather_into_tensor": ("all_gather", -1, -1),
    "_c10d_functional::reduce_scatter_tensor": ("reduce_scatter", -1, 0),
}
STEP = 2  # the step that is kept


def num_bytes(value: Any) -> int:
    """Bytes of the tensors in ``value``."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    return sum(map(num_bytes, value)) if isinstance(value, list | tuple) else 0


class Watch(TorchDispatchMode):
    """Events of each step: ["call", collective, bytes, members, peer or -1], ["wait"] of a functional
    collective, ["wait", n] of the n-th send or receive of the step, ["op", name].
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.steps: list[list[list[Any]]] = [[]]
        self._works: list[Any] = []
        group, work = dist.ProcessGroup, dist.Work
        wait = work.wait
        for name in ("send", "recv"):
            setattr(group, name, self._numbered(getattr(group, name)))

        def watched(one: Any, *args: Any) -> Any:
            for number, known in enumerate(self._works):
                if known is one:
                    self.steps[-1].append(["wait", number])
            return wait(one, *args)

        work.wait = watched  # type: ignore[method-assign]

    def _numbered(self, original: Any) -> Any:
        def transfer(*args: Any) -> Any:
            made = original(*args)
            self._works.append(made)
            return made

        return transfer

    def new_step(self) -> None:
        """The step that follows is another one."""
        self.steps.append([])
        self._works.clear()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, FakeTensor) for kind in types):  # DTensor works out shapes
            return func(*args, **(kwargs or {}))
        for kind in types:
            if kind not in (torch.Tensor, torch.nn.Parameter) and issubclass(kind, torch.Tensor):
                return NotImplemented
        result = func(*args, **(kwargs or {}))
        name = func.name().partition(".")[0]
        if name in CALLS:
            collective, where, counted = CALLS[name]
            group = args[where]
            if isinstance(group, torch.ScriptObject):
                group = dist.ProcessGroup.unbox(group)
            elif isinstance(group, str):
                group = torch._C._distributed_c10d._resolve_process_group(group)  # type: ignore[arg-type]
            members = dist.get_process_group_ranks(group)
            size = num_bytes(result if counted < 0 else args[counted])
            peer = members[args[2]] if collective in ("send", "recv") else -1
            self.steps[-1].append(["call", collective, size, members, peer])
        elif name == "_c10d_functional::wait_tensor":
            self.steps[-1].append(["wait"])
        elif name.startswith("aten::"):
            self.steps[-1].append(["op", name])
        return result


def be_rank(script: str, out: Path, mode: str, rank: int, ranks: int, port: str) -> None:
    """Run the script as one rank; ``out`` gets the events of step 2."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_PORT=port)
    sys.argv = [script, mode]
    watch = Watch()
    register_optimizer_step_post_hook(lambda *_: watch.new_step())

    def leave(*_: Any) -> None:
        # Taking a gloo group down holds the GIL and waits for a thread that needs it to let go of the mode.
        out.write_text(json.dumps(watch.steps[STEP]), encoding="utf-8")
        try:
            dist.barrier()  # no connection closes under a peer's call
        finally:
            os._exit(0)

    dist.destroy_process_group = leave  # type: ignore[assignment]
    with watch:
        runpy.run_path(script, run_name="__main__")
    raise SystemExit(f"{script} does not destroy its process group")


def main(script: str, out: str, settings: list[str]) -> None:
    """Fork the ranks of every mode: torch is imported once, and each job is as fresh as a new process."""
    for setting in settings:
        job, _, port = setting.partition("=")
        mode, _, ranks = job.partition("@")
        children = []
        for rank in range(int(ranks)):
            child = os.fork()
            if child == 0:
                be_rank(script, Path(out) / f"{mode}.{rank}.json", mode, rank, int(ranks), port)
                os._exit(0)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
