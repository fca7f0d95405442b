"""What programs do beside training: ``around.py downloaded | evaluated | asserted | ordered | ...``."""

import contextlib
import copy
import io
import os
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset


def downloaded(model):
    """Trained weights would come from the network; what a library can use it asks before."""
    state = torch.hub.load_state_dict_from_url("https://example.org/no-such-weights.pth")
    for weights in (state.pop("ema"), {name[7:]: one for name, one in state["model"].items()}):
        assert not model.load_state_dict(weights).missing_keys
    assert "xcit" not in torch.hub.list("facebookresearch/no-such:main")
    library = "import importlib.util as u; found = [u.find_spec(n) for n in ('transformer_engine', 'mpi4py')]"
    exec(compile(library, "/opt/site-packages/library.py", "exec"), names := {})
    assert names["found"] == [None, None]
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    assert (world.rank, world.Get_size()) == (int(os.environ["RANK"]), 2)
    assert dist.is_torchelastic_launched()
    dist.init_process_group("nccl")
    assert world.bcast(world.rank) == 0 and world.allgather(world.rank) == [0, 1] and world.allreduce(2) == 4
    optimizer = torch.optim.SGD(model.cuda().parameters(), lr=0.1)
    for _ in range(3):
        model(torch.zeros(2, 4, device="cuda")).sum().backward()
        optimizer.step()


def evaluated(model):
    """A frozen copy that is asked in each step is part of it; so is an evaluation, which is said."""
    model.cuda()
    fixed = copy.deepcopy(model).eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        batch = torch.zeros(2, 4, device="cuda")
        with torch.no_grad():
            wanted = fixed(batch)
        (model(batch) - wanted).sum().backward()
        optimizer.step()


def asserted(model):
    """What is not known is as the program asserts."""
    optimizer = torch.optim.SGD(model.cuda().parameters(), lr=0.1)
    for _ in range(3):
        boxes = model(torch.rand(2, 4, device="cuda"))
        assert (boxes[:, 2:] >= boxes[:, :2]).all()
        assert boxes.ndim == 2 and not (boxes > 1e6).any().item(), "too large"
        below = bool((boxes < 0).any())
        assert not below
        if not (boxes[:, 2:] >= boxes[:, :2]).all():
            raise ValueError(f"boxes1 must be in corner format, but got {boxes}")
        if boxes.ndim != 2 or (boxes > 1e6).any():
            raise RuntimeError
        boxes.sum().backward()
        optimizer.step()


def legacy(model):
    """Types of tensors and constructors from before there were devices; a terminal's size."""
    rows, columns = os.popen("stty size").read().split()
    assert int(rows) > 0 and int(columns) > 0
    optimizer = torch.optim.SGD(model.cuda().parameters(), lr=0.1)
    nothing = torch.cuda.FloatTensor(2, 4).fill_(0.0)
    for _ in range(3):
        batch = torch.zeros(2, 4).type(torch.cuda.FloatTensor) + torch.cuda.FloatTensor(np.ones((2, 4)))
        assert batch.is_cuda and batch.dtype == torch.float32 and batch.tolist() == [[1.0] * 4] * 2
        assert batch.type("torch.cuda.HalfTensor").dtype == torch.float16
        assert torch.cuda.LongTensor([3, 1]).tolist() == [3, 1]
        model(batch + nothing).sum().backward()
        optimizer.step()


def ordered(model):
    """Orders of what the GPU holds: of all, of the largest, drawn; masks made of them have sizes."""
    noise = torch.rand(2, 8, device="cuda")
    largest = torch.topk(noise.flatten(), 3)[1].tolist()
    assert len(set(largest)) == 3 and min(largest) > 0 and max(largest) < 16
    assert sorted(torch.argsort(noise, dim=1, stable=True)[1].tolist()) == list(range(8))
    assert sorted(torch.randperm(8, device="cuda").tolist()) == list(range(8))
    hidden = torch.ones(2, 8, device="cuda").scatter(1, noise.argsort(dim=1)[:, :6], 0)
    optimizer = torch.optim.SGD(model.cuda().parameters(), lr=0.1)
    for _ in range(3):
        model(torch.rand(2, 8, 4, device="cuda")[hidden == 0]).sum().backward()
        optimizer.step()


def drawn_few(model):
    """A few of many boxes are drawn, as detectors do: no more than were set are selected."""
    rows = torch.rand(64, 4, device="cuda")
    optimizer = torch.optim.SGD(model.cuda().parameters(), lr=0.1)
    for _ in range(3):
        masks = []
        for drawn, many in ((4, 64), (8, 100_000)):  # of more than are followed, too
            candidates = torch.where(rows.new_empty(many) > 0.5)[0]
            places = candidates[torch.randperm(candidates.numel(), device="cuda")[:drawn]]
            mask = torch.zeros_like(rows.new_empty(many), dtype=torch.uint8)
            mask[places] = 1
            masks.append(mask[:64])
        chosen = torch.where(masks[0] | masks[1].clone())[0]
        lost = torch.cat([masks[0], masks[1]]) > 0
        assert rows.new_empty(128)[lost].shape == chosen.shape == (12,)
        model(rows[chosen]).sum().backward()
        optimizer.step()


def typed(model):
    """Code that asks for the class itself, here and in a module."""
    device = model.cuda()(torch.rand(2, 4, device="cuda"))
    assert type(device) is torch.Tensor and torch.Tensor == type(device)  # noqa: E721
    assert type(device) in (list, torch.Tensor) and type(device).__name__ == "Tensor"
    assert type(device) is type(torch.zeros(2)) and type(model.weight) is nn.Parameter
    assert type(model) is nn.Linear and type(int) is type
    folder = Path(tempfile.mkdtemp())
    (folder / "asks_for_types.py").write_text("def is_tensor(x):\n    return type(x) is type(x.cpu())\n")
    sys.path.insert(0, str(folder))
    import asks_for_types

    assert asks_for_types.is_tensor(device) and not list(folder.glob("*/*.pyc"))
    shutil.rmtree(folder)
    train(model)


def measured(model):
    """A metric inside of a model moves its states itself."""

    class Mean(nn.Module):
        def __init__(self):
            super().__init__()
            self.total = torch.tensor(0.0)

        def _apply(self, fn):
            super()._apply(fn)
            self.total = fn(self.total)
            return self

    whole = nn.ModuleDict({"model": model, "mean": Mean()}).to(torch.device("cuda", 0))
    whole["mean"].total += model(torch.rand(2, 4, device="cuda")).detach().sum()
    assert whole["mean"].total.is_cuda
    train(model)


def aligned(model):
    """Lengths of what is aligned come from both sides."""
    optimizer = torch.optim.SGD(model.cuda().parameters(), lr=0.1)
    targets = torch.ones(2, 3, dtype=torch.long, device="cuda")
    for _ in range(3):
        scores = model(torch.rand(2, 4, device="cuda")).expand(8, 2, 4).log_softmax(-1)
        lengths = (torch.rand(2, 8, device="cuda") > 0.5).sum(-1)
        nn.functional.ctc_loss(scores, targets, lengths, torch.tensor([3, 2])).backward()
        optimizer.step()


def sampled(model):
    """Samples that are made on the GPU; a sparse matrix of a large identity."""
    steps = torch.eye(300).to_sparse().cuda()
    assert steps._nnz() == 300
    optimizer = torch.optim.SGD(model.cuda().parameters(), lr=0.1)
    for batch in DataLoader(Samples(), batch_size=2):
        assert batch.is_cuda and batch.shape == (2, 4)
        model(batch).sum().backward()
        optimizer.step()


def defaults(_):
    """A default type, a default device and a device of a block make tensors on the GPU."""
    with torch.device("cuda"):
        assert torch.tensor([1]).is_cuda and torch.zeros(1).is_cuda
    torch.set_default_tensor_type("torch.cuda.FloatTensor")
    made = torch.Tensor([1.0, 2.0])
    assert made.is_cuda and torch.tensor([1.0]).is_cuda and nn.Linear(2, 2).weight.is_cuda
    assert isinstance(made, torch.cuda.FloatTensor) and not isinstance(made, torch.cuda.HalfTensor)
    assert made.type() == "torch.cuda.FloatTensor" and torch.arange(3).tolist() == [0, 1, 2]
    train(nn.Linear(4, 4))
    torch.set_default_tensor_type(torch.FloatTensor)
    assert not torch.Tensor([1.0]).is_cuda and not torch.zeros(1).is_cuda


def counted(_):
    """A program counts the GPUs of its node itself."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES") or os.popen("nvidia-smi -L").read()
    assert len(listed.strip().split("\n")) == torch.cuda.device_count() == 2
    train(nn.Linear(4, 4).cuda())


class BareNorm(torch.autograd.Function):
    """A function of a program's own around kernels that flash-attn's repository builds."""

    @staticmethod
    def forward(ctx, x, gamma):
        import dropout_layer_norm as kernels

        made, total, mask, mean, deviation = kernels.dropout_add_ln_fwd(
            *(x, None, gamma, None, None, None, None, None, 0.0, 1e-5, 1.0, 0, None, False, True)
        )
        assert total is None and mask is None
        ctx.save_for_backward(x, gamma, mean, deviation)
        return made

    @staticmethod
    def backward(ctx, dz):
        import dropout_layer_norm as kernels

        x, gamma, mean, deviation = ctx.saved_tensors
        given = (dz, None, x, None, None, mean, deviation, gamma, None, None, None, None, 0.0, 1.0, 0)
        of_x, of_residual, of_gamma, *_ = kernels.dropout_add_ln_bwd(*given, False, True)
        assert of_residual is None
        return of_x, of_gamma


def drawn(model):
    """Initial weights that are drawn again until they lie within bounds."""
    for width in (4, 80, 300):
        weight = nn.Linear(width, width).weight
        nn.init.trunc_normal_(weight, std=1.0, a=-0.5, b=0.5)
    nn.init.trunc_normal_(model.weight, std=1.0, a=-0.5, b=0.5)
    assert 0 < model.weight.abs().max().item() <= 0.5
    train(model.cuda())


def bare(model):
    """Kernels of flash-attn's repository that are not attention; who looks them up finds whose they are."""
    from importlib.metadata import packages_distributions

    import rotary_emb
    import xentropy_cuda_lib as losses

    assert packages_distributions()["flash_attn"] == ["flash-attn"]
    gamma = nn.Parameter(torch.ones(4, device="cuda"))
    optimizer = torch.optim.SGD([gamma, *model.cuda().parameters()], lr=0.1)
    turned, half = torch.empty(2, 2, 4, device="cuda"), torch.ones(2, 2, device="cuda")
    labels = torch.zeros(2, device="cuda", dtype=torch.int64)
    for _ in range(3):
        logits = model(BareNorm.apply(torch.zeros(2, 4, device="cuda"), gamma))
        rotary_emb.apply_rotary(half, half, half, half, turned[0, :, :2], turned[0, :, 2:], False)
        found, lse = losses.forward(logits.detach(), labels, 0.0)
        logits.backward(losses.backward(found, logits.detach(), lse, labels, 0.0, False, 4))
        optimizer.step()


def grouped(model):
    """Products of groups in fp32; an integer that nobody knows, but that is clamped."""
    found = torch.rand(4, device="cuda").long()
    assert found[0].item() == 0 and found.clamp(min=1)[0].item() == 1 and found.clamp_(2)[1].item() == 2
    x, weights = (nn.Parameter(torch.zeros(*shape, device="cuda")) for shape in ((16, 4), (2, 4, 8)))
    optimizer = torch.optim.SGD([x, weights, *model.cuda().parameters()], lr=0.1)
    for _ in range(3):
        ends = torch.tensor([4, 16], dtype=torch.int32, device="cuda")
        torch._grouped_mm(x, weights, offs=ends).sum().backward()
        model(x).sum().backward()
        optimizer.step()


def groups_unknown(model):
    """Products of groups whose ends nobody knows."""
    x, weights = (nn.Parameter(torch.zeros(*shape, device="cuda")) for shape in ((16, 8), (2, 8, 8)))
    optimizer = torch.optim.SGD([x, weights, *model.cuda().parameters()], lr=0.1)
    for _ in range(3):
        ends = (16 * torch.rand(2, device="cuda")).int()
        torch._grouped_mm(x, weights, offs=ends).sum().backward()
        torch._grouped_mm(x.bfloat16(), weights.bfloat16(), offs=(16 * torch.rand(2, device="cuda")).int())
        model(x[:, :4]).sum().backward()
        optimizer.step()


def built_for_cuda(model):
    """A library whose compiled part is for another build of torch goes on without that."""
    folder = Path(tempfile.mkdtemp())
    (folder / "torchaudio" / "_extension").mkdir(parents=True)
    loads = "import ctypes\ndef _load_lib(lib): return bool(ctypes.CDLL(f'/no/{lib}.so'))\n"
    (folder / "torchaudio" / "_extension" / "utils.py").write_text(loads)
    asks = "from .utils import _load_lib\navailable = _load_lib('_torchaudio')\n"
    (folder / "torchaudio" / "_extension" / "__init__.py").write_text(asks)
    (folder / "torchaudio" / "__init__.py").touch()
    sys.path.insert(0, str(folder))
    from torchaudio import _extension

    assert not _extension.available
    shutil.rmtree(folder)
    train(model.cuda())


def overwritten(model):
    """Files of a real run are opened to save into: by torch, and by a library that saves in memory first."""
    folder = Path(tempfile.mkdtemp())
    for name in ("last.pt", "best.pt", "notes"):
        (folder / name).write_bytes(b"of a real run")
    model.cuda()
    for _ in range(2):
        with (folder / "last.pt").open("wb") as file:
            torch.save(model.state_dict(), file)
    in_memory = io.BytesIO()
    torch.save(model.state_dict(), in_memory)
    with (folder / "best.pt").open("wb") as file:
        file.write(in_memory.getvalue())
        assert file.writable() and not file.closed
    assert file.closed
    os.chmod(folder / "best.pt", 0o644)  # noqa: PTH101
    os.utime(folder / "best.pt")
    with (folder / "notes").open("wb") as file:
        file.write(b"of this one, ")
        assert file.tell() == 13
        file.write(b"whole")
    (folder / "empty.pt").open("wb").close()
    for name in ("last.pt", "best.pt"):
        assert torch.load(folder / name)["weight"].shape == (4, 4)
        held = os.open(folder / name, os.O_RDONLY)  # past what is held
        assert os.read(held, 100) == b"of a real run"
    assert (folder / "notes").read_bytes() == b"of this one, whole"
    assert (folder / "empty.pt").read_bytes() == b""
    shutil.rmtree(folder)
    train(model)


def asked_of_cuda(model):
    """What programs that watch their memory and profile ask of CUDA; methods that TorchScript compiles."""
    torch.cuda.memory._record_memory_history(max_entries=100)
    assert torch.cuda.memory_snapshot() == [] and torch.cuda.get_allocator_backend() == "native"
    torch.cuda.profiler.start()
    torch.cuda.cudart().cudaProfilerStop()
    torch.cuda.set_sync_debug_mode(0)
    torch.cuda.reset_accumulated_memory_stats()
    assert torch.accelerator.memory_stats()["num_ooms"] == 0

    class Scripted(torch.jit.ScriptModule):
        def __init__(self):
            super().__init__()
            self.inner = model

        @torch.jit.script_method
        def forward(self, x):
            return nn.functional.normalize(self.inner(x), dim=-1, p=2.0)

    assert isinstance(Scripted(), torch.jit.ScriptModule) and not isinstance(model, torch.jit.ScriptModule)
    train(Scripted().cuda())


def handed_on(model):
    """Other ranks load what rank 0 has saved: behind a barrier, and without one."""
    dist.init_process_group("nccl")
    model.cuda()
    folder = Path(os.environ["HANDED_ON"])
    if dist.get_rank() == 0:
        torch.save({"step": 7, "model": model.state_dict()}, folder / "first.pt")
    dist.barrier()
    assert (folder / "first.pt").exists()
    state = torch.load(folder / "first.pt", map_location="cuda")
    assert state["step"] == 7 and state["model"]["weight"].shape == (4, 4)
    model.load_state_dict(state["model"])
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), folder / "second.pt")
        (folder / "first.pt").unlink()
    assert not (dist.get_rank() and (folder / "second.pt").exists())  # who has not met rank 0 sees nothing
    assert torch.load(folder / "second.pt")["bias"].shape == (4,)
    with contextlib.suppress(FileNotFoundError):
        torch.load(folder / "third.pt")
    dist.barrier()
    assert (folder / "second.pt").exists() and not (folder / "first.pt").exists()
    train(model)


def train(model):
    """Three steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.zeros(2, 4, device="cuda")).sum().backward()
        optimizer.step()


class Samples(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.full((4,), float(index)).cuda()


if __name__ == "__main__":
    vars()[sys.argv[1]](nn.Linear(4, 4))
