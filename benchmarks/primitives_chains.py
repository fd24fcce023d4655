"""Chains of elementwise ops: gqc's interpreted programs beside eager torch and Inductor's compiled kernels.

First each chain alone, forward and backward, beside a copy; bytes are those of the matrix, the result and what gqc
saves. Then what a chain costs behind an int8 product, a float product and an int8 sum over neighbours, which are the
ceilings: gqc runs it inside the kernel, and Inductor's kernel can only follow. Where the next primitive reads int8, a
program rounds in the same kernel, and Inductor's result must be quantized. There Inductor saves nothing for a backward,
gqc does.

python -m benchmarks.primitives_chains --law arxiv --width 128
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from benchmarks.ceilings import Contestant, Group, copying, show
from benchmarks.chains import CHAINS, Chain
from benchmarks.graph_options import drawn, graph_parser
from benchmarks.halves import Call, compiled_halves, halves
from gqc.runtime import ops  # noqa: F401  registers torch.ops.gqc

gqc = torch.ops.gqc
FLOAT = torch.float32
BEHIND_PRIMITIVES = "ReLU", "ReLU, dropout"
EAGER, INDUCTOR, GQC = "torch", "Inductor", "gqc"


def own_halves(chain: Chain, inputs: list[Tensor], grad: Tensor, seed: Tensor) -> tuple[Call, Call]:
    """Forward and backward of a chain as programs, as lists of results."""
    values = [x.detach() for x in inputs]
    saved = gqc.pointwise(values, seed, chain.forward)[1:]
    read = [grad, *saved, *(values[i] for i in chain.read_again)]
    return (
        lambda: gqc.pointwise(values, seed, chain.forward),
        lambda: gqc.pointwise(read, seed, chain.backward, grad.shape),
    )


def alone(rows: int, width: int) -> Group:
    """Each chain as an op of its own."""
    x, grad, seed = torch.randn(rows, width, requires_grad=True), torch.randn(rows, width), torch.tensor([1, 2])
    found = copying(grad)
    for name, chain in CHAINS.items():
        inputs = [x, *chain.others(rows, width)]
        ways = {
            EAGER: halves(chain.function, inputs, grad),
            INDUCTOR: compiled_halves(chain.function, inputs, grad),
            GQC: own_halves(chain, inputs, grad, seed),
        }
        moved = {"copy": 2 * x.nbytes + _saved_bytes(ways[GQC][0])}
        for half, place in (("forward", 0), ("backward", 1)):
            for way, calls in ways.items():
                found[f"{name}, {half}, {way}"] = Contestant(calls[place], moved)
    return found


def _saved_bytes(forward: Callable[[], object]) -> int:
    _, *saved = forward()  # type: ignore[misc]
    return sum(t.nbytes for t in saved)


def behind_primitives(chain: Chain, g: list[Tensor], rows: int, width: int) -> Group:
    """A layer's chain inside of a primitive's kernel and after it, with a float32 result and with an int8 one."""
    seed = torch.tensor([1, 2])
    x, weight, others = torch.randn(rows, width), torch.randn(width, width), chain.others(rows, width)
    others = [t.detach() for t in others]
    q, q_weight = (gqc.quantize(t, None, seed, 0, 8, True) for t in (x, weight))
    compiled = torch.compile(chain.function, dynamic=False)
    rounding = re.sub(r"float32\((v\d)\)", r"int8(\1, 2, 8, 1)", chain.forward)
    primitives: dict[str, tuple[Callable[[], Tensor], Callable[..., list[Tensor]]]] = {
        "int8 product": (
            lambda: gqc.qgemm(*q, *q_weight, False, False, None, FLOAT)[0],
            partial(gqc.qgemm_pointwise, *q, *q_weight, False, FLOAT),
        ),
        "float product": (
            lambda: gqc.mm(x, weight, False, False, None, "bf16x3"),
            lambda *rest: gqc.mm_pointwise(x, weight, False, *rest, precision="bf16x3"),
        ),
        "int8 sum": (
            lambda: gqc.qspmm(g, "copy_lhs", *q, None, None, FLOAT)[0],
            partial(gqc.qspmm_pointwise, g, "copy_lhs", *q, None, None, FLOAT),
        ),
    }
    found: Group = {}
    for name, (bare, fused) in primitives.items():
        calls: dict[str, Callable[[], object]] = {
            "inside": partial(fused, others, seed, chain.forward),
            f"{GQC} after": lambda bare=bare: gqc.pointwise([bare(), *others], seed, chain.forward),
            f"{INDUCTOR} after": lambda bare=bare: compiled(bare(), *others),
            f"{INDUCTOR}, quantize": lambda bare=bare: gqc.quantize(compiled(bare(), *others), None, seed, 2, 8, True),
            f"{GQC} after, int8": lambda bare=bare: gqc.pointwise([bare(), *others], seed, rounding),
        }
        if name != "int8 sum":  # the scale comes before the rows, which would all be gathered twice
            calls["inside, int8"] = partial(fused, others, seed, rounding)
        found[name] = Contestant(bare, x.nbytes, ceiling=name)
        found |= {f"{name}, {way}": Contestant(call, {name: x.nbytes}) for way, call in calls.items()}
    return found


def main() -> None:
    parser = graph_parser(__doc__, rounds=5)  # a second a call where Inductor draws random numbers
    parser.add_argument("--width", type=int, default=128)
    args = parser.parse_args()
    graph = drawn(args)
    show(f"chains alone, float32 [{graph.nodes:,}, {args.width}]", alone(graph.nodes, args.width), args)
    for name in BEHIND_PRIMITIVES:
        group = behind_primitives(CHAINS[name], graph.g, graph.nodes, args.width)
        show(f"{name} behind primitives, width {args.width}, {graph.title}", group, args)


if __name__ == "__main__":
    main()
