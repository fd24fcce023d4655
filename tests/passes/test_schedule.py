"""Readers of one int8 copy run one after the other, and nothing else changes."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from gqc.passes import apply, run, schedule
from gqc.passes.int8_copies import copies_and_readers
from gqc.passes.nodes import half, is_random, mutates
from gqc.passes.report import MOVED
from gqc.policy import Policy
from tests.passes.models import MODELS, case, ops

POLICY = Policy(min_size=0, keep_output_layer=False, rounding="nearest", skip=("schedule",))


def int8(x):
    return ops.quantize.default(x, None, None, 0, 8, False)


def deq(pair):
    return ops.dequantize.default(*pair, torch.float32)


def order(graph) -> list[str]:
    return [n.name for n in graph.graph.nodes if n.op == "call_function"]


def test_readers_stand_together():
    def function(x, y):
        copy = int8(x)
        first = deq(copy)
        z = (y @ y).exp()
        return first, z, deq(copy)

    inputs = torch.randn(8, 6), torch.randn(6, 6)
    graph = make_fx(function)(*inputs)
    expected = graph(*inputs)
    report = apply(schedule, graph)
    assert [(d.node, d.action, d.reason) for d in report.decisions] == [
        ("dequantize_1", MOVED, "beside dequantize, which reads the int8 copy of x_1 too")
    ]
    names = order(graph)
    assert names.index("dequantize_1") == names.index("dequantize") + 1
    torch.testing.assert_close(graph(*inputs), expected, rtol=0, atol=0)
    assert apply(schedule, graph).decisions == []


def test_a_reader_that_waits_for_other_work_stays():
    def function(x, y):
        copy = int8(x)
        return deq(copy), ops.qgemm.default(*copy, *int8(y @ y), False, False, None, torch.float32)[0]

    graph = make_fx(function)(torch.randn(8, 6), torch.randn(6, 6))
    before = order(graph)
    assert apply(schedule, graph).decisions == []
    assert order(graph) == before


def test_in_place_updates_are_not_crossed():
    def function(x, y):
        copy = int8(x)
        first = deq(copy)
        y.mul_(2)
        return first, deq(copy) + y

    graph = make_fx(function)(torch.randn(8, 6), torch.randn(8, 6))
    before = order(graph)
    assert apply(schedule, graph).decisions == []
    assert order(graph) == before


def test_random_ops_keep_their_order():
    def function(x):
        copy = int8(x)
        first = deq(copy) + torch.rand(8, 6)
        second = torch.rand(8, 6)
        return first, second, torch.bernoulli(deq(copy).abs().clamp(max=1)) + second

    x = torch.randn(8, 6)
    graph = make_fx(function)(x)
    random_nodes = [n for n in graph.graph.nodes if is_random(n)]
    torch.manual_seed(3)
    expected = graph(x)
    apply(schedule, graph)
    assert [n for n in graph.graph.nodes if is_random(n)] == random_nodes
    torch.manual_seed(3)
    torch.testing.assert_close(graph(x), expected, rtol=0, atol=0)


@pytest.mark.parametrize(("name", "moves"), [("rgcn", True), ("mlp", False)])
def test_on_models(name, moves):
    joint = case(MODELS[name]()).joint
    run(joint, replace(POLICY, skip=(*POLICY.skip, "fuse_products")))
    nodes, names = set(joint.graph.nodes), {n.name for n in joint.graph.nodes}
    updates = [n for n in joint.graph.nodes if mutates(n)]
    distance = spread(joint)
    report = schedule(joint, POLICY)
    joint.graph.lint()  # every node after what it reads
    assert (set(joint.graph.nodes), {n.name for n in joint.graph.nodes}) == (nodes, names)
    assert [n for n in joint.graph.nodes if mutates(n)] == updates
    assert bool(report.decisions) == moves
    assert (spread(joint) < distance) == moves


def spread(joint) -> int:
    """How many calls lie between the first and the last reader of the copies, half by half."""
    calls = {n: i for i, n in enumerate(n for n in joint.graph.nodes if n.target not in (ops.quantize.default,))}
    total = 0
    for readers in copies_and_readers(joint).values():
        for side in ("forward", "backward"):
            places = [calls[r] for r in readers if half(r) == side]
            total += max(places, default=0) - min(places, default=0)
    return total


def test_random_graphs_stay_the_same_programs():
    """Copies, readers and other work in any order compute what they did."""
    for seed in range(20):

        def function(x):
            rng = random.Random(seed)  # noqa: B023  traced at once
            values, copies = [x], [int8(x)]
            for _ in range(12):
                kind = rng.randrange(4)
                if kind == 0:
                    copies.append(int8(rng.choice(values)))
                elif kind == 1:
                    values.append(deq(rng.choice(copies)))
                elif kind == 2:
                    values.append(rng.choice(values).sin() + rng.choice(values))
                else:
                    values.append(rng.choice(values).t().contiguous().t())
            return tuple(values[1:])

        x = torch.randn(5, 5)
        graph = make_fx(function)(x)
        expected = graph(x)
        apply(schedule, graph)
        torch.testing.assert_close(graph(x), expected, rtol=0, atol=0)
