"""Copies between the host and a device. On CUDA they are asynchronous, through pinned memory."""

from __future__ import annotations

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A host tensor on a device."""
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def copy_into(host: Tensor, tensor: Tensor) -> Tensor:
    """Copy to the host; asynchronous on CUDA, where an event must be waited for."""
    return host.copy_(tensor, non_blocking=tensor.is_cuda)


def copy_parts_into(host: Tensor, tensor: Tensor) -> None:
    """The same for a target that may be contiguous in its parts only."""
    if host.is_contiguous() or not tensor.is_cuda:
        copy_into(host, tensor)
        return
    for part, values in zip(host, tensor, strict=True):
        copy_into(part, values)
