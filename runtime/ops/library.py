"""The ``gqc`` operator library. Each family module defines its ops here: schema, implementation, fake kernel.

``torch.library.custom_op`` would cost 12-23 µs a call, a plain ``Library`` costs 2-3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gqc.errors import KernelError

LIBRARY = torch.library.Library("gqc", "DEF")
NAMESPACE = LIBRARY.ns


def define(schema: str, *, kernel: Callable[..., Any], fake: Callable[..., Any]) -> None:
    """Register ``gqc::<schema>`` with what runs it on CPU and CUDA tensors and its fake kernel (shapes and dtypes)."""
    name = schema.partition("(")[0]
    LIBRARY.define(schema)
    for key in ("CPU", "CUDA"):
        LIBRARY.impl(name, kernel, key)
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=LIBRARY)


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
