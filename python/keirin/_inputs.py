# SPDX-License-Identifier: Apache-2.0
"""What a graph of Dynamo's may take if it is to be compiled: plain strided tensors of one device, and numbers. A single number in the
processor's memory, which LibTorch's operators take along anywhere (a learning rate that changes in each step), is of any device."""
from __future__ import annotations

from typing import Any

import torch

from keirin._errors import NotCaptured


def check_tensors(examples: list[Any]) -> None:
    for each in examples:
        if not isinstance(each, torch.Tensor):
            continue
        if type(each) not in (torch.Tensor, torch.nn.Parameter):
            raise NotCaptured(f"an input is a {type(each).__name__}, a class with a meaning of its own")
        if each.layout != torch.strided or each.is_quantized:
            raise NotCaptured(f"an input is of layout {each.layout}, quantised or not, that is not compiled")


def device_of(examples: list[Any]) -> torch.device:
    tensors = [each for each in examples if isinstance(each, torch.Tensor)]
    devices = {each.device for each in tensors if each.dim() > 0 or each.device.type != "cpu"} or {each.device for each in tensors}
    if len(devices) != 1:
        raise NotCaptured("the inputs and weights are on " + (" and ".join(sorted(map(str, devices))) or "no device"))
    return devices.pop()
