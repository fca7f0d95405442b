"""The convolution and scan of a state-space layer as the kernels of mamba_ssm, in chunks of a sequence.

Note [Scan in chunks]
    A state is h[t] = a[t] h[t-1] + x[t] B[t], an output y[t] = C[t] h[t] + D x[t] (arXiv 2405.21060, section
    6).  Within a chunk it is attention with scores C B and a decay for each pair; from chunk to chunk states
    are handed on one after the other.  Five kernels do so forward: sums of decays, the state that each chunk
    adds, states handed on, scores, and outputs of both (mamba_ssm/ops/triton/ssd_combined.py,
    ``_mamba_chunk_scan_combined_fwd``).  Of what they make only the output before its gate is kept, beside
    what the projection wrote: backward runs the convolution and four of the five again
    (``MambaSplitConv1dScanCombinedFn``), then a kernel for each gradient.
    Kernels read slices of what the convolution wrote, so a launch names whole tensors and counts the bytes of
    the slices.  Scores above the diagonal are left out tile by tile, of 64 tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from simcore.records import dataclass
from workloads.models.local import Shard
from workloads.models.op_tape import OpTape, TapedLaunch
from workloads.models.pieces import KernelLaunch
from workloads.models.tensors import Tensor, compute

#: Tokens of a tile of scores; tiles above the diagonal are left out.
_TILE: Final = 64
_WIDE: Final = "float32"


@dataclass(frozen=True)
class ScanSizes:
    """``batch`` sequences of ``seq`` tokens for ``heads`` heads of ``size``, each with ``state`` numbers an
    element, in ``groups``; a convolution over ``conv`` tokens; chunks of ``chunk``.  ``of_rank`` heads and
    ``channels_of_rank`` of the convolution have parameters on this rank.
    """

    batch: int
    seq: int
    heads: int
    size: int
    state: int
    groups: int
    conv: int
    chunk: int
    of_rank: int
    channels_of_rank: int

    @property
    def tokens(self) -> int:
        """Tokens of all sequences."""
        return self.batch * self.seq

    @property
    def inner(self) -> int:
        """Columns of an output."""
        return self.heads * self.size

    @property
    def channels(self) -> int:
        """Columns of the convolution: inputs, and both of the state's."""
        return self.inner + 2 * self.groups * self.state

    @property
    def projected(self) -> int:
        """Columns of what is scanned: the gate, those of the convolution, and a time step for each head."""
        return self.inner + self.channels + self.heads

    @property
    def chunks(self) -> int:
        """Chunks of all sequences."""
        return self.batch * -(-self.seq // self.chunk)

    @property
    def state_flops(self) -> int:
        """Of a product between tokens and states."""
        return 2 * self.tokens * self.inner * self.state

    @property
    def score_flops(self) -> int:
        """Of a product between scores and tokens."""
        tiles = -(-self.chunk // _TILE)
        return 2 * self.tokens * self.inner * self.chunk * (tiles + 1) // (2 * tiles)

    @property
    def group_flops(self) -> int:
        """Of a product that makes scores, or reads their gradients."""
        return 2 * self.tokens * self.chunk * self.groups * self.state


def transposed(tape: OpTape, shard: Shard, x: Tensor, module: str) -> None:
    """Sequences one after the other, where a microbatch has several, or back: a copy."""
    if shard.micro_batch > 1 and not shard.software.batch_first:
        op = tape.op()
        op.run("aten::clone", [x], [x], module=module)
        op.back(compute("aten::clone", [x], [x], module=module))


def conv_and_scan(tape: OpTape, shard: Shard, sizes: ScanSizes, dtype: str, module: str) -> None:
    """``[tokens, projected]`` to ``[tokens, inner]``; see Note [Scan in chunks]."""
    scan = _Scan(sizes, dtype, module)
    op = tape.op()
    for name in ("exp", "neg"):  # of A, which is kept as a logarithm; biases of time steps are added in fp32
        op.run(f"aten::{name}", [scan.of_heads], [scan.of_heads], module=module)
    op.run("aten::_to_copy", [scan.bias], [scan.of_heads], module=module)
    for kernel in scan.forward():
        first = kernel.name == _CONV
        last = kernel.name == _SCAN
        op.launch(
            TapedLaunch(
                kernel, saved_inputs=scan.joined.num_bytes if first else 0,
                saved_outputs=scan.out.num_bytes if last else 0,
            )
        )  # fmt: skip
    for kernel in scan.backward():
        op.back(kernel)
    for name in ("neg", "mul.Tensor"):
        op.back(compute(f"aten::{name}", [scan.of_heads], [scan.of_heads], module=module))
    op.back(compute("aten::_to_copy", [scan.of_heads], [scan.bias], module=module))
    heads, channels = (sizes.of_rank,), sizes.channels_of_rank
    for name, shape in (
        ("dt_bias", heads), ("A_log", heads), ("D", heads),
        ("conv1d.weight", (channels, 1, sizes.conv)), ("conv1d.bias", (channels,)),
    ):  # fmt: skip
        op.parameter(f"{module}.{name}", *shape)
        op.accumulate(shape, _WIDE if name in ("A_log", "D") else dtype, shard.main_grad_dtype, module)


_CONV: Final = "causal_conv1d_fwd"
_SCAN: Final = "_chunk_scan_fwd_kernel"


class _Scan:
    """Kernels of both passes over tensors by the names that they have in mamba_ssm."""

    def __init__(self, sizes: ScanSizes, dtype: str, module: str) -> None:
        s, self._module, self.sizes = sizes, module, sizes
        self.joined = Tensor((s.tokens, s.projected), dtype)
        self.out = Tensor((s.tokens, s.heads, s.size), dtype)
        self.of_heads, self.bias = Tensor((s.heads,), _WIDE), Tensor((s.heads,), dtype)
        self._xbc = Tensor((s.tokens, s.channels), dtype)
        self._bc = Tensor((s.tokens, s.groups, s.state), dtype)
        self._wide_bc = self._bc.like(*self._bc.shape, dtype=_WIDE)
        self._dt = Tensor((s.tokens, s.heads), dtype)
        self._decays = Tensor((s.chunks, s.heads, s.chunk), _WIDE)
        self._chunks = Tensor((s.chunks, s.heads), _WIDE)
        self._states = Tensor((s.chunks, s.heads, s.size, s.state), _WIDE)
        self._narrow = self._states.like(*self._states.shape, dtype=dtype)
        self._last = Tensor((s.batch, s.heads, s.size, s.state), _WIDE)
        self._scores = Tensor((s.chunks, s.groups, s.chunk, s.chunk), _WIDE)
        self._filters, self._shift = Tensor((s.channels, s.conv), dtype), Tensor((s.channels,), dtype)

    def _kernel(
        self, name: str, ins: Sequence[Tensor], outs: Sequence[Tensor], flops: int = 0, *,
        slices: Sequence[Tensor] = (), written: Sequence[Tensor] = (), op_class: str = "scan",
    ) -> KernelLaunch:  # fmt: skip
        """Reads ``slices`` of what the convolution or the projection wrote, and writes such slices."""
        whole = compute(name, ins, outs, op_class=op_class, flops=flops, module=self._module)
        return replace(
            whole, bytes_read=self._num_bytes(ins, slices), bytes_written=self._num_bytes(outs, written),
            made_bytes=tuple(t.num_bytes for t in outs) if written else (),
        )  # fmt: skip

    def _num_bytes(self, tensors: Sequence[Tensor], slices: Sequence[Tensor]) -> int:
        """Of ``tensors``, and of ``slices`` in place of those that are read or written by slices."""
        sliced = (self._xbc, self.joined) if slices else ()
        return sum(t.num_bytes for t in (*(t for t in tensors if t not in sliced), *slices))

    def _conv(self) -> KernelLaunch:
        return self._kernel(
            _CONV, [self.joined, self._filters, self._shift], [self._xbc], slices=[self._xbc],
            op_class="short_conv",
        )  # fmt: skip

    def _sums(self) -> KernelLaunch:
        return self._kernel(
            "_chunk_cumsum_fwd_kernel", [self.joined, self.of_heads, self.of_heads],
            [self._decays, self._decays], slices=[self._dt],
        )  # fmt: skip

    def _added(self) -> KernelLaunch:
        return self._kernel(
            "_chunk_state_fwd_kernel", [self._xbc, self._decays, self._decays], [self._states],
            self.sizes.state_flops, slices=[self.out, self._bc],
        )  # fmt: skip

    def _handed_on(self, to: Tensor) -> KernelLaunch:
        return self._kernel("_state_passing_fwd_kernel", [self._states, self._chunks], [to, self._last])

    def _products(self) -> KernelLaunch:
        return self._kernel(
            "_bmm_chunk_fwd_kernel", [self._xbc], [self._scores], self.sizes.group_flops,
            slices=[self._bc, self._bc],
        )  # fmt: skip

    def forward(self) -> list[KernelLaunch]:
        """Convolution, then the five kernels of the scan."""
        flops = self.sizes.state_flops + self.sizes.score_flops
        scan = self._kernel(
            _SCAN, [self._scores, self._xbc, self.joined, self._decays, self._decays, self._narrow],
            [self.out, self.out], flops, slices=[self.out, self._bc, self.out],
        )  # fmt: skip
        parts = [self._sums(), self._added(), self._handed_on(self._narrow), self._products()]
        return [self._conv(), *parts, scan]

    def backward(self) -> list[KernelLaunch]:
        """What forward made once more, then a kernel for each gradient."""
        s, out, xbc, decays = self.sizes, self.out, self._xbc, self._decays
        x_and_b = [out, self._bc]
        blocks = Tensor((s.chunks, s.heads, -(-s.chunk // 32)), _WIDE)
        filters, shift = (replace(one, dtype=_WIDE) for one in (self._filters, self._shift))
        rows = Tensor((s.chunks, s.heads, 4, s.chunk), _WIDE)
        return [
            self._conv(),
            compute("aten::clone", [self._dt], [self._dt], module=self._module),
            self._sums(), self._products(), self._added(), self._handed_on(self._states),
            self._kernel(
                "_chunk_scan_bwd_dz_kernel", [out, out, xbc, self.joined], [self.joined, out, blocks],
                slices=[out, out], written=[out],
            ),
            self._small("sum.dim_IntList", blocks, self.of_heads),
            self._kernel(
                "_chunk_scan_bwd_dstates_kernel", [out, xbc, decays], [self._states], s.state_flops,
                slices=[self._bc],
            ),
            self._kernel(
                "_state_passing_bwd_kernel", [self._states, self._states, self._chunks],
                [self._narrow, self._narrow, self._chunks],
            ),
            self._small("sum.dim_IntList", self._chunks, self._chunks),
            self._kernel(
                "_chunk_scan_chunk_state_bwd_dx_kernel",
                [xbc, self._scores, out, decays, decays, self._narrow],
                [xbc, decays, blocks], s.state_flops + s.score_flops, slices=x_and_b, written=[out],
            ),
            self._small("sum.dim_IntList", blocks, self.of_heads),
            self._kernel(
                "_chunk_state_bwd_db_kernel", [xbc, self._narrow, decays, decays], [self._wide_bc, decays],
                s.state_flops, slices=x_and_b,
            ),
            self._small("sum.dim_IntList", self._wide_bc, self._wide_bc),
            self._small("cumsum", decays, decays),
            self._kernel(
                "_chunk_scan_bwd_dc_kernel", [out, self._narrow, xbc, decays], [self._wide_bc, decays],
                s.state_flops, slices=[self._bc],
            ),
            self._small("sum.dim_IntList", self._wide_bc, self._wide_bc),
            self._kernel(
                "_chunk_scan_bwd_dcb_kernel", [xbc, out, decays, decays], [self._scores], s.score_flops,
                slices=[out],
            ),
            self._small("sum.dim_IntList", self._scores, self._scores),
            *(
                self._kernel(
                    "_bmm_chunk_bwd_kernel", [xbc, self._scores, self._wide_bc], [], s.group_flops,
                    slices=[self._bc], written=[self._bc],
                )
                for _ in ("B", "C")
            ),
            self._small("add_.Tensor", self._chunks, self._chunks),
            *(self._small(name, decays, decays) for name in ("flip", "cumsum", "flip")),
            self._kernel(
                "_chunk_scan_bwd_ddAcs_stable_kernel", [xbc, out, decays, decays, self._scores], [rows],
                s.score_flops, slices=[out],
            ),
            self._small("sum.dim_IntList", rows, decays),
            *(compute(f"aten::{name}", [decays, decays], [decays], module=self._module)
              for name in ("add.Tensor", "add_.Tensor")),
            self._kernel(
                "_chunk_cumsum_bwd_kernel", [decays, decays, self._dt, self.of_heads, self.of_heads],
                [self.of_heads, self.of_heads], written=[self._dt],
            ),
            self._kernel(
                "causal_conv1d_bwd", [self.joined, xbc, self._filters, self._shift],
                [filters, shift], slices=[xbc, xbc], written=[xbc], op_class="short_conv",
            ),
        ]  # fmt: skip

    def _small(self, name: str, source: Tensor, target: Tensor) -> KernelLaunch:
        return compute(f"aten::{name}", [source], [target], module=self._module)
