"""What trainers of language models do: ``trainers.py eighth | fused | lazy | ...``."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import distributed_c10d
from torch.utils.data import DataLoader, Dataset


def three_steps(parameters, loss):
    """Three steps of plain descent."""
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    for _ in range(3):
        loss().sum().backward()
        optimizer.step()


def eighth(_):
    """A layer of 8 bits, with a bias, behind one that learns."""
    import bitsandbytes as bnb

    base = bnb.nn.Linear8bitLt(64, 128, has_fp16_weights=False, threshold=6.0).cuda()
    assert base.weight.dtype == torch.int8 and base.weight.SCB.shape == (128,)
    model = nn.Linear(64, 64).cuda()
    three_steps(model.parameters(), lambda: base(model(torch.zeros(32, 64, device="cuda"))))


def overridden(_):
    """A trainer asks for states of 32 bits for its table of embeddings, before its optimizer is made."""
    import bitsandbytes as bnb

    model = nn.Sequential(nn.Embedding(128, 64), nn.Linear(64, 64, bias=False)).cuda()
    bnb.optim.GlobalOptimManager.get_instance().register_module_override(
        model[0], "weight", {"optim_bits": 32}
    )
    optimizer = bnb.optim.AdamW8bit(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.zeros(2, dtype=torch.long, device="cuda")).sum().backward()
        optimizer.step()


def fused(model):
    """A trainer's own Adam: a kernel over lists of lists as apex has it, and a class for the host's part."""
    from torch.utils.cpp_extension import CUDA_HOME, load_inline

    said = subprocess.check_output([CUDA_HOME + "/bin/nvcc", "-V"], text=True).split()
    assert said[said.index("release") + 1].rstrip(",") == torch.version.cuda
    code = """
        void multi_tensor_adam_cuda(int chunk, at::Tensor noop, std::vector<std::vector<at::Tensor>> lists) {}
        void gathered(at::Tensor noop, const std::vector<std::vector<at::Tensor>> lists, at::Tensor out) {}
        void Host_Adam::step(float lr, torch::Tensor &params) { params.add_(lr); }
        PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
          m.def("multi_tensor_adam", &multi_tensor_adam_cuda);
          m.def("gathered", &gathered);
          py::class_<Host_Adam>(m, "HostAdam").def(py::init<float>()).def("step", &Host_Adam::step);
        }
    """
    module = load_inline("of_a_trainer", code)
    assert not hasattr(module, "step")
    on_host = module.HostAdam(0.1)
    on_host.step(0.1, torch.zeros(4))
    weight, noop = model.cuda().weight, torch.zeros(1, dtype=torch.int32, device="cuda")
    states = [torch.zeros_like(weight) for _ in range(2)]
    optimizer = torch.optim.SGD([model.bias], lr=0.1)
    for _ in range(3):
        model(torch.zeros(2, 4, device="cuda")).sum().backward()
        module.multi_tensor_adam(65536, noop, [[weight.grad], [weight], *([one] for one in states)])
        module.gathered(noop, [[weight], states], torch.empty_like(weight))
        optimizer.step()


class Later(torch.Tensor):
    """Memory comes when the model is cut into shards."""

    def __new__(cls):
        return torch.Tensor._make_subclass(cls, torch.empty(0))


def lazy(model):
    """Parameters that get their memory, and their class back, long after they were made."""
    weight = nn.Parameter(Later())
    weight.note, model.weight = "kept", weight
    assert isinstance(weight, Later)
    weight.__class__ = nn.Parameter
    del weight._is_param
    weight.data = torch.zeros(4, 4, device="cuda")
    assert model.cuda().weight is weight and weight.note == "kept" and weight.is_cuda
    assert isinstance(weight, nn.Parameter) and weight.requires_grad
    three_steps(model.parameters(), lambda: model(torch.zeros(2, 4, device="cuda")))


class Tokens(Dataset):
    """Made on the GPU, as benchmarks make theirs."""

    def __init__(self):
        self.tokens = torch.randint(0, 4, (12, 4), device="cuda")
        self.mask = torch.ones_like(self.tokens)

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return {"tokens": self.tokens[index], "mask": self.mask[index]}


def samples(model):
    """A batch is put together on the GPU, and its mask is known to be all true."""
    optimizer = torch.optim.SGD(model.cuda().parameters(), lr=0.1)
    for batch in DataLoader(Tokens(), batch_size=4, shuffle=True):
        assert torch.all(batch["mask"] == 1)
        model(batch["tokens"].float()).sum().backward()
        optimizer.step()


def messages(model):
    """An object as bytes that are sent by the program itself, which asks its group for NCCL."""
    dist.init_process_group("nccl")
    group, rank = distributed_c10d._get_default_group(), dist.get_rank()
    assert group.name() == distributed_c10d.Backend.NCCL
    optimizer = torch.optim.SGD(model.cuda().parameters(), lr=0.1)
    for _ in range(3):
        if rank == 0:
            sent, size = distributed_c10d._object_to_tensor({"shape": (2, 4)}, torch.device("cuda", 0), group)
            dist.send(size, 1)
            dist.send(sent, 1)
        else:
            size = torch.empty(1, dtype=torch.long, device="cuda")
            dist.recv(size, 0)
            came = torch.empty(size.item(), dtype=torch.uint8, device="cuda")
            dist.recv(came, 0)
            shape = distributed_c10d._tensor_to_object(came, size.item(), group)["shape"]
            assert shape == (2, 4)
        model(torch.zeros(2, 4, device="cuda")).sum().backward()
        optimizer.step()


def shared(_):
    """Ranks that share sequences, by what flash-attn has beside attention, asked for its version."""
    import importlib.metadata

    import flash_attn
    from flash_attn.bert_padding import rearrange
    from flash_attn.utils.distributed import all_gather

    assert importlib.metadata.version("flash-attn") == importlib.metadata.version("flash_attn")
    assert importlib.metadata.version("flash_attn") == flash_attn.__version__
    for absent in ("transformer_engine", "no-such-package"):  # the first, a library may run without
        try:
            raise SystemExit(importlib.metadata.version(absent))
        except importlib.metadata.PackageNotFoundError:
            pass
    dist.init_process_group("nccl")
    model = nn.Linear(4, 4).cuda()

    def loss():
        rows = rearrange(torch.zeros(1, 2, 4, device="cuda"), "b s ... -> (b s) ...")
        return all_gather(model(rows), dist.group.WORLD) * 2

    three_steps(model.parameters(), loss)


def decoded(_):
    """A new token to a cache that is filled in part, in the middle of a step."""
    from flash_attn import flash_attn_with_kvcache

    model, cache = nn.Linear(64, 256).cuda(), torch.zeros(2, 8, 2, 64, device="cuda")
    filled = torch.tensor([5, 3], dtype=torch.int32).cuda()

    def loss():
        found = model(torch.zeros(2, 1, 64, device="cuda"))
        new = torch.zeros(2, 1, 2, 64, device="cuda")
        query = found.detach().view(2, 1, 4, 64)
        assert flash_attn_with_kvcache(query, cache, cache, new, new, cache_seqlens=filled).shape == (
            2,
            1,
            4,
            64,
        )
        return found

    three_steps(model.parameters(), loss)


def resumable(model):
    """Loaders that are no ``DataLoader`` underneath, with processes of their own."""
    folder = Path(tempfile.mkdtemp()) / "torchdata" / "stateful_dataloader"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    (folder / "__init__.py").touch()
    (folder / "stateful_dataloader.py").write_text(
        """
class StatefulDataLoader:
    def __init__(self, dataset, batch_size=1, num_workers=0, pin_memory=False, snapshot_every_n_steps=1):
        assert num_workers == 0 and not pin_memory and snapshot_every_n_steps == 2
        self.dataset, self.batch_size = dataset, batch_size
    def __iter__(self):
        return iter(self.dataset.split(self.batch_size))
"""
    )
    sys.path.insert(0, str(folder.parents[1]))
    from torchdata.stateful_dataloader.stateful_dataloader import StatefulDataLoader

    loader = StatefulDataLoader(
        torch.zeros(6, 4), 2, num_workers=8, pin_memory=True, snapshot_every_n_steps=2
    )
    batches = iter(loader)
    three_steps(model.cuda().parameters(), lambda: model(next(batches).cuda()))
    shutil.rmtree(folder.parents[1])


if __name__ == "__main__":
    globals()[sys.argv[1]](nn.Linear(4, 4))
