"""What is replaced inside DGL while a model is captured, and put back afterwards."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import dgl
import dgl.backend
import dgl.core
import dgl.readout
import dgl.transforms
import dgl.view
from dgl.base import ALL, is_all
from dgl.utils import prepare_tensor
from torch import Tensor
from torch._subclasses import FakeTensor

from gqc.capture.dgl import edges, mutation, reduce, segments, waist
from gqc.capture.dgl.index import Metagraph, TracedIndex
from gqc.errors import CaptureError

if TYPE_CHECKING:
    from gqc.capture.tracer import Tracer


def in_degrees(graph: dgl.DGLGraph, v: Any = ALL, etype: Any = None) -> Tensor:
    """Replaces ``DGLGraph.in_degrees``."""
    index: TracedIndex = graph._graph
    etid = graph.get_etype_id(etype)
    return index.all_in_degrees(etid) if is_all(v) else index.in_degrees(etid, prepare_tensor(graph, v, "v"))


def out_degrees(graph: dgl.DGLGraph, u: Any = ALL, etype: Any = None) -> Tensor:
    """Replaces ``DGLGraph.out_degrees``, which looks at the values of ``u``."""
    index: TracedIndex = graph._graph
    etid = graph.get_etype_id(etype)
    return index.all_out_degrees(etid) if is_all(u) else index.out_degrees(etid, prepare_tensor(graph, u, "u"))


def nodes_of(view: Any, ntype: str | None = None) -> Tensor:
    """Replaces ``DGLGraph.nodes(ntype)``."""
    return view._graph._graph.nodes(view._typeid_getter(ntype))


def find_src_dst_ntypes(ntypes: list[str], metagraph: Metagraph) -> tuple[dict[str, int], dict[str, int]] | None:
    """Replaces DGL's helper of the same name, whose C++ part needs a C++ metagraph."""
    parts = metagraph.bipartition()
    if parts is None:
        return None
    sources, targets = parts
    return {ntypes[i]: i for i in sources}, {ntypes[i]: i for i in targets}


def set_columns(graph: dgl.DGLGraph, *args: Any) -> NoReturn:
    """Replaces writes to a graph that is not an argument: a recorded tensor must not end up in it."""
    raise CaptureError("forward uses a DGLGraph that is not one of its arguments; pass the graph to forward")


def to_library(data: Any) -> NoReturn:
    """Replaces the conversion of tensors for DGL's C++ library, which cannot read recorded ones."""
    raise CaptureError("forward calls a DGL function that has no form in which it could be recorded")


def replace_inf_with_zero(x: Tensor) -> Tensor:
    """Replaces DGL's clean-up after max and min, whose empty rows are 0 here already.

    A real infinity in the messages stays, so that it is seen.
    """
    return x


def _first_is_traced_index(args: tuple[Any, ...]) -> bool:
    return type(args[0]) is TracedIndex


def _first_is_traced_graph(args: tuple[Any, ...]) -> bool:
    return type(args[0]._graph) is TracedIndex


def _first_is_foreign_graph(args: tuple[Any, ...]) -> bool:
    return type(args[0]._graph) is not TracedIndex and any(isinstance(x, FakeTensor) for x in args[-1].values())


def _view_of_traced_graph(args: tuple[Any, ...]) -> bool:
    return type(args[0]._graph._graph) is TracedIndex


def _second_is_metagraph(args: tuple[Any, ...]) -> bool:
    return isinstance(args[1], Metagraph)


def _first_is_fake(args: tuple[Any, ...]) -> bool:
    return isinstance(args[0], FakeTensor)


def _first_is_reduced(args: tuple[Any, ...]) -> bool:
    return getattr(args[0], waist.ZERO_WHERE_EMPTY, False)


def _any_fake(args: tuple[Any, ...]) -> bool:
    return any(isinstance(x, FakeTensor) for x in args)


Applies = Callable[[tuple[Any, ...]], bool]


def _table() -> list[tuple[Any, str, Callable[..., Any], Applies]]:
    """Owner, attribute, replacement and the arguments to which it applies."""
    # dgl.ops.edge_softmax and dgl.heterograph are functions under the names of their modules.
    spmm, sddmm, softmax = (importlib.import_module(f"dgl.ops.{name}") for name in ("spmm", "sddmm", "edge_softmax"))
    heterograph = importlib.import_module("dgl.heterograph")
    graph = dgl.DGLGraph
    return [
        (spmm, "gspmm_internal", waist.gspmm, _first_is_traced_index),
        (spmm, "gspmm_internal_hetero", waist.gspmm_hetero, _first_is_traced_index),
        (sddmm, "gsddmm_internal", waist.gsddmm, _first_is_traced_index),
        (sddmm, "gsddmm_internal_hetero", waist.gsddmm_hetero, _first_is_traced_index),
        (softmax, "edge_softmax_internal", waist.edge_softmax, _first_is_traced_index),
        (softmax, "edge_softmax_hetero_internal", waist.edge_softmax_hetero, _first_is_traced_index),
        (dgl.backend, "segment_mm", waist.segment_mm, _any_fake),
        (dgl.backend, "to_dgl_nd", to_library, _first_is_fake),
        (dgl.backend, "zerocopy_to_dgl_ndarray", to_library, _first_is_fake),
        (dgl.backend, "replace_inf_with_zero", replace_inf_with_zero, _first_is_reduced),
        (dgl.core, "invoke_edge_udf", edges.invoke_edge_udf, _first_is_traced_graph),
        (dgl.core, "invoke_udf_reduce", reduce.invoke_udf_reduce, _first_is_traced_graph),
        (heterograph, "find_src_dst_ntypes", find_src_dst_ntypes, _second_is_metagraph),
        (dgl.readout, "_topk_on", segments.topk_on, _first_is_traced_graph),
        (dgl.view.HeteroNodeView, "__call__", nodes_of, _view_of_traced_graph),
        (graph, "in_degrees", in_degrees, _first_is_traced_graph),
        (graph, "out_degrees", out_degrees, _first_is_traced_graph),
        (graph, "clone", mutation.clone, _first_is_traced_graph),
        (graph, "add_edges", mutation.add_edges, _first_is_traced_graph),
        (graph, "remove_edges", mutation.remove_edges, _first_is_traced_graph),
        (graph, "remove_self_loop", mutation.remove_self_loop, _first_is_traced_graph),
        (graph, "_set_n_repr", set_columns, _first_is_foreign_graph),
        (graph, "_set_e_repr", set_columns, _first_is_foreign_graph),
        *_wherever_imported(
            (dgl.ops.segment_reduce, segments.segment_reduce, _any_fake),
            (dgl.ops.segment_softmax, segments.segment_softmax, _any_fake),
            (dgl.ops.gather_mm, waist.gather_mm, _any_fake),
            (dgl.broadcast_nodes, segments.broadcast_nodes, _first_is_traced_graph),
            (dgl.broadcast_edges, segments.broadcast_edges, _first_is_traced_graph),
            (dgl.remove_self_loop, mutation.remove_self_loop, _first_is_traced_graph),
        ),
    ]


def _wherever_imported(
    *functions: tuple[Callable[..., Any], Callable[..., Any], Applies],
) -> Iterator[tuple[Any, str, Callable[..., Any], Applies]]:
    """Functions under their names in every module, the user's ``from dgl import ...`` included."""
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", {})
        for function, replacement, applies in functions:
            if names.get(function.__name__) is function:
                yield module, function.__name__, replacement, applies


@contextmanager
def patched(tracer: Tracer) -> Iterator[None]:
    """Put the replacements in force for recorded graphs and tensors of this thread."""

    def dispatch(original: Callable[..., Any], replacement: Callable[..., Any], applies: Applies) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            return (replacement if tracer.recording and applies(args) else original)(*args, **kwargs)

        return call

    undo: list[tuple[Any, str, Any]] = []
    try:
        for owner, name, replacement, applies in _table():
            original = vars(owner)[name]
            undo.append((owner, name, original))
            setattr(owner, name, dispatch(original, replacement, applies))
        yield
    finally:
        for owner, name, original in reversed(undo):
            setattr(owner, name, original)
