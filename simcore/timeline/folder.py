"""A run folder appears whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from simcore.errors import InputError
from simcore.timeline.schema import RUN_FILE


def check_run_folder(out_dir: Path) -> None:
    """Refuse to write a run over anything that is not a run folder or an empty one.  InputError."""
    try:
        target = out_dir.resolve()
        if not target.exists():
            return
        if not target.is_dir():
            raise InputError(f"{out_dir} is a file; a run needs a folder")
        if target in (here := Path.cwd(), *here.parents):
            raise InputError(f"{out_dir} is the working folder or holds it; name a folder for the run")
        is_other = not (target / RUN_FILE).is_file() and any(target.iterdir())
    except (OSError, ValueError) as error:
        raise InputError(f"{out_dir}: {getattr(error, 'strerror', None) or error}") from error
    if is_other:
        raise InputError(f"{out_dir} is not a run folder (no {RUN_FILE}) and not empty; choose another --out")


@contextmanager
def run_folder(out_dir: Path) -> Iterator[Path]:
    """A temporary sibling of ``out_dir`` that takes its place when the block ends without an error.

    On any exception, ``KeyboardInterrupt`` and ``SystemExit`` included, the sibling is removed and what was
    at ``out_dir`` stays.  A previous run there is replaced.  InputError when ``out_dir`` is something else
    or cannot be written.
    """
    check_run_folder(out_dir)
    out_dir = out_dir.resolve()
    partial = out_dir.with_name(f".{out_dir.name}.partial-{os.getpid()}")
    made = [parent for parent in partial.parents if not parent.exists()]
    try:
        try:
            partial.mkdir(parents=True)
        except OSError as error:
            raise InputError(f"cannot write to {out_dir.parent}: {error.strerror}") from error
        yield partial
        try:
            _replace(partial, out_dir)
        except OSError as error:
            raise InputError(f"cannot put a run at {out_dir}: {error.strerror}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        for parent in made:  # innermost first; a finished run keeps them
            if parent.exists() and not any(parent.iterdir()):
                parent.rmdir()


def _replace(partial: Path, out_dir: Path) -> None:
    """Put ``partial`` where ``out_dir`` is; the old folder is set aside first and deleted last."""
    if not out_dir.exists():
        partial.rename(out_dir)
        return
    old = out_dir.with_name(f".{out_dir.name}.old-{os.getpid()}")
    out_dir.rename(old)
    try:
        partial.rename(out_dir)
    except BaseException:
        old.rename(out_dir)
        raise
    shutil.rmtree(old, ignore_errors=True)
