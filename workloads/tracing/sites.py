"""Whose code is running: call sites as a user would look them up."""

from __future__ import annotations

import dis
import functools
import linecache
import os
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, FrameType, TracebackType

_OURS = str(Path(__file__).resolve().parent) + os.sep
_RECIPES = str(Path(_OURS) / "recipes") + os.sep
_STANDARD = tuple(os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib"))
#: Instructions between a call and the jump on what it gives, and those jumps.
_BETWEEN = ("CACHE", "NOP", "TO_BOOL", "EXTENDED_ARG")
_JUMPS = ("_IF_TRUE", "_IF_FALSE")
#: Where code does not go on to what stands behind.
_TURNS = ("RETURN", "RERAISE", "FOR_ITER", "SEND", "YIELD")
_RAISES = {"LOAD_ASSERTION_ERROR": "AssertionError"}
_PACKAGES = ("site-packages", "dist-packages")


@functools.cache
def owner(filename: str) -> str:
    """Whose code a file is: "script", a package's name, "python" (its own library) or "simcore"."""
    if filename.startswith("<"):
        return "python"
    path = os.path.realpath(filename)
    if path.startswith(_OURS) and not path.startswith(_RECIPES):
        return "simcore"
    parts = Path(path).parts
    for index, part in enumerate(parts):
        if part in _PACKAGES and index + 1 < len(parts):
            return parts[index + 1].removesuffix(".py")
    return "python" if path.startswith(_STANDARD) else "script"


@functools.cache
def short_name(filename: str) -> str:
    """``transformers/models/llama/modeling_llama.py`` for packages, the file's name for a script."""
    parts = Path(filename).parts
    for index, part in enumerate(parts):
        if part in _PACKAGES:
            return "/".join(parts[index + 1 :])
    return parts[-1] if parts else filename


def call_site(depth: int = 1) -> str:
    """``file:line`` of the innermost caller that is neither torch, nor Python's library, nor the tracer."""
    return next(iter(call_stack(1, depth + 1)), "")


def call_stack(limit: int, depth: int = 1) -> tuple[str, ...]:
    """Up to ``limit`` such sites, innermost first."""
    found: list[str] = []
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None and len(found) < limit:
        name = frame.f_code.co_filename
        if owner(name) not in ("torch", "python", "simcore", "typing_extensions"):
            found.append(f"{short_name(name)}:{frame.f_lineno}")
        frame = frame.f_back
    return tuple(found)


def is_asked_by(ending: str) -> bool:
    """Whether what asks right now is a file of torch whose name ends so, not the program itself."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and owner(frame.f_code.co_filename) in ("torch", "python", "simcore"):
        if frame.f_code.co_filename.endswith(ending):
            return True
        frame = frame.f_back
    return False


def asserted() -> bool | None:
    """The truth value with which an assertion, or an ``if`` that raises, passes that the innermost caller
    (:func:`call_site`) makes of what it asks for right now; None where it makes none.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and owner(frame.f_code.co_filename) in ("torch", "python", "simcore"):
        frame = frame.f_back
    return None if frame is None else _passes(frame.f_code, frame.f_lasti)


@functools.cache
def _passes(code: CodeType, at: int) -> bool | None:
    """Of the jump that follows instruction ``at``: which truth value does not lead to an exception."""
    steps = [one for one in dis.get_instructions(code) if one.opname not in _BETWEEN]
    begin = next((index for index, one in enumerate(steps) if one.offset >= at), len(steps))
    ways = (index for index in range(begin, begin + 2) if index + 1 < len(steps))
    place = next((index for index in ways if steps[index].opname.endswith(_JUMPS)), None)
    if place is None:
        return None
    jump = steps[place]
    target = next((index for index, one in enumerate(steps) if one.offset >= jump.argval), len(steps))
    fails = [_raises(steps[way:]) for way in (target, place + 1)]
    return None if fails[0] == fails[1] else jump.opname.endswith("TRUE") != fails[0]


def _raises(steps: Sequence[dis.Instruction]) -> bool:
    """Whether what begins here makes an exception and raises it, whatever happens."""
    for one in steps:
        if one.opname == "RAISE_VARARGS" or "AssertionError" in (one.argrepr, _RAISES.get(one.opname)):
            return True
        if one.opname.startswith(_TURNS) or "JUMP" in one.opname:
            return False
    return False


def where_raised(trace: TracebackType | None) -> tuple[str, str]:
    """(where in the script, where it was raised) of a traceback, as ``file:line in function``.

    The first is the innermost frame of the script's own files, "" when none is.
    """
    in_script, raised = "", ""
    while trace is not None:
        code = trace.tb_frame.f_code
        text = f"{short_name(code.co_filename)}:{trace.tb_lineno} in {code.co_name}"
        whose = owner(code.co_filename)
        if whose == "script":
            in_script = text
        if whose not in ("simcore", "python"):
            raised = text
        trace = trace.tb_next
    return in_script, raised


def source_line(trace: TracebackType | None) -> str:
    """The line of code, of the script or a package, that raised; "" when its file is not there."""
    found = ""
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if owner(name) not in ("simcore", "python"):
            found = linecache.getline(name, trace.tb_lineno).strip()
        trace = trace.tb_next
    return found


def script_stack(trace: TracebackType | None) -> tuple[str, ...]:
    """Frames of the script's own files in a traceback, innermost first, as ``file:line in function``."""
    found: list[str] = []
    while trace is not None:
        code = trace.tb_frame.f_code
        if owner(code.co_filename) == "script":
            found.insert(0, f"{short_name(code.co_filename)}:{trace.tb_lineno} in {code.co_name}")
        trace = trace.tb_next
    return tuple(found)
