"""Where in the program an op is issued: phase, module, and the forward op that a backward op belongs to."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch


class Labels:
    """Follows modules, phases and autograd nodes while a program runs.

    Autograd numbers its nodes when the forward pass makes them; the number is known again when the backward
    pass runs the node.  So every backward op finds its forward op and module, also in custom functions.
    ``regions_have_backward``: the backward ops of a compiled region are in it, too.
    """

    def __init__(self, *, regions_have_backward: bool = False) -> None:
        self._regions_have_backward = regions_have_backward
        self.segment_phase = "fwd"
        self._phase: str | None = None
        self._modules: list[str] = []
        #: What was being handled when each of them was called.
        self._handled: list[BaseException | None] = []
        self._module_names: dict[int, str] = {}
        self._regions: list[str] = []
        self._scope: str | None = None
        self._forward_of: dict[int, tuple[str, int]] = {}
        self._backward_module = ""
        self._tensor_phase: dict[int, str] = {}
        self._hooks: list[Any] = []
        #: Told of every module that is called while no other module runs.
        self.on_outermost: Callable[[torch.nn.Module], None] | None = None
        #: Told of what a module's forward pass raised, once for each module that it leaves.
        self.on_failure: Callable[[Exception], None] | None = None

    def name_modules(self, root: torch.nn.Module, wrappers: tuple[str, ...] = ()) -> None:
        """Use ``root``'s own submodule names, without the parts that only ``wrappers`` add."""
        for name, module in root.named_modules():
            parts = [part for part in name.split(".") if part not in wrappers]
            self._module_names[id(module)] = ".".join(parts)

    def enter_segment(self, phase: str | None) -> None:
        """A new stretch of ops begins; its phase is ``phase``, or the one before."""
        self.segment_phase = phase or self.segment_phase
        self._backward_module = ""

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Ops inside have phase ``name``, wherever they are issued."""
        outer, self._phase = self._phase, name
        try:
            yield
        finally:
            self._phase = outer

    @contextlib.contextmanager
    def module_scope(self, name: str) -> Iterator[None]:
        """Ops inside belong to module ``name``: for hooks, which know their parameter but run in no
        module.
        """
        outer, self._scope = self._scope, name
        try:
            yield
        finally:
            self._scope = outer

    @contextlib.contextmanager
    def fused_region(self, name: str) -> Iterator[None]:
        """Ops inside would be one kernel of a compiler; the module column says so."""
        self._regions.append(name)
        try:
            yield
        finally:
            self._regions.pop()

    def set_transfer_phase(self, tensor: torch.Tensor | None, phase: str) -> None:
        """The next send or receive of ``tensor`` belongs to ``phase``."""
        if tensor is not None:
            self._tensor_phase[id(tensor)] = phase

    def transfer_phase(self, tensor: torch.Tensor, default: str) -> str:
        """The phase that :meth:`set_transfer_phase` announced, once."""
        return self._tensor_phase.pop(id(tensor), default)

    def where(self, next_op: int) -> tuple[str, str, int]:
        """(phase, module, forward op) of an op issued now; ``next_op`` is its number, -1 when it has no
        kernel.
        """
        module = self._modules[-1] if self._modules else ""
        forward = -1
        phase = self.segment_phase
        node: Any = torch._C._current_autograd_node()  # None outside a backward pass
        if node is not None and not self._modules:
            phase = "bwd"
            # Nodes that autograd makes on its own (in-place changes of views) follow the one they serve.
            known = self._forward_of.get(node._sequence_nr(), (self._backward_module, -1))
            self._backward_module, forward = known
            module = self._backward_module
        else:
            if node is not None:  # a module's forward inside the backward pass
                phase = "recompute"
            self._note_forward(self._forward_place(module), next_op)
        if self._scope is not None:
            module = self._scope
        if self._regions and "/fused:" not in module:
            module = self._in_region(module)
        return self._phase or phase, module, forward

    def knows(self, node: int) -> bool:
        """Whether the autograd node of this number belongs to a forward op that was seen."""
        return node in self._forward_of

    @property
    def current_module(self) -> str:
        """Module whose forward runs now, "" when none does."""
        return self._modules[-1] if self._modules else ""

    @property
    def in_module(self) -> bool:
        """Whether a module's forward runs now."""
        return bool(self._modules)

    @property
    def sharing_gradients(self) -> bool:
        """Whether what is issued now follows from a gradient that has just been accumulated."""
        node: Any = torch._C._current_autograd_node()
        return node is not None and node.name() == "torch::autograd::AccumulateGrad"

    def note_view(self) -> None:
        """An op without a kernel runs: its autograd node, if any, belongs to the current module."""
        if self._modules:
            self._note_forward(self._forward_place(self._modules[-1]), -1)

    def _in_region(self, module: str) -> str:
        return f"{module}/fused:{self._regions[-1]}"

    def _forward_place(self, module: str) -> str:
        """What the backward ops of a forward op in ``module`` are labelled with."""
        return self._in_region(module) if self._regions and self._regions_have_backward else module

    def _note_forward(self, module: str, op: int) -> None:
        latest = torch.autograd._get_sequence_nr() - 1  # type: ignore[attr-defined]
        known = self._forward_of.get(latest)
        if known is None or (known[1] < 0 <= op and known[0] == module):
            self._forward_of[latest] = (module, op)

    def install(self) -> None:
        """Follow every module's forward pass from now on."""
        hooks = torch.nn.modules.module
        self._hooks = [
            hooks.register_module_forward_pre_hook(self._enter_module),
            hooks.register_module_forward_hook(self._leave_module, always_call=True),
        ]

    def remove(self) -> None:
        """Stop following."""
        for hook in self._hooks:
            hook.remove()

    def _enter_module(self, module: torch.nn.Module, _args: object) -> None:
        if not self._modules and self.on_outermost is not None:
            self.on_outermost(module)
        outer = self._modules[-1] if self._modules else ""
        self._modules.append(self._module_names.get(id(module), outer))  # unnamed: made on the fly
        self._handled.append(sys.exc_info()[1])

    def _leave_module(self, _module: torch.nn.Module, _args: object, _output: object) -> None:
        self._modules.pop()
        error, handled = sys.exc_info()[1], self._handled.pop()
        if isinstance(error, Exception) and error is not handled and self.on_failure is not None:
            self.on_failure(error)
