"""Second tier of the fake CUDA device: build ``helper.cpp`` against the installed torch and load it."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import torch

from workloads.tracing.vtable_patch import UnsupportedTorchError

SOURCE = Path(__file__).with_name("helper.cpp")
_TIMEOUT_S = 120


def build(folder: Path) -> Path:
    """Compile the helper into ``folder``, or reuse it.  UnsupportedTorchError when it cannot be."""
    library = folder / "fake_cuda_helper.so"
    if library.exists():
        return library
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise UnsupportedTorchError("no C++ compiler (g++ or clang++) to build the helper with")
    root = Path(torch.__file__).parent
    folder.mkdir(parents=True, exist_ok=True)
    scratch = folder / f"fake_cuda_helper.{os.getpid()}.so"
    abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)
    command = [compiler, "-O1", "-shared", "-fPIC", "-std=c++20", f"-D_GLIBCXX_USE_CXX11_ABI={abi}"]
    command += [f"-I{root / 'include'}", str(SOURCE), "-o", str(scratch)]
    command += [f"-L{root / 'lib'}", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{root / 'lib'}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnsupportedTorchError(f"the helper was not compiled: {error}") from None
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if "error" in line] or ["no message"]
        raise UnsupportedTorchError(f"the helper does not compile: {errors[0][:300]}")
    scratch.replace(library)
    return library


def install(folder: Path) -> str:
    """Build (if needed), load and run the helper.  UnsupportedTorchError when a step fails."""
    library = build(folder)
    try:
        helper = ctypes.CDLL(str(library))
    except OSError as error:
        raise UnsupportedTorchError(f"the helper does not load: {error}") from None
    cuda_build = torch.version.cuda is not None or torch.version.hip is not None
    if helper.install_fake_cuda(int(cuda_build)) != 0:
        raise UnsupportedTorchError("the helper reported a failure")
    return f"compiled helper {library.name}"
