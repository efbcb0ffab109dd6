"""Copies between the host and a device. On CUDA they are asynchronous, through pinned memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def to_device(values: Tensor | npt.NDArray[Any], device: torch.device) -> Tensor:
    """A host tensor or an array on a device."""
    if isinstance(values, np.ndarray):
        values = torch.from_numpy(np.ascontiguousarray(values))
    if device.type == "cuda":
        return values.pin_memory().to(device, non_blocking=True)
    return values.to(device)


def empty_host(shape: tuple[int, ...], dtype: torch.dtype, like: Tensor) -> Tensor:
    """A tensor in host memory, to which the device of `like` can copy in the background."""
    return torch.empty(shape, dtype=dtype, pin_memory=like.is_cuda)


def copy_into(host: Tensor, tensor: Tensor) -> None:
    """Copy to the host; asynchronous on CUDA, where an event must be waited for.

    A target that is contiguous in its parts only is copied part by part: CUDA waits otherwise.
    """
    if host.is_contiguous() or not tensor.is_cuda:
        host.copy_(tensor, non_blocking=tensor.is_cuda)
        return
    for part, values in zip(host, tensor, strict=True):
        copy_into(part, values)
