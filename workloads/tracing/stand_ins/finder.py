"""Extensions that are not installed: a stand-in answers an ``import`` that would fail.

A stand-in computes shapes and issues the kernels that the extension launches, under their names.  An
extension that is installed is used as it is.
"""

from __future__ import annotations

import dis
import functools
import importlib
import importlib.abc
import importlib.metadata
import importlib.util
import sys
from collections.abc import Collection, Sequence
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType
from typing import Any

import torch.utils._triton as torch_triton

#: Extension -> the module whose ``members`` says what is in each of its modules.
_STAND_INS = {
    **dict.fromkeys(
        (
            "amp_C",
            "apex",
            "fused_weight_gradient_mlp_cuda",
            "scaled_masked_softmax_cuda",
            "scaled_softmax_cuda",
            "scaled_upper_triang_masked_softmax_cuda",
        ),
        "workloads.tracing.stand_ins.apex",
    ),
    **dict.fromkeys(
        ("dropout_layer_norm", "fused_dense_lib", "rotary_emb", "xentropy_cuda_lib"),
        "workloads.tracing.stand_ins.flash_attn.bare_kernels",
    ),
    **dict.fromkeys(("causal_conv1d", "selective_scan_cuda"), "workloads.tracing.stand_ins.state_spaces"),
    "bitsandbytes": "workloads.tracing.stand_ins.bitsandbytes",
    "flash_attn": "workloads.tracing.stand_ins.flash_attn",
    "flash_attn_interface": "workloads.tracing.stand_ins.flash_attn.hopper",
    "grouped_gemm": "workloads.tracing.stand_ins.grouped_gemm",
    "kernels": "workloads.tracing.stand_ins.hub_kernels",
    "mpi4py": "workloads.tracing.stand_ins.mpi",
    "torch_scatter": "workloads.tracing.stand_ins.torch_scatter",
    "transformer_engine": "workloads.tracing.stand_ins.transformer_engine",
    "triton": "workloads.tracing.stand_ins.triton",
    "xformers": "workloads.tracing.stand_ins.xformers",
}

#: Extensions that libraries use where they find them, and that programs without them run without.
_OPTIONAL = frozenset({"causal_conv1d", "mpi4py", "transformer_engine"})

#: Extensions that libraries import where they can, and do without.
_TRIED = frozenset({"torch_scatter"})

#: Names that packages are published under, where these are others.
_DISTRIBUTIONS = {"flash_attn_interface": "flash-attn-3"}

#: The instruction of ``from module import name``.
_IMPORTS = dis.opmap["IMPORT_FROM"]

#: Extensions that were stood in for in this process.
used: set[str] = set()


class _StandInLoader(importlib.abc.Loader):
    """Makes modules of what a stand-in says is in them."""

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """The stand-in's own module where it has one."""
        made: ModuleType | None = getattr(_source(spec.name), "make_module", lambda _: None)(spec.name)
        return made

    def exec_module(self, module: ModuleType) -> None:
        """Fill it."""
        used.add(module.__name__.partition(".")[0])
        source = _source(module.__name__)
        members: dict[str, Any] = source.members(module.__name__) or {}
        vars(module).update(members)
        if "__getattr__" not in members:
            vars(module)["__getattr__"] = functools.partial(_missing, module.__name__)
        for name in getattr(source, "submodules", lambda _: ())(module.__name__):
            importlib.import_module(name)


class _StandInFinder(importlib.abc.MetaPathFinder):
    """Asked last: only for what is not installed."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """A stand-in's spec, if there is one for ``fullname``."""
        top, _, rest = fullname.partition(".")
        if top not in self._names or (rest and path):  # a path: the extension is installed
            return None
        if (top in _OPTIONAL and _a_library_looks()) or (top in _TRIED and _a_library_imports()):
            return None
        if _source(fullname).members(fullname) is None:
            return None
        return ModuleSpec(fullname, _StandInLoader(), is_package=True)


def _a_library_looks() -> bool:
    """Whether an installed package asks (``importlib.util.find_spec``) what it could use."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code is not importlib.util.find_spec.__code__:
        frame = frame.f_back
    asking = frame and frame.f_back
    return asking is not None and "site-packages" in asking.f_code.co_filename


def _a_library_imports() -> bool:
    """Whether an installed package has the statement that imports."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and "importlib" in frame.f_code.co_filename:
        frame = frame.f_back
    return frame is not None and "site-packages" in frame.f_code.co_filename


def _missing(module: str, name: str) -> Any:
    """What a stand-in has not, by a message that says so: to who imports it, as what is not installed."""
    frame = sys._getframe(1)
    if frame.f_code.co_code[frame.f_lasti] == _IMPORTS:
        raise ModuleNotFoundError(f"No module named '{module}.{name}'", name=f"{module}.{name}")
    raise AttributeError(
        f"module {module!r} has no attribute {name!r} here: it stands in for what is not installed"
    )


def _source(fullname: str) -> Any:
    return importlib.import_module(_STAND_INS[fullname.partition(".")[0]])


def install(names: Collection[str] = tuple(_STAND_INS)) -> None:
    """Stand in for ``names`` from now on, once per process."""
    torch_triton.has_triton_package()  # torch itself must not take a stand-in for the compiler's Triton
    sys.meta_path.append(_StandInFinder(names))
    listed = importlib.metadata.packages_distributions

    @functools.wraps(listed)
    def packages_distributions() -> Any:
        """Who looks up what it has found finds whose it is."""
        absent = {name: [_DISTRIBUTIONS.get(name, name.replace("_", "-"))] for name in names}
        return {**absent, **listed()}

    importlib.metadata.packages_distributions = packages_distributions
    told = importlib.metadata.version

    @functools.wraps(told)
    def version(distribution_name: str) -> str:
        """Who asks for the version of what it has found is told the one that is stood in for."""
        try:
            return told(distribution_name)
        except importlib.metadata.PackageNotFoundError:
            name = distribution_name.replace("-", "_")
            stands_in = name in names and name not in _OPTIONAL | _TRIED
            found: str | None = (_source(name).members(name) or {}).get("__version__") if stands_in else None
            if found is None:
                raise
            return found

    importlib.metadata.version = version
