"""The ``gqc`` operator library. Each family module defines its ops here: schema, implementation, fake kernel.

``torch.library.custom_op`` would cost 12-23 µs a call, a plain ``Library`` costs 2-3.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gqc.errors import KernelError

LIBRARY = torch.library.Library("gqc", "DEF")
NAMESPACE = LIBRARY.ns


def define(schema: str, *, kernel: Callable[..., Any], fake: Callable[..., Any], one_device: bool = True) -> None:
    """Register ``gqc::<schema>`` with what runs it on CPU and CUDA tensors and its fake kernel (shapes and dtypes).

    With ``one_device`` tensors on several devices are refused: kernels are given addresses and could not tell.
    """
    name = schema.partition("(")[0]
    check = functools.partial(_on_one_device, name) if one_device else lambda function: function
    LIBRARY.define(schema)
    LIBRARY.impl(name, kernel, "CPU")  # gets tensors of the CPU only: torch gives all others to the other one
    LIBRARY.impl(name, check(kernel), "CUDA")
    torch.library.register_fake(f"{NAMESPACE}::{name}", check(fake), lib=LIBRARY)


def _on_one_device(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def checked(*arguments: Any, **options: Any) -> Any:
        device = None
        for x in (*arguments, *options.values()):
            tensor = x[0] if isinstance(x, list | tuple) and x else x  # a relation's tensors were made together
            if isinstance(tensor, Tensor):
                if device is None:
                    device = tensor.device
                elif tensor.device != device:
                    raise KernelError(
                        f"torch.ops.gqc.{name} got tensors on {device} and on {tensor.device}: "
                        "move the model and all of its inputs to one device"
                    )
        return function(*arguments, **options)

    return checked


def differentiate(name: str, backward: Callable[..., Any], setup_context: Callable[..., None]) -> None:
    """Register the gradient of ``gqc::name``, as ``torch.library.register_autograd`` takes it."""
    torch.library.register_autograd(f"{NAMESPACE}::{name}", backward, setup_context=setup_context, lib=LIBRARY)


def refuse_gradient(name: str, *tensors: Tensor | None) -> None:
    """Raise where autograd would record a quantized op, which has no derivative of its own.

    Raises:
        KernelError: if grad mode is on and a tensor requires grad.
    """
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        raise KernelError(
            f"torch.ops.gqc.{name} has no gradient and an argument requires one: call it under torch.no_grad() "
            "or detach the argument (gqc.compile writes the backward of quantized primitives itself)"
        )
