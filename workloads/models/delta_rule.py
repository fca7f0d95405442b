"""The gated delta rule in chunks of a sequence, as the kernels of flash-linear-attention.

Note [Delta rule in chunks]
    A state is S[t] = a[t] S[t-1] (1 - b[t] k[t] k[t]') + b[t] v[t] k[t]', an output o[t] = S[t] q[t] (arXiv
    2412.06464).  Within a chunk of 64 tokens the products of (1 - b k k') have a closed form (WY): a
    triangular matrix of 64 x 64 for each head is inverted, and two tensors ``w`` and ``u`` follow from it.
    Then states are walked through, chunk after chunk, by a block for each 32 columns of a head's state;
    outputs are made of the states at the beginnings of chunks and of scores within them
    (fla/ops/gated_delta_rule/chunk.py, ``chunk_gated_delta_rule_fwd``).
    Kept are queries, keys, values, decays, gates and the inverse: backward makes ``w``, ``u`` and the states
    again, walks the other way, then has a kernel for the gradients of each step (``..._bwd``).
    Flops are those of whole tiles of 64; of the matrix 10 of 16 tiles are computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from simcore.records import dataclass
from workloads.models.op_tape import OpTape, TapedLaunch
from workloads.models.pieces import KernelLaunch
from workloads.models.tensors import Tensor, compute

#: Tokens of a chunk (fla's default; Megatron-Core's ``chunk_size``).
CHUNK: Final = 64
_WIDE: Final = "float32"


@dataclass(frozen=True)
class DeltaSizes:
    """``batch`` sequences of ``seq`` tokens for ``heads`` heads, whose states are ``key_size`` by
    ``value_size``.
    """

    batch: int
    seq: int
    heads: int
    key_size: int
    value_size: int

    @property
    def rows(self) -> int:
        """Tokens of all heads."""
        return self.batch * self.seq * self.heads

    @property
    def state_flops(self) -> int:
        """Of a product between tokens and states."""
        return 2 * self.rows * self.key_size * self.value_size

    def chunk_flops(self, columns: int) -> int:
        """Of a product between tokens of a chunk, over or into so many columns."""
        return 2 * self.rows * CHUNK * columns


def delta_rule(tape: OpTape, sizes: DeltaSizes, dtype: str, module: str) -> Tensor:
    """Normed queries and keys, values and gates of each head to outputs; see Note [Delta rule in chunks]."""
    rule, op = _DeltaRule(sizes, dtype, module), tape.op()
    for kernel, saved in rule.forward():
        op.launch(TapedLaunch(kernel, saved_outputs=saved))
    for kernel in rule.backward():
        op.back(kernel)
    return rule.values


class _DeltaRule:
    """Kernels of both passes over tensors by the names that they have in flash-linear-attention."""

    def __init__(self, sizes: DeltaSizes, dtype: str, module: str) -> None:
        s, self._sizes, self._module = sizes, sizes, module
        tokens = (s.batch, s.seq, s.heads)
        self._keys, self.values = Tensor((*tokens, s.key_size), dtype), Tensor((*tokens, s.value_size), dtype)
        self._decay, self._gate = Tensor(tokens, _WIDE), Tensor(tokens, dtype)
        self._inverse = Tensor((*tokens, CHUNK), dtype)
        chunks = -(-s.seq // CHUNK)
        self._states = Tensor((s.batch, chunks, s.heads, s.key_size, s.value_size), dtype)

    def _kernel(
        self, name: str, ins: Sequence[Tensor], outs: Sequence[Tensor], flops: int = 0
    ) -> KernelLaunch:
        return compute(name, ins, outs, op_class="delta_rule", flops=flops, module=self._module)

    def _sums(self) -> KernelLaunch:
        name = "chunk_local_cumsum_scalar_kernel"
        return compute(name, [self._decay], [self._decay], op_class="reduction", module=self._module)

    def _represented(self) -> KernelLaunch:
        """``w`` and ``u`` of the inverse."""
        keys, values, gates = self._keys, self.values, [self._gate, self._decay]
        return self._kernel(
            "recompute_w_u_fwd_kernel", [keys, values, self._inverse, *gates], [keys, values],
            self._sizes.chunk_flops(self._sizes.key_size + self._sizes.value_size),
        )  # fmt: skip

    def _walked(self) -> KernelLaunch:
        """States at the beginnings of chunks, and values as the states correct them."""
        return self._kernel(
            "chunk_gated_delta_rule_fwd_kernel_h_blockdim64",
            [self._keys, self._keys, self.values, self._decay], [self._states, self.values],
            2 * self._sizes.state_flops,
        )  # fmt: skip

    def forward(self) -> list[tuple[KernelLaunch, int]]:
        """Kernels, and how many bytes of what each writes backward needs."""
        s, keys, values, inverse = self._sizes, self._keys, self.values, self._inverse
        solved = self._kernel(
            "chunk_gated_delta_rule_fwd_kkt_solve_kernel", [keys, self._decay, self._gate], [inverse],
            s.chunk_flops(s.key_size) * 10 // 16,
        )  # fmt: skip
        out = self._kernel(
            "chunk_fwd_kernel_o", [keys, keys, values, self._states, self._decay], [values],
            s.state_flops + s.chunk_flops(s.key_size + s.value_size),
        )  # fmt: skip
        zeros = compute("aten::zeros", [], [inverse], module=self._module)
        return [
            (self._sums(), self._decay.num_bytes), (zeros, 0), (solved, inverse.num_bytes),
            (self._represented(), 0), (self._walked(), 0), (out, 0),
        ]  # fmt: skip

    def backward(self) -> list[KernelLaunch]:
        """What forward made once more, then gradients."""
        s, keys, values, inverse, states = self._sizes, self._keys, self.values, self._inverse, self._states
        decay, gate = self._decay, self._gate
        within = s.chunk_flops(s.key_size + s.value_size)
        return [
            self._represented(), self._walked(),
            self._kernel("chunk_bwd_kernel_dv_local", [keys, keys, decay, values], [values], within),
            self._kernel(
                "chunk_gated_delta_rule_bwd_kernel_dhu_blockdim64",
                [keys, keys, keys, decay, values, values], [states, values], 3 * s.state_flops,
            ),
            self._kernel(
                "chunk_bwd_kernel_dqkwg", [keys, keys, values, decay, states, values, states, values],
                [keys, keys, keys, decay],
                3 * s.state_flops + within + s.chunk_flops(2 * s.key_size),
            ),
            self._kernel(
                "prepare_wy_repr_bwd_kernel", [keys, values, gate, decay, inverse, keys, values],
                [keys, values, gate, decay],
                2 * within + s.chunk_flops(2 * CHUNK) + s.chunk_flops(3 * s.key_size),
            ),
            *(compute("aten::add_.Tensor", [x, x], [x], module=self._module) for x in (keys, decay)),
            self._sums(),
        ]  # fmt: skip
