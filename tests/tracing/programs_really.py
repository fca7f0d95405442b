"""Traces of others' programs beside real runs: ``python -m tests.tracing.programs_really FOLDER [NAME ...]``.

``FOLDER`` holds checkouts of pytorch/examples (``examples``) and nanoGPT (``nanoGPT``, with tokens in
``data/tiny``), and the environment what they import (minGPT-ddp: hydra-core and fsspec).  Each program,
unmodified, is run by two processes with gloo, for which what it asks of a GPU is done on the CPU, and traced;
collectives of the third step must be the same: order, kind and bytes.
"""

from __future__ import annotations

import json
import os
import runpy
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.overrides import TorchFunctionMode

from tests.tracing.against import events
from tests.tracing.real_run import STEP, Watch
from workloads.tracing.drive import rank_run
from workloads.tracing.drive.rounds import workers
from workloads.tracing.drive.script_job import ScriptJob


class Program(NamedTuple):
    """A script below the folder of checkouts, and how it is run."""

    script: str
    ranks: int
    arguments: tuple[str, ...] = ()


_PARALLEL = "examples/distributed/tensor_parallelism"
PROGRAMS = {
    "fsdp2": Program("examples/distributed/FSDP2/example.py", 2),
    "fsdp2-mixed": Program("examples/distributed/FSDP2/example.py", 2, ("--mixed-precision",)),
    "tp": Program(f"{_PARALLEL}/tensor_parallel_example.py", 2),
    "sp": Program(f"{_PARALLEL}/sequence_parallel_example.py", 2),
    "ddp-tutorial": Program(
        "examples/distributed/ddp-tutorial-series/multigpu_torchrun.py", 2, ("10", "5")
    ),
    "mingpt-ddp": Program(
        "examples/distributed/minGPT-ddp/mingpt/main.py",
        2,
        ("data_config.path=data/input.txt", "gpt_config.n_layer=2", "gpt_config.n_embd=64",
         "gpt_config.n_head=2", "trainer_config.batch_size=8", "trainer_config.data_loader_workers=0",
         "trainer_config.use_amp=False"),
    ),
    "nanogpt": Program(
        "nanoGPT/train.py",
        2,
        ("--dataset=tiny", "--compile=False", "--gradient_accumulation_steps=4", "--n_layer=2", "--n_embd=64",
         "--n_head=2", "--block_size=64", "--batch_size=4", "--max_iters=5", "--eval_iters=1",
         "--dtype=bfloat16"),
    ),
}  # fmt: skip
#: The rank that is compared.
RANK = 1


class _OnCpu(TorchFunctionMode):
    """What is asked of a GPU is done on the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ in ("to", "_parse_to"):  # a number is a GPU's
            args = ["cpu" if type(one) is int else one for one in args]
        kwargs = {name: _moved(one) for name, one in (kwargs or {}).items()}
        return func(*map(_moved, args), **kwargs)


def _moved(value: Any) -> Any:
    if isinstance(value, torch.device):
        return torch.device("cpu") if value.type == "cuda" else value
    return "cpu" if isinstance(value, str) and value.partition(":")[0] == "cuda" else value


def _stand_in_for_gpus() -> None:
    accelerator: Any = torch.accelerator
    accelerator.is_available = lambda: True
    accelerator.device_count = lambda: 8
    # torch itself asks for one that is there.
    accelerator.current_accelerator = lambda check_available=False: (
        None if check_available else torch.device("cuda")
    )
    accelerator.set_device_index = accelerator.device_index = lambda *_: nullcontext()
    torch.cuda.set_device = lambda *_: None
    torch.Tensor.pin_memory = lambda self, *_: self  # type: ignore[method-assign]
    torch.backends.cuda.enable_flash_sdp(False)  # DTensor does not know the CPU's kernel
    start, mesh = dist.init_process_group, dist.device_mesh.init_device_mesh
    dist.init_process_group = lambda *_, **__: start("gloo")

    def made(device_type: str, *args: Any, **kwargs: Any) -> Any:
        return mesh(_moved(device_type), *args, **kwargs)

    dist.device_mesh.init_device_mesh = made
    vars(dist)["init_device_mesh"] = made
    _without(torch.nn.parallel.DistributedDataParallel, "device_ids")
    _without(torch.utils.data.DataLoader, "pin_memory")


def _without(cls: Any, option: str) -> None:
    init = cls.__init__
    cls.__init__ = lambda self, *args, **options: init(
        self, *args, **{name: value for name, value in options.items() if name != option}
    )


def be_rank(script: str, out: str, arguments: Sequence[str]) -> None:
    """Run the script as the rank that the environment says; ``out`` gets the events of its third step."""
    sys.argv, sys.path[0] = [script, *arguments], str(Path(script).parent)
    os.chdir(sys.path[0])
    _stand_in_for_gpus()
    watch = Watch()

    def stepped(*_: Any) -> None:
        watch.new_step()
        if len(watch.steps) == STEP + 2:
            Path(out).write_text(json.dumps(watch.steps[STEP]), encoding="utf-8")
            try:
                dist.barrier()  # no connection closes under a peer's call
            finally:
                os._exit(0)

    register_optimizer_step_post_hook(stepped)
    with watch, _OnCpu():
        runpy.run_path(script, run_name="__main__")


def really(program: Program, script: Path, folder: Path) -> list[tuple[str, int]]:
    """Collectives of a real run's third step, and their bytes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    ranks = []
    for rank in range(program.ranks):
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environment |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(program.ranks)}
        environment |= {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.pathsep.join(sys.path)}
        out = folder / f"{rank}.json"
        command = [sys.executable, "-W", "ignore", "-m", __spec__.name, "--rank", str(script), str(out)]
        ranks.append(
            subprocess.Popen([*command, *program.arguments], env=environment, stdout=subprocess.DEVNULL)
        )
    codes = [one.wait(timeout=300) for one in ranks]
    if any(codes):
        sys.exit(f"{script.name} has not run with gloo: what it lacks stands above")
    seen = json.loads((folder / f"{RANK}.json").read_text(encoding="utf-8"))
    return [(event[1], event[2]) for event in seen if event[0] == "call"]


def traced(program: Program, script: Path) -> list[tuple[str, int]]:
    """Collectives of the traced step, and their bytes."""
    before = Path.cwd()
    os.chdir(script.parent)
    try:
        with workers(1) as pool:
            job = ScriptJob(script, program.arguments, world_size=program.ranks, gpus_per_node=program.ranks)
            found = pool.submit(rank_run.run_rank, job, RANK).result()
    finally:
        os.chdir(before)
    return [(one.name, one.num_bytes) for one in events(found.program) if one.is_call]


def main(checkouts: str, names: Sequence[str]) -> int:
    """Print a line for each program; the exit code is 1 where one differs."""
    differ = False
    for name in names or PROGRAMS:
        program = PROGRAMS[name]
        script = Path(checkouts).resolve() / program.script
        with tempfile.TemporaryDirectory() as folder:
            expected = really(program, script, Path(folder))
        found = traced(program, script)
        same = found == expected and bool(expected)
        differ |= not same
        size = sum(num_bytes for _, num_bytes in expected)
        print(f"{name}: {len(expected)} collectives of {size:,} bytes, {'the same' if same else 'DIFFERENT'}")
        for index, pair in enumerate(zip(expected, found, strict=False)):
            if pair[0] != pair[1]:
                print(f"  the first that differs is number {index}: really {pair[0]}, traced {pair[1]}")
                break
    return int(differ)


if __name__ == "__main__":
    if sys.argv[1] == "--rank":
        be_rank(sys.argv[2], sys.argv[3], sys.argv[4:])
    sys.exit(main(sys.argv[1], sys.argv[2:]))
