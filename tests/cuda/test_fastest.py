"""The measured choice between gqc's SPMM and products of cuSPARSE."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gqc.runtime import ops  # noqa: F401  registers torch.ops.gqc
from gqc.runtime.cuda import cusparse
from gqc.runtime.cuda.cusparse import CUSPARSE, ONE_KERNEL, fastest_spmm
from gqc.runtime.cuda.fastest import Fastest
from gqc.runtime.reference.spmm import spmm as reference
from tests.runtime.graph_cases import assert_near, features, graph, large_graph

Relation = list[Tensor]


class Counted:
    """Ways that count their calls, and a clock under which a way takes the seconds that it is told."""

    def __init__(self, **seconds: float) -> None:
        self.calls = dict.fromkeys(seconds, 0)
        self.seconds = seconds
        self.ways = {name: self._way(name) for name in seconds}

    def _way(self, name: str) -> Callable[[], str]:
        def way() -> str:
            self.calls[name] += 1
            return name

        return way

    def clock(self, way: Callable[[], object]) -> float:
        return self.seconds[str(way())]


def test_each_class_is_measured_once_after_its_first_calls() -> None:
    chooser, contest = Fastest(after=2), Counted(first=2.0, second=1.0, third=3.0)
    names = [chooser.choose("a", contest.ways, contest.clock) for _ in range(5)]
    assert names == ["first", "first", "second", "second", "second"]
    assert set(contest.calls.values()) == {3}
    contest.seconds["first"] = 0.5
    assert [chooser.choose("b", contest.ways, contest.clock) for _ in range(3)] == ["first"] * 3
    assert chooser.choices() == {"a": "second", "b": "first"}


def test_the_number_of_classes_is_bounded() -> None:
    chooser, contest = Fastest(after=1, most=2), Counted(first=2.0, second=1.0)
    for sizes in range(4):
        chooser.choose(sizes, contest.ways, contest.clock)
    assert [chooser.choose(sizes, contest.ways, contest.clock) for sizes in range(4)] == ["second"] * 2 + ["first"] * 2


def test_nothing_is_decided_where_nothing_can_be_measured() -> None:
    chooser, contest = Fastest(after=0), Counted(first=2.0, second=1.0)
    assert chooser.choose("a", contest.ways, lambda way: None) == "first"
    assert chooser.choices() == {}
    assert chooser.choose("a", contest.ways, contest.clock) == "second"


def test_a_way_without_memory_is_not_taken_and_the_first_ones_error_is_the_users() -> None:
    def fail() -> None:
        raise torch.OutOfMemoryError("no memory")

    contest = Counted(good=1.0)
    assert Fastest(after=0).choose("a", {**contest.ways, "bad": fail}, contest.clock) == "good"
    with pytest.raises(torch.OutOfMemoryError, match="no memory"):
        Fastest(after=0).choose("a", {"bad": fail, **contest.ways}, lambda way: 1.0 if way() else 2.0)


SHAPES = [
    ((5,), None),
    ((5,), (1,)),
    ((), None),
    ((), ()),
    ((3, 4), (1, 1)),
    ((3, 4), (3, 1)),
    ((2, 3, 4), (2, 1, 1)),
]


@pytest.mark.parametrize("kind", ["random", "bipartite", "isolated", "parallel"])
@pytest.mark.parametrize(("of_nodes", "of_edges"), SHAPES)
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_products_are_the_sum_of_messages(
    kind: str, of_nodes: tuple[int, ...], of_edges: tuple[int, ...] | None, index: torch.dtype
) -> None:
    g, op = graph(kind, index), "copy_lhs" if of_edges is None else "mul"
    u, e = features(g, "u", of_nodes), None if of_edges is None else features(g, "e", of_edges)
    heads = cusparse._heads(op, u, e)
    assert heads is not None
    assert_near(cusparse.by_cusparse(g, u, e, heads), reference(g, op, u, e))


@pytest.mark.parametrize(
    ("op", "of_nodes", "of_edges"),
    [
        ("copy_rhs", None, (3,)),
        ("add", (3,), (1,)),
        ("mul", (3,), (3,)),
        ("mul", (1, 4), (3, 1)),
        ("mul", (), (1, 1)),
        ("mul", (3, 4), (3, 4)),
    ],
)
def test_what_cusparse_has_no_form_of_is_one_kernel(
    op: str, of_nodes: tuple[int, ...] | None, of_edges: tuple[int, ...]
) -> None:
    g = graph("random")
    u = None if of_nodes is None else features(g, "u", of_nodes)
    assert cusparse._heads(op, u, features(g, "e", of_edges)) is None


@pytest.fixture
def chooser(monkeypatch: pytest.MonkeyPatch) -> Fastest:
    chooser = Fastest(after=0)
    monkeypatch.setattr(cusparse, "choice", chooser)
    monkeypatch.setattr(cusparse, "_LEAST_EDGES", 100)
    return chooser


def test_the_faster_one_runs(chooser: Fastest) -> None:
    g, taken = large_graph(), []
    u, e = features(g, "u", (3, 4)), features(g, "e", (3, 1))

    def one_kernel() -> Tensor:
        taken.append(ONE_KERNEL)
        return torch.ops.gqc.spmm(g, "mul", u, e)

    def clock(way: Callable[[], object]) -> float:
        before = len(taken)
        way()
        return 2.0 if len(taken) > before else 1.0

    assert_near(fastest_spmm(g, "mul", u, e, one_kernel, torch.clone, clock), reference(g, "mul", u, e))
    assert list(chooser.choices().values()) == [CUSPARSE]
    taken.clear()
    fastest_spmm(g, "mul", u, e, one_kernel, torch.clone, clock)
    assert not taken

    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        fastest_spmm(g, "mul", u, e, one_kernel, torch.clone, clock)
    finally:
        torch.use_deterministic_algorithms(before)
    assert taken == [ONE_KERNEL]


def test_small_graphs_are_not_measured(chooser: Fastest) -> None:
    g = graph("isolated")
    u = features(g, "u", (4,))
    fastest_spmm(
        g, "copy_lhs", u, None, lambda: torch.ops.gqc.spmm(g, "copy_lhs", u, None), torch.clone, lambda way: 1.0
    )
    assert chooser.choices() == {}


def test_the_op_on_a_gpu_chooses(chooser: Fastest, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.emu import emulator

    g = large_graph()
    u, target = features(g, "u", (4,)), emulator.Emulator(emulator.library())
    monkeypatch.setattr(target, "seconds", lambda way: float(len(str(way()))), raising=False)
    with target.running():
        assert_near(torch.ops.gqc.spmm(g, "copy_lhs", u, None), reference(g, "copy_lhs", u, None))
    assert len(chooser.choices()) == 1


def test_a_recording_remembers_no_memory_and_reads_none_that_may_be_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    indices = torch.randint(9, (30,))
    remembered = cusparse._ones(indices)
    assert cusparse._ones(indices) is remembered
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    others = [cusparse._ones(x) for x in (indices, indices, torch.randint(9, (30,)))]
    assert len({x.data_ptr() for x in (remembered, *others)}) == 4
    monkeypatch.undo()
    assert cusparse._ones(indices) is remembered
