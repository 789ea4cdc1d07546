"""A monitor on disk: one JSON file, checked when read, replaced whole or not at all. No pickle."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from davis import atomic

FORMAT = 1
_KIND = "davis monitor"


def write_state(state: Mapping[str, Any], file: str | os.PathLike[str]) -> Path:
    """Write a state; floats keep every bit."""
    path = Path(file)
    record = {"kind": _KIND, "format": FORMAT, "sha256": _sha256(state), "state": state}
    atomic.write(path, (json.dumps(record, allow_nan=False) + "\n").encode())
    return path


def read_state(file: str | os.PathLike[str], kinds: Mapping[str, tuple[type, ...]]) -> dict[str, Any]:
    """A state that has fields of these types and is as it was written."""
    path = Path(file)
    if not path.is_file():
        raise FileNotFoundError(f"no saved monitor there: {path}")
    try:
        record = json.loads(path.read_bytes(), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not a saved monitor: {error}") from None
    if not isinstance(record, dict) or record.get("kind") != _KIND:
        raise ValueError(f"{path} is not a saved monitor")
    if record.get("format") != FORMAT:
        raise ValueError(f"{path} has format {record.get('format')!r}, and this davis reads {FORMAT}: update davis")
    state = record.get("state")
    if not isinstance(state, dict) or record.get("sha256") != _sha256(state):
        raise ValueError(f"{path} was changed after it was saved (its sha256 differs); start a new monitor")
    for name, types in kinds.items():
        if name not in state or type(state[name]) not in types:
            raise ValueError(f"{path}: field {name!r} must be a {types[0].__name__}, got {state.get(name)!r}"[:300])
    if state.keys() - kinds.keys():
        raise ValueError(f"{path} has unknown field {sorted(state.keys() - kinds.keys())[0]!r}")
    return state


def _sha256(state: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True, allow_nan=False).encode()).hexdigest()


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no number")
