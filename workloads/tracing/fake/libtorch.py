"""The fake CUDA device inside libtorch, in two tiers that answer the same questions.

Tier "ctypes" patches two objects of libtorch and needs no compiler.  Tier "compiled" builds ``helper.cpp``
against the installed torch's own headers, so that no slot number is needed, once per torch build.

Note [What a fake device needs]
    FakeTensorMode computes shapes without data, but autograd asks libtorch's C++ side two questions
    that a machine without a GPU answers wrongly:

    * Is there a device guard for CUDA?  On CPU builds the registry slot is empty, so FakeTensorMode's own
      ``_ensureCUDADeviceGuardSet`` does nothing.  It does install libtorch's fake guard as soon as the slot
      holds a guard that counts zero devices; a stub whose virtual functions all return 0 is one.
    * Is CUDA built, available, and has it a context?  ``CUDAHooksInterface`` answers no (CPU build) or
      throws (``hasPrimaryContext`` without a driver, all builds).  Its vtable is copied, and the slots of
      these questions point to a function that returns 1.

    Functions that already live in the process serve as "return 0" and "return 1": no executable memory,
    no Python callback that would need the GIL.  The copied vtable is never freed, because static
    destructors of libtorch use it at exit.

Slot numbers come from the header that ships with the installed torch.  A wrong slot crashes the process,
therefore :mod:`workloads.tracing.fake.device` tries all of this in a child process first.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import torch

from simcore.files import whole_file

GUARD_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"
HOOKS_GETTER = "_ZN2at6detail12getCUDAHooksEv"
HOOKS_HEADER = "include/ATen/detail/AcceleratorHooksInterface.h"
HOOKS_CLASS = "struct TORCH_API AcceleratorHooksInterface"
QUESTIONS = ("isBuilt", "isAvailable", "hasPrimaryContext")

#: What the second tier compiles.
SOURCE = Path(__file__).with_name("helper.cpp")
_TIMEOUT_S = 120

_CUDA = 1  # c10::DeviceType::CUDA
_NUM_DEVICE_TYPES = 22
_VTABLE_SLOTS = 64
_VTABLE_PREFIX = 2  # Itanium ABI: offset to top and type info stand before slot 0
_POINTER = ctypes.sizeof(ctypes.c_void_p)


class UnsupportedTorchError(RuntimeError):
    """The installed torch does not look as this tier expects; the message names the check that failed."""


def header_slots(source: str) -> dict[str, int]:
    """Vtable slots of :data:`QUESTIONS`, from the text of the header that introduces them.

    Itanium ABI: a virtual destructor takes two slots.  UnsupportedTorchError when a function is not found.
    """
    text = re.sub(r"//[^\n]*", "", source)
    if HOOKS_CLASS not in text:
        raise UnsupportedTorchError(f"{HOOKS_HEADER} does not declare {HOOKS_CLASS!r}")
    body = text[text.index(HOOKS_CLASS) :]
    slots: dict[str, int] = {}
    next_slot = 0
    for function in re.findall(r"\bvirtual\b[^;{(]*?([~\w]+)\s*\(", body):
        slots.setdefault(function, next_slot)
        next_slot += 2 if function.startswith("~") else 1
    missing = [question for question in QUESTIONS if question not in slots]
    if missing:
        raise UnsupportedTorchError(f"{HOOKS_HEADER} declares no virtual {missing[0]}()")
    return {question: slots[question] for question in QUESTIONS}


def install(tier: str, folder: Path) -> str:
    """Make ``device="cuda"`` usable for fake tensors in this process by one tier; returns what was done.

    ``folder``: of the compiled helper.  UnsupportedTorchError when a symbol, header, slot or compiler is not
    as expected.  Call from the main thread, once.
    """
    return _patch() if tier == "ctypes" else _load_helper(folder)


def _patch() -> str:
    root = Path(torch.__file__).parent
    if not sys.platform.startswith("linux"):
        raise UnsupportedTorchError(
            f"platform {sys.platform}: only Linux is supported; use a Linux container"
        )
    try:
        c10 = ctypes.CDLL(str(root / "lib" / "libc10.so"))
        libtorch = ctypes.CDLL(str(root / "lib" / "libtorch_cpu.so"))
        registry = (ctypes.c_void_p * _NUM_DEVICE_TYPES).in_dll(c10, GUARD_REGISTRY)
        getter = getattr(libtorch, HOOKS_GETTER)
        slots = header_slots((root / HOOKS_HEADER).read_text(encoding="utf-8"))
    except (OSError, ValueError, AttributeError) as error:
        raise UnsupportedTorchError(f"a library, symbol or header is missing: {error}") from None
    getter.restype = ctypes.c_void_p
    hooks = int(getter())
    is_built = _vtable(hooks)[slots["isBuilt"]]
    built = torch.version.cuda is not None or torch.version.hip is not None
    if is_built is None or _answer(is_built, hooks) != int(built):
        raise UnsupportedTorchError("CUDAHooks.isBuilt() is not at the slot that the header gives")
    guard = _install_guard(registry, returns_zero=None if built else is_built)
    # On CUDA builds isBuilt() itself returns 1; else the guard's type(), first virtual, is 1 for CUDA.
    returns_one = is_built if built else _vtable(int(registry[_CUDA] or 0))[0]
    if returns_one is None or _answer(returns_one, hooks) != 1:
        raise UnsupportedTorchError("no function that returns 1 was found")
    _replace_answers(hooks, [slots[q] for q in (QUESTIONS[2:] if built else QUESTIONS)], returns_one)
    return f"guard {guard}, hooks slots {sorted(slots.values())}"


def _install_guard(registry: ctypes.Array[ctypes.c_void_p], returns_zero: int | None) -> str:
    """Let libtorch install its fake CUDA guard (see the Note); "native" where it needs no help."""
    if registry[_CUDA]:
        torch._C._ensureCUDADeviceGuardSet()
        return "native"
    if returns_zero is None:
        raise UnsupportedTorchError("a CUDA build of torch without a registered device guard")
    table, stub = _keep_forever(_VTABLE_SLOTS), _keep_forever(1)
    for slot in range(_VTABLE_SLOTS):
        table[slot] = returns_zero
    stub[0] = ctypes.addressof(table)
    registry[_CUDA] = ctypes.addressof(stub)
    torch._C._ensureCUDADeviceGuardSet()
    if registry[_CUDA] == ctypes.addressof(stub):
        registry[_CUDA] = None
        raise UnsupportedTorchError("libtorch did not install its fake CUDA guard")
    return "stub"


def _replace_answers(hooks: int, slots: list[int], function: int) -> None:
    """Give the one hooks object a private copy of its vtable with ``function`` at ``slots``."""
    original = ctypes.c_void_p.from_address(hooks).value or 0
    size = _VTABLE_SLOTS + _VTABLE_PREFIX
    source = (ctypes.c_void_p * size).from_address(original - _VTABLE_PREFIX * _POINTER)
    copy = _keep_forever(size)
    for index in range(size):
        copy[index] = source[index]
    for slot in slots:
        copy[_VTABLE_PREFIX + slot] = function
    ctypes.c_void_p.from_address(hooks).value = ctypes.addressof(copy) + _VTABLE_PREFIX * _POINTER


def _vtable(address: int) -> ctypes.Array[ctypes.c_void_p]:
    table = ctypes.c_void_p.from_address(address).value or 0
    return (ctypes.c_void_p * _VTABLE_SLOTS).from_address(table)


def _answer(function: int, this: int) -> int:
    return int(ctypes.CFUNCTYPE(ctypes.c_uint8, ctypes.c_void_p)(function)(this))


def _keep_forever(num_pointers: int) -> ctypes.Array[ctypes.c_void_p]:
    """Memory that outlives the interpreter: malloc'ed and never freed."""
    malloc = ctypes.CDLL(None).malloc
    malloc.restype, malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    return (ctypes.c_void_p * num_pointers).from_address(malloc(num_pointers * _POINTER))


def _build(folder: Path) -> Path:
    """Compile the helper into ``folder``, or reuse it.  UnsupportedTorchError when it cannot be."""
    library = folder / "fake_cuda_helper.so"
    if library.exists():
        return library
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise UnsupportedTorchError("no C++ compiler (g++ or clang++) to build the helper with")
    root = Path(torch.__file__).parent
    abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)
    command = [compiler, "-O1", "-shared", "-fPIC", "-std=c++20", f"-D_GLIBCXX_USE_CXX11_ABI={abi}"]
    command += [f"-I{root / 'include'}", str(SOURCE)]
    command += [f"-L{root / 'lib'}", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{root / 'lib'}"]
    with whole_file(library) as scratch:
        command += ["-o", str(scratch)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UnsupportedTorchError(f"the helper was not compiled: {error}") from None
        if done.returncode != 0:
            errors = [line for line in done.stderr.splitlines() if "error" in line] or ["no message"]
            raise UnsupportedTorchError(f"the helper does not compile: {errors[0][:300]}")
    return library


def _load_helper(folder: Path) -> str:
    library = _build(folder)
    try:
        helper = ctypes.CDLL(str(library))
    except OSError as error:
        raise UnsupportedTorchError(f"the helper does not load: {error}") from None
    cuda_build = torch.version.cuda is not None or torch.version.hip is not None
    if helper.install_fake_cuda(int(cuda_build)) != 0:
        raise UnsupportedTorchError("the helper reported a failure")
    return f"compiled helper {library.name}"
