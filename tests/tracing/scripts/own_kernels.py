"""Kernels that programs bring along: ``own_kernels.py recurrent | extension | scanned | rated | ...``."""

import shutil
import sys
import tempfile
import time
from multiprocessing import shared_memory
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn


def recurrent(model):
    """Sequences of several lengths, packed; a loss over their alignments; draws on the device."""
    model.cuda()
    cell, memory = nn.GRU(4, 8).cuda(), nn.LSTM(8, 4).cuda()
    optimizer = torch.optim.SGD([*model.parameters(), *cell.parameters(), *memory.parameters()], lr=0.1)
    for _ in range(3):
        given = nn.utils.rnn.pack_padded_sequence(model(torch.zeros(3, 2, 4).cuda()), torch.tensor([3, 2]))
        assert given.batch_sizes.tolist() == [2, 2, 1]
        found, lengths = nn.utils.rnn.pad_packed_sequence(memory(cell(given)[0])[0])
        assert found.shape == (3, 2, 4) and lengths.tolist() == [3, 2]
        share = torch.distributions.Beta(torch.ones((), device="cuda"), 1.0).sample()
        symbols = torch.ones(2, 1, dtype=torch.long, device="cuda")
        loss = nn.functional.ctc_loss(found.log_softmax(2), symbols, lengths, torch.tensor([1, 1]))
        (loss * share).backward()
        optimizer.step()


def extension(model):
    """Functions of an extension that is compiled: by schema, by what nobody has written, by signature."""
    from torch.utils.cpp_extension import load, load_inline

    source = Path(tempfile.mkdtemp()) / "scan.cpp"
    source.write_text(
        """
        void scale(int64_t n, torch::Tensor &x, torch::Tensor &y) { launch(n, x, y); }
        // m.def("of_a_comment", scale);
        TORCH_LIBRARY(scan_ops, m) {
          m.def("forward(Tensor w, Tensor "
                "x, Tensor(a!) y) -> ()");
          m.def("scale", scale);
        }
        """
    )
    assert load("scan", [str(source)], is_python_module=False) is None
    code = """
        torch::Tensor made(torch::Tensor x);
        void add_to(const torch::Tensor& x, torch::Tensor& y) {}
        std::vector<torch::Tensor> halved(torch::Tensor x, int n) {
            int rows = (int)x.size(0) / n;
            auto options = torch::TensorOptions().dtype(torch::kHalf).device(x.device());
            torch::Tensor y = torch::empty({rows, x.size(1)}, options);
            auto z = torch::zeros_like(x);
            if (n > 1) { int blocks = 7; launch(x, y, blocks); }
            return {y, z};
        }
        torch::Tensor either(torch::Tensor x, torch::Tensor& y) { if (x.numel()) { return x; } return y; }
    """
    module = load_inline("inline", code, functions=["made", "add_to", "halved", "either"])
    assert sys.modules["inline"] is module
    optimizer = torch.optim.SGD(model.cuda().parameters(), lr=0.1)
    for _ in range(3):
        x = model(torch.zeros(2, 4, device="cuda"))
        y, z = torch.empty_like(x), torch.empty_like(x)
        torch.ops.scan_ops.forward(x, x, y)
        torch.ops.scan_ops.scale(8, y, z)
        module.add_to(z, y)
        half, whole = module.halved(x, 2)
        assert (half.shape, half.dtype, whole.shape) == ((1, 4), torch.float16, (2, 4)) and half.is_cuda
        for function in (module.made, lambda x: module.either(x, x)):
            try:
                function(x)
                raise SystemExit("what it returns is not known")
            except Exception as error:
                assert "inline::made" in str(error) or "inline::either" in str(error)
        x.sum().backward()
        optimizer.step()
    shutil.rmtree(source.parent)


def scanned(model):
    """A convolution of each channel and a scan over states, by what mamba_ssm compiles."""
    import selective_scan_cuda
    from causal_conv1d import causal_conv1d_fn
    from causal_conv1d.cpp_functions import causal_conv1d_bwd_function, causal_conv1d_fwd_function

    optimizer = torch.optim.SGD(model.cuda().parameters(), lr=0.1)
    weight, states = torch.zeros(3, 2, device="cuda"), torch.zeros(3, 5, device="cuda")
    shared = torch.zeros(2, 1, 5, 4, device="cuda")
    for _ in range(3):
        x = model(torch.zeros(2, 3, 4, device="cuda"))  # batch, channels, steps
        found = causal_conv1d_fn(x, weight, activation="silu")
        again = causal_conv1d_fwd_function(x.detach(), weight, None, None, None, None, True)
        dx, dweight, dbias, _ = causal_conv1d_bwd_function(x.detach(), weight, None, again, None, None)
        assert (dx.shape, dweight.shape, dbias) == (x.shape, weight.shape, None)
        u = found.detach()
        out, kept, gated = selective_scan_cuda.fwd(u, u, states, shared, shared, None, u, None, True)
        assert kept.shape == (2, 3, 1, 10)
        given = (u, u, states, shared, shared, None, u, None, gated, kept, out, None, True, False)
        grads = selective_scan_cuda.bwd(*given)
        assert [one is None for one in grads] == [False] * 5 + [True, True, False]
        found.sum().backward()
        optimizer.step()


def rated(model):
    """Places of the largest: compared on the device, and read by the host."""
    optimizer = torch.optim.SGD(model.cuda().parameters(), lr=0.1)
    labels = torch.zeros(2, dtype=torch.long, device="cuda")
    for _ in range(3):
        scores = model(torch.rand(2, 4, device="cuda"))
        right = (scores.argmax(dim=-1) == labels).sum()  # accuracy, which nobody reads
        right += (scores.max(dim=-1)[1] == labels).sum()
        counts = torch.zeros(4, dtype=torch.long, device="cuda")
        chosen = scores.topk(2, dim=-1)[1].reshape(-1)
        counts.scatter_add_(0, chosen, torch.ones_like(chosen))
        assert counts.tolist() == [1, 1, 1, 1]
        ended = torch.full((2,), True, device="cuda") | (scores.sum(-1) > 3)  # whatever is not known
        assert ((scores.sum(-1) > 3).long() & ~ended).max().item() == 0
        assert (ended & torch.full((2,), False, device="cuda")).max().item() is False and bool(ended.all())
        scores.sum().backward()
        optimizer.step()


def tuned(model):
    """A tuner of the program's own for Triton's kernels, which asks the driver what GPU there is."""
    import triton
    import triton.language as tl
    from triton.runtime.autotuner import Autotuner

    assert tl.constexpr(-1) == -1 and tl.constexpr(-1).value == -1
    driver = triton.runtime.driver.active
    assert driver.get_current_target().backend == "cuda"
    assert driver.utils.get_device_properties(0)["multiprocessor_count"] == 132

    class Tuner(Autotuner):
        def run(self, *args, **kwargs):
            assert self.arg_names == ["x", "y", "BLOCK"] and self.keys == ["x"]
            return super().run(*args, **kwargs)

    @triton.jit
    def double(x, y, BLOCK: tl.constexpr):  # noqa: N803
        places = tl.where(BLOCK == 4, tl.program_id(0) * BLOCK, 0) + tl.arange(0, BLOCK)
        scale = tl.load(x) if BLOCK < 4 else 2  # a tensor either way
        tl.store(y + places, tl.load(x + places) * scale.to(tl.float32))

    kernel = Tuner(double, double.arg_names, [triton.Config({"BLOCK": 4})], ["x"], None, None)
    optimizer = torch.optim.SGD(model.cuda().parameters(), lr=0.1)
    for _ in range(3):
        x = model(torch.zeros(2, 4, device="cuda"))
        kernel[(2,)](x.detach(), torch.empty_like(x))
        assert kernel.best_config.kwargs == {"BLOCK": 4}
        x.sum().backward()
        optimizer.step()


def _asks_for_more(_model):
    """What a stand-in has not is not installed."""
    from apex import fp16_utils

    return fp16_utils


def apex(_model):
    """Norms and LAMB of apex; a parameter that is marked as Megatron of 2020 marks it."""
    from apex import amp
    from apex.normalization import FusedLayerNorm, MixedFusedRMSNorm
    from apex.optimizers import FusedLAMB

    for asks, error in ((_asks_for_more, ModuleNotFoundError), (amp.initialize, NotImplementedError)):
        try:
            asks(_model)
        except error:
            continue
        raise AssertionError(asks)
    amp.register_half_function(torch, "einsum")
    assert amp.initialize(_model, None, opt_level="O0") is _model
    model = nn.Sequential(nn.Linear(4, 4), FusedLayerNorm(4), MixedFusedRMSNorm(4)).cuda()
    model[0].weight.stride = 1
    assert model[0].weight.stride == 1 and model[0].weight.view(torch.uint8).shape == (4, 16)
    mixed = MixedFusedRMSNorm(4).cuda()  # results have the weights' type
    assert mixed(torch.zeros(2, 4, device="cuda", dtype=torch.bfloat16)).dtype is torch.float32
    assert mixed.bfloat16()(torch.zeros(2, 4, device="cuda")).dtype is torch.bfloat16
    optimizer = FusedLAMB(model.parameters(), lr=0.1, betas=(0.9, 0.99), weight_decay=0.1)
    for _ in range(3):
        model(torch.zeros(2, 4, device="cuda")).sum().backward()
        optimizer.step()


def shared(model):
    """The first rank of a node fills memory that the others read, and gives it back when it leaves."""
    dist.init_process_group("nccl")
    name, rank = sys.argv[2], dist.get_rank()
    if rank == 0:
        memory = shared_memory.SharedMemory(name, create=True, size=8)
        memory.buf[:2] = b"ab"
    dist.barrier()
    memory = memory if rank == 0 else shared_memory.SharedMemory(name)
    assert bytes(memory.buf[:2]) == b"ab"
    optimizer = torch.optim.SGD(model.cuda().parameters(), lr=0.1)
    memory.close()
    if rank == 0:  # as classes of programs do, too
        shared_memory._posixshmem.shm_unlink(memory._name)
    for _ in range(3):
        model(torch.zeros(2, 4, device="cuda")).sum().backward()
        optimizer.step()


def signalled(model):
    """The first rank tells the others by a file in a folder that they may go on, and removes both."""
    dist.init_process_group("nccl")
    signal = Path(sys.argv[2]) / "ready" / "now"
    if dist.get_rank() == 0:
        signal.parent.mkdir()
        signal.touch()
    while not (signal.exists() and signal.parent.is_dir() and signal.is_file()):
        time.sleep(0.01)
    assert not (signal.parent / "later").exists()
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(signal.parent)
    optimizer = torch.optim.SGD(model.cuda().parameters(), lr=0.1)
    for _ in range(3):
        model(torch.zeros(2, 4, device="cuda")).sum().backward()
        optimizer.step()


def moved(model):
    """Tokens go to their experts and back by an extension's functions without a graph."""
    from grouped_gemm import backend

    optimizer = torch.optim.SGD(model.cuda().parameters(), lr=0.1)
    chosen = torch.tensor([[0, 1], [1, 0], [1, 0]], dtype=torch.int32, device="cuda")
    for _ in range(3):
        tokens = model(torch.zeros(3, 4, device="cuda"))
        rows, places, _ = backend.permute(tokens, chosen, 0, [], 6)
        back = backend.unpermute(rows, places, torch.empty(0, 0, device="cuda"), 3, 2)
        grad, of_shares = backend.unpermute_bwd(back, rows, places, torch.ones(3, 2, device="cuda"))
        assert grad.shape == rows.shape == (6, 4) and back.shape == (3, 4) and of_shares.shape == (3, 2)
        tokens.sum().backward()
        optimizer.step()


def described(model):
    """Each rank tells the others something of its own length."""
    dist.init_process_group("nccl")
    optimizer = torch.optim.SGD(model.cuda().parameters(), lr=0.1)
    for _ in range(3):
        model(torch.zeros(2, 4, device="cuda")).sum().backward()
        found = [None, None]
        dist.all_gather_object(found, "x" * (10 + 20 * dist.get_rank()))
        assert [len(one) for one in found] == [10, 30]
        optimizer.step()


if __name__ == "__main__":
    globals()[sys.argv[1]](nn.Linear(4, 4))
