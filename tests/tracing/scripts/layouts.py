"""Tensors that are not dense: ``layouts.py sparse | neighbours | by_rows | moved | jagged | ...``."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel


def sparse():
    """Gradients of tables are rows: one table adds them as they are, the other one for each word."""
    words = torch.tensor([1, 5, 5, 7, 1, 1], device="cuda")
    table, bags = nn.Embedding(10, 4, sparse=True).cuda(), nn.EmbeddingBag(10, 4, sparse=True).cuda()
    plain, adam = torch.optim.SGD(bags.parameters(), lr=0.1), torch.optim.SparseAdam(table.parameters())
    for _ in range(3):
        loss = table(words).sum() + bags(words, torch.tensor([0, 2], device="cuda")).sum()
        loss.backward()
        assert bags.weight.grad.layout is torch.sparse_coo
        assert bags.weight.grad._nnz() == 6 and bags.weight.grad.coalesce()._nnz() == 3
        plain.step()
        adam.step()
        plain.zero_grad()
        adam.zero_grad()


def groups():
    """Rows of edges are added up for nodes (torch_scatter), on the host and on the GPU."""
    code = "try:\n  import torch_scatter as got\nexcept ImportError:\n  got = None"
    exec(compile(code, "/site-packages/library.py", "exec"), library := {})
    assert library["got"] is None  # it does without
    from torch_scatter import scatter, scatter_max, segment_csr

    nodes, rows = torch.tensor([2, 0, 2]), torch.tensor([[-1.0, 2.0], [3.0, 4.0], [-5.0, 6.0]])
    assert scatter(rows, nodes, 0).tolist() == [[3.0, 4.0], [0.0, 0.0], [-6.0, 8.0]]
    assert scatter(rows, nodes, 0, reduce="mean").tolist() == [[3.0, 4.0], [0.0, 0.0], [-3.0, 4.0]]
    assert [one.tolist() for one in scatter_max(rows[:, 0], nodes)] == [[3.0, 0.0, -1.0], [1, 3, 0]]
    bounds = torch.tensor([0, 2, 2, 3])
    assert segment_csr(rows, bounds, reduce="max").tolist() == [[3.0, 4.0], [0.0, 0.0], [-5.0, 6.0]]
    model = nn.Linear(2, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        sums = scatter(model(rows.cuda()), nodes.cuda(), 0)
        means = segment_csr(model(rows.cuda()), bounds.cuda(), reduce="mean")
        assert sums.shape == means.shape == (3, 4)
        (sums + means).sum().backward()
        optimizer.step()


def neighbours():
    """A layer over a graph: a sparse matrix of the host times rows of nodes."""
    edges = torch.tensor([[0, 1, 2, 3, 3], [1, 2, 3, 0, 1]])
    matrix = torch.sparse_coo_tensor(edges, torch.ones(5), (4, 4)).cuda()
    assert matrix.is_cuda and matrix._nnz() == 5
    model = nn.Sequential(nn.Linear(4, 4).cuda(), Times(matrix))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.zeros(4, 4, device="cuda")).sum().backward()
        optimizer.step()


class Times(nn.Module):
    """A matrix that is not learned times what comes."""

    def __init__(self, matrix):
        super().__init__()
        self.matrix = matrix

    def forward(self, x):
        return torch.sparse.mm(self.matrix, x)


def by_rows():
    """Entries by rows, made there."""
    torch.ones(2, 2, device="cuda").to_sparse_csr()


def moved():
    """Entries by rows, made on the host, where they are used."""
    matrix = torch.ones(2, 2).to_sparse_csr()
    assert (matrix @ matrix).to_dense().tolist() == [[2.0, 2.0]] * 2
    matrix.cuda()


def packed():
    """Sequences packed into one, as many tokens as they have; the first rank's are shorter."""
    table = nn.Embedding(10, 32, device="cuda")
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    for _ in range(3):
        for lengths in ([5, 9], [4, 3]) if int(os.environ["RANK"]) else ([2, 3], [4]):
            heads = table(torch.zeros(1, sum(lengths), dtype=torch.long, device="cuda")).unflatten(-1, [4, 8])
            heads = heads.transpose(1, 2)
            nn.functional.scaled_dot_product_attention(heads, heads, heads).sum().backward()
        optimizer.step()


def chunks():
    """A loss works out its gradients, half by half, in its forward pass."""
    model, head = nn.Linear(4, 4).cuda(), nn.Linear(4, 8).cuda()
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1)
    for _ in range(3):
        InChunks.apply(model(torch.zeros(6, 4, device="cuda")), head.weight).backward()
        optimizer.step()


class InChunks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        of_x, of_weight = torch.empty_like(x), torch.zeros_like(weight)
        for rows, made in zip(x.split(3), of_x.split(3), strict=True):
            with torch.enable_grad():
                rows.requires_grad_()
                loss = nn.functional.linear(rows, weight).sum()
                found, more = torch.autograd.grad(loss, (rows, weight))
            made.copy_(found)
            of_weight += more
        ctx.save_for_backward(of_x, of_weight)
        return loss.detach()

    @staticmethod
    def backward(ctx, grad):
        return ctx.saved_tensors


def wide():
    """Products of 16 bits are added to 32."""
    model = nn.Linear(4, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = (torch.zeros(*shape, device="cuda", dtype=torch.bfloat16) for shape in ((6, 8), (8, 3)))
    total = torch.zeros(6, 3, device="cuda")
    for _ in range(3):
        torch.addmm(total, x, y, out_dtype=torch.float32, out=total)
        assert torch.mm(x, y, out_dtype=torch.float32).dtype is total.dtype is torch.float32
        assert torch.bmm(x[None], y[None], out_dtype=torch.float32).shape == (1, 6, 3)
        model(torch.zeros(2, 4, device="cuda")).sum().backward()
        optimizer.step()


def labels():
    """A picture's label is looked up beside attention over its patches."""
    _label_pictures(torch.zeros(3, dtype=torch.long, device="cuda"))


def queries():
    """Of seven places that are attended to, five begin as labels."""
    _label_pictures(torch.zeros(3, 5, dtype=torch.long, device="cuda"))


def _label_pictures(labels):
    table = nn.Embedding(10, 32, device="cuda")
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    for _ in range(3):
        said = table(labels).view(3, -1, 32)
        patches = torch.zeros(3, 7 if labels.dim() == 1 else 2, 32, device="cuda")
        places = patches + said if labels.dim() == 1 else torch.cat([patches, said], 1)
        heads = places.unflatten(-1, [4, 8]).transpose(1, 2)
        nn.functional.scaled_dot_product_attention(heads, heads, heads).sum().backward()
        optimizer.step()


def heads():
    """Two ranks exchange halves of a sequence for heads; each looks up its half, or takes it of all."""
    _exchange_heads(whole=False)


def heads_of_all():
    """The other way."""
    _exchange_heads(whole=True)


def _exchange_heads(whole):
    dist.init_process_group("nccl")
    model = Halved().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.zeros(1, 8 if whole else 4, dtype=torch.long, device="cuda")).sum().backward()
        optimizer.step()


class Halved(nn.Module):
    """A table, and attention of 4 heads over what both ranks have."""

    def __init__(self):
        super().__init__()
        self.table, self.attention = nn.Embedding(10, 32), Exchanged()

    def forward(self, words):
        return self.attention(self.table(words)[:, :4])


class Exchanged(nn.Module):
    def forward(self, x):
        halves = x.unflatten(-1, (2, 2, 8)).permute(2, 1, 0, 3, 4).contiguous()
        found = AllToAll.apply(halves).flatten(0, 1).permute(1, 2, 0, 3)
        found = nn.functional.scaled_dot_product_attention(found, found, found)
        return AllToAll.apply(found.contiguous())


class AllToAll(torch.autograd.Function):
    """Gradients go back the same way."""

    @staticmethod
    def forward(ctx, x):
        made = torch.empty(x.shape, device="cuda")
        dist.all_to_all_single(made, x.contiguous())
        return made

    backward = forward


def vocabulary():
    """Ranks have halves of the vocabulary; attention is a module, as flash-attn has both."""
    import fused_dense_lib
    from flash_attn.losses.cross_entropy import CrossEntropyLoss
    from flash_attn.modules.embedding import ParallelGPT2Embeddings
    from flash_attn.modules.mha import FlashCrossAttention, FlashSelfAttention
    from transformer_engine.pytorch import LayerNormMLP

    dist.init_process_group("nccl")
    loss_of = CrossEntropyLoss(process_group=dist.group.WORLD)
    head = nn.Linear(32, 10, device="cuda", dtype=torch.bfloat16)
    assert not isinstance(head, ParallelGPT2Embeddings | LayerNormMLP)
    qkv = nn.Parameter(torch.zeros(1, 6, 3, 4, 8, device="cuda", dtype=torch.bfloat16))
    optimizer = torch.optim.SGD([*head.parameters(), qkv], lr=0.1)
    weight, bias = fused_dense_lib.linear_bias_wgrad(qkv[0, :, 0, 0], qkv[0, :, 0].flatten(1), True)
    assert weight.shape == (32, 8) and bias.shape == (32,)
    targets, ends = torch.zeros(6, dtype=torch.long, device="cuda"), torch.tensor([0, 2, 6]).cuda().int()
    for _ in range(3):
        whole = FlashSelfAttention(causal=True)(qkv)
        packed = FlashCrossAttention()(qkv[0, :, 0], qkv[0, :, 1:], None, ends, 4, ends, 4)
        loss_of(head(whole.flatten(2)[0] + packed.flatten(1)), targets).backward()
        optimizer.step()


def masked():
    """One mask is of more floats than are followed, the other of as many."""
    model = nn.Linear(4, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        large, small = (torch.arange(float(n)).cuda().add(1.0) < n for n in (5000, 4096))
        assert small.any().item() and not small.all().item()
        model(torch.zeros(4 if large.any().item() else 2, 4, device="cuda")).sum().backward()
        optimizer.step()


def jagged():
    """Attention over sequences of 5 and 9, none of them padded."""
    model = nn.Linear(32, 32, device="cuda", dtype=torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        parts = [torch.zeros(length, 32) for length in (5, 9)]
        x = torch.nested.nested_tensor(parts, layout=torch.jagged, device="cuda", dtype=torch.bfloat16)
        heads = model(x).unflatten(-1, [4, 8]).transpose(1, 2)
        nn.functional.scaled_dot_product_attention(heads, heads, heads).values().sum().backward()
        optimizer.step()


def chosen():
    """Attention of several kinds, for torch to choose a kernel."""
    model = nn.Linear(64, 64).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    attend = nn.functional.scaled_dot_product_attention
    for _ in range(3):
        whole = model(torch.zeros(2, 4, 8, 64, device="cuda"))
        half, wide = whole.bfloat16(), torch.cat([whole] * 4, -1).bfloat16()
        found = [
            attend(half, half, half, is_causal=True),
            attend(half, half, half),
            attend(whole, whole, whole),
            attend(wide, wide, wide, is_causal=True),
        ]
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
            found.append(attend(half, half, half, is_causal=True))
        mask = torch.rand(8, 8, device="cuda") > 0.5
        found.append(attend(half, half, half, mask))
        found.append(attend(half, half, half, half[..., :8]))
        sum(one.float().sum() for one in found).backward()
        optimizer.step()


def ring():
    """Every rank hands a tensor to the next one, outside of modules."""
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    model, given = nn.Linear(4, 4).cuda(), torch.ones(8, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        sent = dist.P2POp(dist.isend, given, (rank + 1) % world)
        got = dist.P2POp(dist.irecv, torch.empty_like(given), (rank - 1) % world)
        for work in dist.batch_isend_irecv([sent, got]):
            work.wait()
        model(torch.zeros(2, 4, device="cuda")).sum().backward()
        dist.all_reduce(model.weight.grad)
        optimizer.step()


if __name__ == "__main__":
    vars()[sys.argv[1]]()
