"""What the cases need of the system: forks, and disks of their own."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def forked(function: Callable[[], None]) -> int:
    """The number of a fork of this process that runs ``function`` and ends as a command would."""
    sys.stdout.flush()
    sys.stderr.flush()
    process = os.fork()
    if process == 0:
        gc.disable()
        code = 70
        try:
            function()
            code = 0
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            with suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)
    return process


def children(process: int) -> list[int]:
    """Processes that a process has started and that have not ended."""
    try:
        return [int(one) for one in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    except OSError:  # it has ended
        return []


def disk_bytes(folder: Path) -> int:
    """What a folder takes on a disk, in whole pages, each name counted as one more."""
    return sum(4096 * (2 + one.stat().st_size // 4096) for one in folder.rglob("*"))


def copied(source: Path, target: Path) -> None:
    """Copy a file or a folder."""
    (shutil.copytree if source.is_dir() else shutil.copy)(source, target)


@contextmanager
def small_disk(folder: Path, num_bytes: int, *, read_only: bool = False) -> Iterator[bool]:
    """A disk of its own at ``folder``, with what is there; False where none can be mounted."""
    beside = folder.with_name(f"{folder.name}.beside")
    shutil.copytree(folder, beside)
    size = f"size={num_bytes // 4096 * 4096}"
    mounted = _called("mount", "-t", "tmpfs", "-o", size, "tmpfs", str(folder))
    try:
        if mounted:
            shutil.copytree(beside, folder, dirs_exist_ok=True)
            if read_only:
                _called("mount", "-o", "remount,ro", str(folder))
        elif read_only:
            folder.chmod(0o555)
        yield mounted
    finally:
        if not mounted:
            folder.chmod(0o755)
        else:
            shutil.rmtree(beside)
            shutil.copytree(folder, beside)
            _called("umount", str(folder))
            shutil.rmtree(folder)
            shutil.copytree(beside, folder)
        shutil.rmtree(beside)


def _called(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False
