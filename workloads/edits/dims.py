"""What each dimension of a traced Megatron GPT's tensors is: from its size, its place, and the module."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from simcore.errors import InputError
from workloads.edits.megatron import Sizes

Shape = tuple[int, ...]

PARAMETERS = "parameters"  # the "module" of ops on parameters and their gradients, wherever they belong

_LINEARS = {
    "linear_qkv": ("H", "Q"),
    "linear_proj": ("P", "H"),
    "linear_fc1": ("H", "F"),
    "linear_fc2": ("F", "H"),
    "output_layer": ("H", "V"),
}
_MLP = re.compile(r"\.mlp(/|$)")
_HIDDEN = re.compile(r"norm|dropout_add|embedding_dropout|position_embeddings|word_embeddings|layers\.\d+$")


@dataclass(frozen=True)
class Dims:
    """Sizes of the dimensions of a rank's tensors by symbol.

    S seq, T a rank's part of it, B microbatch, H hidden, F ffn, Q query+key+value, P attention output, V
    vocabulary (the last four as sharded), A heads of a rank, D head size, E 3 * D.
    """

    of: dict[str, int]

    @classmethod
    def from_sizes(cls, sizes: Sizes, head: int, sequence_parallel: bool) -> Dims:
        """Dims of a rank; ``head`` is the head size."""
        tp = sizes.tp
        return cls({
            "S": sizes.seq, "T": sizes.seq // tp if sequence_parallel else sizes.seq, "B": sizes.micro_batch,
            "H": sizes.hidden, "F": sizes.ffn // tp, "Q": 3 * sizes.hidden // tp, "P": sizes.hidden // tp,
            "V": sizes.vocab // tp, "A": sizes.heads // tp, "D": head, "E": 3 * head,
        })  # fmt: skip


class Relabel:
    """Maps shapes of an old rank to those of a new one."""

    def __init__(self, old: Dims, new: Dims) -> None:
        self.old, self.new = old.of, new.of

    def shapes(
        self,
        shapes: Sequence[Shape],
        out: Sequence[Shape],
        name: str,
        module: str,
        forward: bool,
        first: bool,
    ) -> tuple[list[Shape], list[Shape]]:
        """New input and output shapes of an op.

        ``forward``: it belongs to a forward (or its recomputation); ``first``: it is the first product of its
        module in a backward, which gives the gradient of the input.
        InputError when a dimension cannot be told from another that changes otherwise.
        """
        linear = _LINEARS.get(module.rpartition(".")[2].split("/")[0])
        if linear is not None and name.startswith(("aten::mm", "aten::addmm")):
            symbols = self._product(shapes[-2:], out[0], *linear, forward, first)
            operands = [self._apply(s, w) for s, w in zip(shapes[-2:], symbols[:2], strict=True)]
            extra = [self._apply(s, symbols[2][-1:]) for s in shapes[:-2]]
            return [*extra, *operands], [self._apply(out[0], symbols[2])]
        return (
            [self._one(shape, name, module, linear) for shape in shapes],
            [self._one(shape, name, module, linear) for shape in out],
        )

    def _product(
        self, operands: Sequence[Shape], out: Shape, in_: str, out_: str, forward: bool, first: bool
    ) -> tuple[str, str, str]:
        """Symbols of a linear layer's product: N (tokens), and the layer's input and output features."""
        ways = {
            "forward": (f"N{in_}", f"{in_}{out_}", f"N{out_}"),
            "input": (f"N{out_}", f"{out_}{in_}", f"N{in_}"),
            "weight": (f"{out_}N", f"N{in_}", f"{out_}{in_}"),
        }
        fits = [
            way
            for way, symbols in ways.items()
            if all(self._fits(s, w) for s, w in zip((*operands, out), symbols, strict=True))
        ]
        wanted = "forward" if forward else "input" if first else "weight"
        if wanted not in fits:
            if not fits:
                raise InputError(
                    f"a product of {list(operands[0])} and {list(operands[1])} is not understood"
                )
            wanted = fits[0]
        return ways[wanted]

    def _fits(self, shape: Shape, symbols: str) -> bool:
        return len(shape) == len(symbols) and all(
            self._is(size, s) for size, s in zip(shape, symbols, strict=True)
        )

    def _is(self, size: int, symbol: str) -> bool:
        if symbol == "N":
            return size in (self.old["S"] * self.old["B"], self.old["T"] * self.old["B"])
        return size == self.old[symbol]

    def _apply(self, shape: Shape, symbols: str) -> Shape:
        return tuple(self._new(size, symbol) for size, symbol in zip(shape, symbols, strict=True))

    def _new(self, size: int, symbol: str) -> int:
        if symbol == "N":
            whole = size == self.old["S"] * self.old["B"]
            return self.new["S" if whole else "T"] * self.new["B"]
        return self.new[symbol]

    def _one(self, shape: Shape, name: str, module: str, linear: tuple[str, str] | None) -> Shape:
        """A tensor of anything but a linear layer's product."""
        old = self.old
        candidates = self._features(name, module, linear)
        if len(shape) == 4:
            if shape[0] in (old["S"], old["T"]) and shape[1] == old["B"]:
                return (self._tokens(shape[0]), self.new["B"], *self._among(shape[2:], "ADE", name, module))
            return (
                self.new["B"] if shape[0] == old["B"] else shape[0],
                *self._among(shape[1:2], "A", name, module), *shape[2:],
            )  # fmt: skip
        if len(shape) == 3:
            if shape[0] == old["B"] * old["A"] and set(shape[1:]) <= {old["S"], old["D"]}:
                return (self.new["B"] * self.new["A"], *shape[1:])
            if shape[0] in (old["S"], old["T"]) and shape[1] == old["B"]:
                return (
                    self._tokens(shape[0]),
                    self.new["B"],
                    *self._among(shape[2:], candidates, name, module),
                )
            if shape[0] == old["B"] and shape[1] in (old["S"], old["T"]):
                return (
                    self.new["B"],
                    self._tokens(shape[1]),
                    *self._among(shape[2:], candidates, name, module),
                )
            return tuple(self._among(shape, candidates, name, module))
        if len(shape) == 2:
            if shape in ((old["B"], old["S"]), (old["S"], old["B"])):
                return tuple(self.new["B"] if size == old["B"] else size for size in shape)
            if module.endswith("word_embeddings") and self._fits(shape, "VH"):
                return self._apply(shape, "VH")
            if self._is(shape[0], "N") and not (linear and self._fits(shape, linear[1] + linear[0])):
                return (self._new(shape[0], "N"), *self._among(shape[1:], candidates, name, module))
            if linear and self._fits(shape, linear[1] + linear[0]):
                return self._apply(shape, linear[1] + linear[0])
            return tuple(self._among(shape, candidates + "V", name, module))
        if len(shape) == 1 and self._is(shape[0], "N"):
            return (self._new(shape[0], "N"),)
        return tuple(self._among(shape, candidates, name, module))

    def _features(self, name: str, module: str, linear: tuple[str, str] | None) -> str:
        """Symbols that a feature dimension may be, the likeliest first."""
        if name.startswith("nccl::"):
            return "H"
        if linear is not None:
            return linear[1] + linear[0]
        if _MLP.search(module):
            return "F"
        if _HIDDEN.search(module):
            return "HV"
        if module == PARAMETERS:
            return "HFQPV"
        # Outside modules: the loss, over the vocabulary.
        return "VHPQ" if not module else "HPQV"

    def _tokens(self, size: int) -> int:
        return self.new["S"] if size == self.old["S"] else self.new["T"]

    def _among(self, sizes: Sequence[int], symbols: str, name: str, module: str) -> list[int]:
        """Each size's new value by the first symbol that it is; unknown sizes stay.

        The order of ``symbols`` decides between equal sizes: what a module puts out comes first.
        """
        found = []
        for size in sizes:
            fits = [symbol for symbol in symbols if self.old[symbol] == size and size > 1]
            new = self.new[fits[0]] if fits else size
            if not fits and size in self._changing():
                raise InputError(f"{name} of {module or 'no module'}: dimension {size} is not understood")
            found.append(new)
        return found

    def _changing(self) -> set[int]:
        """Old sizes that are always something else afterwards and never mere counts."""
        words = [s for s in "HFQV" if self.old[s] != self.new[s]]
        same = {self.old[s] for s in self.old if self.old[s] == self.new[s]}
        return {self.old[s] for s in words if self.old[s] > 1} - same
