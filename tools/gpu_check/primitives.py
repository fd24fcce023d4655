"""Device time of each primitive beside cuBLAS, cuSPARSE and torch, quantization included."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

import gqc.runtime.ops  # noqa: F401  registers torch.ops.gqc
from gqc.runtime.relation import reverse
from tools.gpu_check.graphs import Task, draw, laws
from tools.gpu_check.place import Place
from tools.gpu_check.record import Found, attempt

_HEADS = 8
_MOST_GATHERED = 2**33  # bytes that a peer may materialise for all edges
FLOAT, BFLOAT = torch.float32, torch.bfloat16
Contestants = dict[str, Callable[[], Any]]


class Bout(NamedTuple):
    """What is timed against each other.

    Attributes:
        title: the primitive and its size.
        contestants: gqc's and the peers'.
        ratios: peer and contestant of gqc whose ratio a goal is about.
    """

    title: str
    contestants: Contestants
    ratios: tuple[tuple[str, str], ...]


def dense(place: Place, until: float) -> Found:
    """GEMM and quantization at ogbn-arxiv's number of nodes."""
    nodes, widths = (64, (16,)) if place.dry else (laws(place.dry)["arxiv"].nodes, (128, 256, 512))
    return _time(place, until, (bout for width in widths for bout in _dense(place, nodes, width)))


def sparse(place: Place, until: float, law: str) -> Found:
    """SPMM, SDDMM, edge softmax and GAT's edge phase on a graph of one of :func:`laws`."""
    task = draw(laws(place.dry)[law], place.device)
    return _time(place, until, _sparse(place, task, 16 if place.dry else 128, law))


def _time(place: Place, until: float, bouts: Iterator[Bout]) -> Found:
    found, rounds = Found(), 1 if place.dry else 15
    with place.running():
        for bout in bouts:
            if time.monotonic() > until:
                found.missing.append(f"{bout.title}: no time")
                continue
            able = attempt(found, bout.title, lambda bout=bout: _able(place, bout, found)) or {}
            timings = place.paired(able, rounds, until) if able else {}
            for name, timing in timings.items():
                row = {"primitive": bout.title, "contestant": name, "us": round(1e6 * timing.median, 1)}
                found.rows.append({**row, "speed-up": _ratios(bout, name, timings)})
    return found


def _able(place: Place, bout: Bout, found: Found) -> Contestants:
    """The contestants that run. A peer that cannot gets a row that says so: it is no fault of gqc."""
    able = {}
    for name, run in bout.contestants.items():
        try:
            run()
            place.synchronize()
        except Exception as error:
            if name.startswith("gqc"):
                raise
            row = {"primitive": bout.title, "contestant": name, "us": f"cannot: {type(error).__name__}"}
            found.rows.append({**row, "speed-up": ""})
        else:
            able[name] = run
    return able


def _ratios(bout: Bout, name: str, timings: dict[str, Any]) -> str:
    texts = [
        f"{timings[name].speedup_over(timings[peer]):.2f} x {peer}"
        for peer, ours in bout.ratios
        if ours == name and peer in timings
    ]
    return ", ".join(texts)


def _dense(place: Place, nodes: int, width: int) -> Iterator[Bout]:
    ops = torch.ops.gqc
    x, weight = torch.randn(nodes, width, device=place.device), torch.randn(width, width, device=place.device)
    seed = torch.tensor([3, 0], device=place.device)

    def int8(t: Tensor) -> tuple[Tensor, Tensor]:
        return ops.quantize(t, None, seed, 0, 8, True)

    absmax, out = ops.absmax(x), torch.empty_like(x)

    def quantized(t: Tensor) -> tuple[Tensor, Tensor]:
        return ops.quantize(t, absmax, seed, 0, 8, True)

    yield Bout(
        f"quantize {nodes} x {width}",
        {
            "gqc, absmax known": lambda: quantized(x),
            "gqc, with absmax": lambda: int8(x),
            "copy fp32": lambda: out.copy_(x),
        },
        (("copy fp32", "gqc, absmax known"), ("copy fp32", "gqc, with absmax")),
    )
    q, w, xb, wb = int8(x), int8(weight), x.bfloat16(), weight.bfloat16()
    yield Bout(
        f"GEMM {nodes} x {width} x {width}",
        {
            "gqc int8, fp32 in": lambda: ops.qgemm(*quantized(x), *w, False, False, None, FLOAT),
            "gqc int8, int8 in, bf16 out": lambda: ops.qgemm(*q, *w, False, False, None, BFLOAT),
            "cuBLAS fp32": lambda: _matmul(x, weight, tf32=False),
            "cuBLAS TF32": lambda: _matmul(x, weight, tf32=True),
            "cuBLAS bf16": lambda: xb @ wb,
        },
        (
            ("cuBLAS fp32", "gqc int8, fp32 in"),
            ("cuBLAS TF32", "gqc int8, int8 in, bf16 out"),
            ("cuBLAS bf16", "gqc int8, int8 in, bf16 out"),
        ),
    )


def _matmul(a: Tensor, b: Tensor, tf32: bool) -> Tensor:
    torch.backends.cuda.matmul.allow_tf32 = tf32
    return a @ b


def _sparse(place: Place, task: Task, width: int, law: str) -> Iterator[Bout]:
    ops, g, nodes, edges = torch.ops.gqc, task.g, len(task.x), len(task.g[1])
    x = torch.randn(nodes, width, device=place.device)
    seed = torch.tensor([3, 0], device=place.device)
    absmax, q = ops.absmax(x), ops.quantize(x, None, seed, 0, 8, True)
    ones, xb = torch.ones(edges, device=place.device), x.bfloat16()
    matrix = torch.sparse_csr_tensor(g[0], g[1], ones, (nodes, nodes))
    half = torch.sparse_csr_tensor(g[0], g[1], ones.bfloat16(), (nodes, nodes))
    yield Bout(
        f"SPMM {law}, D = {width}",
        {
            "gqc int8, quantize included": lambda: ops.qspmm(
                g, "copy_lhs", *ops.quantize(x, absmax, seed, 0, 8, True), None, None, FLOAT
            ),
            "gqc int8": lambda: ops.qspmm(g, "copy_lhs", *q, None, None, FLOAT),
            "gqc fp32": lambda: ops.spmm(g, "copy_lhs", x, None),
            "cuSPARSE fp32": lambda: matrix @ x,
            "cuSPARSE bf16": lambda: half @ xb,
        },
        (("cuSPARSE fp32", "gqc int8, quantize included"), ("cuSPARSE fp32", "gqc fp32")),
    )
    packed = (*ops.quantize_int4(x, None, seed, 0, 4, True), [width])
    dots: Contestants = {
        "gqc int8": lambda: ops.qsddmm(g, "dot", *q, *q, "u", "v", FLOAT),
        "gqc int4": lambda: ops.qsddmm_int4(g, "dot", *packed, *packed, "u", "v", FLOAT),
        "gqc fp32": lambda: ops.sddmm(g, "dot", x, x, "u", "v"),
    }
    if 4 * edges * width <= _MOST_GATHERED:
        dots["torch fp32"] = lambda: (x[task.edge_index[0]] * x[task.edge_index[1]]).sum(-1)
    ratios = (("gqc fp32", "gqc int8"), ("gqc fp32", "gqc int4"), ("torch fp32", "gqc fp32"))
    yield Bout(f"SDDMM dot {law}, D = {width}", dots, ratios)
    ends = [torch.randn(nodes, _HEADS, device=place.device) for _ in range(2)]
    yield Bout(
        f"SDDMM add {law}, {_HEADS} heads",
        {
            "gqc fp32": lambda: ops.sddmm(g, "add", *ends, "u", "v"),
            "torch fp32": lambda: ends[0][task.edge_index[0]] + ends[1][task.edge_index[1]],
        },
        (("torch fp32", "gqc fp32"),),
    )
    yield from _attention(place, task, width, law)
    logits = torch.randn(edges, _HEADS, device=place.device)
    alpha, grad = ops.edge_softmax(g, logits), torch.randn_like(logits)
    target = task.edge_index[1]
    yield Bout(
        f"edge softmax {law}, {_HEADS} heads",
        {"gqc": lambda: ops.edge_softmax(g, logits), "torch ops": lambda: _softmax_of_torch(logits, target, nodes)},
        (("torch ops", "gqc"),),
    )
    yield Bout(
        f"edge softmax backward {law}, {_HEADS} heads",
        {
            "gqc": lambda: ops.edge_softmax_bwd(g, alpha, grad),
            "torch ops": lambda: _softmax_gradient_of_torch(alpha, grad, target, nodes),
        },
        (("torch ops", "gqc"),),
    )


def _attention(place: Place, task: Task, width: int, law: str) -> Iterator[Bout]:
    """GAT's edge phase in one op beside the ops that it stands for, with the dropout that GAT's authors use."""
    ops, g, nodes, edges = torch.ops.gqc, task.g, len(task.x), len(task.g[1])
    slope, p, node = 0.2, 0.6, 0
    seed = torch.tensor([3, 0], device=place.device)
    el, er = (torch.randn(nodes, _HEADS, device=place.device) for _ in range(2))
    u, grad = (torch.randn(nodes, _HEADS, width // _HEADS, device=place.device) for _ in range(2))
    uq, gradq = (ops.quantize(x, None, seed, 0, 8, True) for x in (u, grad))
    options = (slope, p, seed, node, FLOAT)

    def weights() -> tuple[Tensor, Tensor, Tensor, Tensor]:
        logits = ops.sddmm(g, "add", el[..., None], er[..., None], "u", "v")
        alpha = ops.edge_softmax(g, F.leaky_relu(logits, slope))
        return logits, alpha, *ops.dropout(alpha, p, seed, node)

    def of_torch() -> Tensor:
        source, target = task.edge_index
        logits = F.leaky_relu(el[source] + er[target], slope)
        alpha = F.dropout(_softmax_of_torch(logits, target, nodes), p)
        return torch.zeros_like(u).index_add_(0, target, alpha[..., None] * u[source])

    forward: Contestants = {
        "gqc int8": lambda: ops.gat(g, el, er, *uq, *options),
        "gqc fp32": lambda: ops.gat(g, el, er, u, None, *options),
        "gqc int8, op by op": lambda: ops.qspmm(g, "mul", *uq, weights()[2], None, FLOAT),
        "gqc fp32, op by op": lambda: ops.spmm(g, "mul", u, weights()[2]),
    }
    if 4 * edges * width <= _MOST_GATHERED:
        forward["torch fp32"] = of_torch
    ratios = (("gqc int8, op by op", "gqc int8"), ("gqc fp32, op by op", "gqc fp32"), ("torch fp32", "gqc int8"))
    title = f"{law}, {_HEADS} heads, D = {width}"
    yield Bout(f"GAT edge phase {title}", forward, ratios)

    softmax = ops.gat(g, el, er, *uq, *options)[2:]
    logits, alpha, dropped, mask = weights()

    def op_by_op() -> tuple[Tensor, ...]:
        d_u = ops.qspmm(reverse(g), "mul", *gradq, dropped, None, FLOAT)[0]
        d_alpha = ops.dropout_backward(ops.qsddmm(g, "dot", *uq, *gradq, "u", "v", FLOAT), mask, p)
        d_logits = ops.edge_softmax_bwd(g, alpha, d_alpha)
        d_logits = torch.where(logits > 0, d_logits, slope * d_logits)
        return d_u, *(ops.spmm(h, "copy_rhs", None, d_logits) for h in (reverse(g), g))

    yield Bout(
        f"GAT edge phase backward {title}",
        {
            "gqc int8": lambda: ops.gat_bwd(g, el, er, *softmax, *uq, *gradq, *options),
            "gqc fp32": lambda: ops.gat_bwd(g, el, er, *softmax, u, None, grad, None, *options),
            "gqc int8, op by op": op_by_op,
        },
        (("gqc int8, op by op", "gqc int8"), ("gqc int8, op by op", "gqc fp32")),
    )


def _softmax_of_torch(logits: Tensor, target: Tensor, nodes: int) -> Tensor:
    index = target[:, None].expand_as(logits)
    largest = logits.new_zeros(nodes, logits.shape[1]).scatter_reduce_(0, index, logits, "amax", include_self=False)
    weights = (logits - largest[target]).exp()
    return weights / logits.new_zeros(nodes, logits.shape[1]).index_add_(0, target, weights)[target]


def _softmax_gradient_of_torch(alpha: Tensor, grad: Tensor, target: Tensor, nodes: int) -> Tensor:
    product = alpha * grad
    return product - alpha * alpha.new_zeros(nodes, alpha.shape[1]).index_add_(0, target, product)[target]
