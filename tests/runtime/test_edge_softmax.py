"""Edge softmax in float32 against its reference."""

from __future__ import annotations

import pytest
import torch

from gqc.errors import KernelError
from gqc.runtime import ops  # noqa: F401  registers torch.ops.gqc
from gqc.runtime.reference import edge_softmax as reference
from tests.runtime.graph_cases import (
    GRAPHS,
    assert_near,
    assert_same_with_gradients,
    assert_sound,
    dgl_graph,
    graph,
    large_graph,
    on_all_backends,
)

gqc = torch.ops.gqc
HEADS = [(), (1,), (2,), (3,), (4, 1), (8, 1), (16,), (2, 3, 4), (37,), (64,)]


def logits(g: list[torch.Tensor], heads: tuple[int, ...], spread: float = 5.0) -> torch.Tensor:
    return torch.randn(g[6].shape[0], *heads) * spread


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("kind", ["random", "hub", "single"])
def test_equals_reference_for_any_number_of_heads(backend: str, kind: str, heads: tuple[int, ...]) -> None:
    g = graph(kind)
    assert_same_with_gradients(
        lambda x: gqc.edge_softmax(g, x), lambda x: reference.edge_softmax(g, x), [logits(g, heads)]
    )


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("kind", GRAPHS)
def test_equals_reference_on_every_kind_of_graph(kind: str, index: torch.dtype) -> None:
    g = graph(kind, index)
    for heads in ((4,), (0,)):
        assert_same_with_gradients(
            lambda x: gqc.edge_softmax(g, x), lambda x: reference.edge_softmax(g, x), [logits(g, heads)]
        )


def test_is_as_exact_as_torch(backend: str) -> None:
    g = graph("hub")
    x = logits(g, (4,), spread=20.0)
    want = reference.edge_softmax(g, x.double())
    large = want > 1e-30

    def error(got: torch.Tensor) -> float:
        return ((got - want) / want)[large].abs().max().item()

    assert error(gqc.edge_softmax(g, x)) < 2 * error(reference.edge_softmax(g, x))


def test_does_not_depend_on_threads_or_instruction_set() -> None:
    g = large_graph()
    x, grad = logits(g, (8,)), torch.randn(6000, 8)
    results = on_all_backends(lambda: gqc.edge_softmax(g, x))
    for i in range(0, len(results), 3):
        assert torch.equal(results[i], results[i + 1])
        assert torch.equal(results[i], results[i + 2])
        assert_near(results[i], reference.edge_softmax(g, x.double()))
    for result in on_all_backends(lambda: gqc.edge_softmax_bwd(g, results[0], grad)):
        assert_near(result, reference.edge_softmax_bwd(g, results[0].double(), grad.double()))


def test_masked_large_and_missing_logits_act_as_in_torch(backend: str) -> None:
    g = graph("hub")
    x = logits(g, (5,))
    row = g[7] == 17
    x[:100, 0] = -float("inf")
    x[row, 1] = -float("inf")
    x[row, 2] *= 1e30
    x[row.nonzero()[0], 3] = float("nan")
    x[row.nonzero()[1], 4] = float("inf")
    want = reference.edge_softmax(g, x)
    assert want[row][:, [1, 3, 4]].isnan().all()
    torch.testing.assert_close(gqc.edge_softmax(g, x), want, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_half_precision_is_computed_in_float32() -> None:
    g = graph("random")
    x = logits(g, (4,)).bfloat16().requires_grad_()
    out = gqc.edge_softmax(g, x)
    assert torch.equal(out, gqc.edge_softmax(g, x.float()).bfloat16())
    (d_x,) = torch.autograd.grad(out.float().square().sum(), x)
    assert d_x.dtype == torch.bfloat16


def test_gradient_of_float64_passes_gradcheck() -> None:
    g = graph("parallel")
    torch.autograd.gradcheck(lambda x: gqc.edge_softmax(g, x), torch.randn(60, 2, dtype=torch.float64).requires_grad_())


def test_ops_are_sound() -> None:
    g = graph("bipartite")
    x = logits(g, (4, 1)).requires_grad_()
    assert_sound(gqc.edge_softmax.default, g, x)
    assert_sound(gqc.edge_softmax_bwd.default, g, x.detach(), x.detach())


@pytest.mark.parametrize("kind", ["random", "isolated"])
def test_equals_dgl(kind: str) -> None:
    g = graph(kind)
    graph_of_dgl = dgl_graph(g)
    from dgl.nn.functional import edge_softmax

    assert_same_with_gradients(
        lambda x: gqc.edge_softmax(g, x), lambda x: edge_softmax(graph_of_dgl, x), [logits(g, (4, 1))]
    )


def test_refuses_arguments_that_do_not_fit() -> None:
    g = graph("random")
    with pytest.raises(KernelError, match=r"\[199, 2\] .* 200 edges"):
        gqc.edge_softmax(g, torch.ones(199, 2))
    with pytest.raises(KernelError, match="they must be equal"):
        gqc.edge_softmax_bwd(g, torch.ones(200, 2), torch.ones(200, 3))
