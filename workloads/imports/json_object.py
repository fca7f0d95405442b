"""A small JSON file read whole, with what is wrong with it said by position."""

from __future__ import annotations

import json
from typing import Any

from simcore.errors import InputError
from workloads.imports.json_events import TraceFile, check_size, opened, readable

_CHUNK_BYTES = 1 << 24


def read_object(source: TraceFile, what: str) -> dict[str, Any]:
    """The object in ``source``, decompressed; ``what`` it should be, for messages.

    Errors: InputError with file, position and reason for anything else.
    """
    data = bytearray()
    with readable(source.label, lambda: len(data)), opened(source) as (handle, stored):
        while chunk := handle.read(_CHUNK_BYTES):
            data += chunk
            check_size(source.label, len(data), stored)
    try:
        content = json.loads(data)
    except UnicodeDecodeError as error:
        raise InputError(f"{source.label}: byte {error.start:,}: not text") from None
    except json.JSONDecodeError as error:
        where = f"{source.label}: character {error.pos:,}"
        raise InputError(f"{where}: {error.msg}: not JSON, or truncated") from None
    except RecursionError:
        raise InputError(f"{source.label}: values are nested too deeply") from None
    if not isinstance(content, dict):
        raise InputError(f"{source.label}: is no JSON object of {what}")
    return content
