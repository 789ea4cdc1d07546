"""Tensors by name in files of other people's: read without running anything in them, and compared with a network."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

_WRAPPERS = ("state_dict", "model", "model_state_dict")  # where training scripts put the weights in their files


def read_state_dict(file: Path, advice: str) -> dict[str, Tensor]:
    """The tensors in a file, by name; ``advice`` ends what is said of a file that holds something else."""
    try:
        if file.suffix == ".safetensors":
            tensors: Any = safetensors.torch.load_file(file)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # advice on TorchScript files, which are refused
                tensors = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged files raise nearly anything
        reason = first_line(error)
        if "weights_only" in str(error):  # torch's advice is to run what is in the file
            reason = "it is damaged, or holds more than a state dict, which is never run"
        raise ValueError(f"{file} is no file of plain tensors (.pth, .pt, .safetensors): {reason}; {advice}") from error
    for wrapper in _WRAPPERS:
        if isinstance(tensors, Mapping) and isinstance(tensors.get(wrapper), Mapping):
            tensors = tensors[wrapper]
    if not isinstance(tensors, Mapping) or not all(
        isinstance(key, str) and isinstance(value, Tensor) for key, value in tensors.items()
    ):
        raise ValueError(f"{file} holds no dictionary of tensors; {advice}")
    return {key.removeprefix("module."): value for key, value in tensors.items()}  # of DataParallel


def check_fit(tensors: Mapping[str, Tensor], model: nn.Module, file: Path, name: str, advice: str) -> None:
    """Refuse tensors that are not those of the network; ``advice`` ends what is said of them."""
    wanted = model.state_dict()
    for problem, keys in (("lacks", wanted.keys() - tensors.keys()), ("has unknown", tensors.keys() - wanted.keys())):
        if keys:
            raise ValueError(
                f"{file} does not fit {name!r}: it {problem} {sorted(keys)[0]!r} and {len(keys) - 1} others; {advice}"
            )
    for key, value in tensors.items():
        if value.shape != wanted[key].shape:
            raise ValueError(
                f"{file} does not fit {name!r}: {key!r} is {tuple(value.shape)} there and {tuple(wanted[key].shape)} "
                f"in the model; {advice}"
            )


def first_line(error: BaseException) -> str:
    """The error's kind and the first line of what it says."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip('.')}" if lines else type(error).__name__
