"""Relation tensors of DGL graphs: content, sparse formats, index types, caching."""

import gc
import weakref

import pytest
import torch

dgl = pytest.importorskip("dgl")

import gqc.runtime.ops  # noqa: E402, F401
from gqc.runtime.structure import relations  # noqa: E402


def random_graph(num_nodes=9, num_edges=30, idtype=torch.int64):
    src, dst = torch.randint(num_nodes, (2, num_edges))
    return dgl.graph((src, dst), num_nodes=num_nodes, idtype=idtype)


def check(relation, src, dst, num_src, num_dst):
    csc_indptr, csc_indices, csc_eids, csr_indptr, csr_indices, csr_eids, own_src, own_dst = relation
    assert torch.equal(own_src, src)
    assert torch.equal(own_dst, dst)
    for indptr, indices, eids, rows, columns, size in (
        (csc_indptr, csc_indices, csc_eids, dst, src, num_dst),
        (csr_indptr, csr_indices, csr_eids, src, dst, num_src),
    ):
        assert indptr.shape == (size + 1,)
        for v in range(size):
            span = slice(int(indptr[v]), int(indptr[v + 1]))
            own = (rows == v).nonzero().flatten().tolist()
            assert sorted(eids[span].tolist()) == own
        assert torch.equal(columns[eids.long()], indices)
    assert all(t.is_contiguous() and t.dtype == src.dtype for t in relation)


@pytest.mark.parametrize("idtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("formats", [None, "csc", "csr", "coo", ["csr", "csc"]])
def test_relation_of_a_homogeneous_graph(idtype, formats):
    graph = random_graph(idtype=idtype)
    src, dst = graph.edges()
    restricted = graph if formats is None else graph.formats(formats)
    check(relations(restricted)[0], src, dst, 9, 9)


@pytest.mark.parametrize(("num_nodes", "num_edges"), [(0, 0), (4, 0), (1, 5)])
def test_empty_and_single_node_graphs(num_nodes, num_edges):
    src = dst = torch.zeros(num_edges, dtype=torch.int64)
    graph = dgl.graph((src, dst), num_nodes=num_nodes)
    check(relations(graph)[0], src, dst, num_nodes, num_nodes)


def test_every_relation_of_a_heterograph_and_of_a_block():
    ends = {("a", "x", "b"): ([0, 2], [1, 1]), ("b", "y", "a"): ([3, 0, 1], [0, 1, 2]), ("a", "z", "a"): ([0], [2])}
    graph = dgl.heterograph(ends, num_nodes_dict={"a": 3, "b": 4})
    for relation, (source, etype, target) in zip(relations(graph), graph.canonical_etypes, strict=True):
        src, dst = graph.edges(etype=etype)
        check(relation, src, dst, graph.num_nodes(source), graph.num_nodes(target))
    block = dgl.to_block(random_graph(), torch.arange(9))
    src, dst = block.edges()
    check(relations(block)[0], src, dst, block.num_src_nodes(), block.num_dst_nodes())


def test_computed_once_per_structure():
    graph = random_graph()
    first = relations(graph)
    assert relations(graph) is first
    assert relations(graph.local_var()) is first
    graph.ndata["h"] = torch.ones(9)
    assert relations(graph) is first


def test_a_changed_graph_gets_new_relations():
    graph = random_graph()
    before = relations(graph)
    graph.add_edges([0, 1], [2, 2])
    after = relations(graph)
    assert after is not before
    check(after[0], *graph.edges(), 9, 9)
    graph.add_nodes(2)
    assert relations(graph)[0][0].shape == (12,)


@pytest.mark.parametrize("idtype", [torch.int32, torch.int64])
def test_relation_from_ends_made_in_a_forward(idtype):
    src, dst = torch.randint(5, (2, 17), dtype=idtype)
    relation = torch.ops.gqc.relation(src, dst, 5, 6)
    check(relation, src, dst, 5, 6)
    torch.library.opcheck(torch.ops.gqc.relation.default, (src, dst, 5, 6))
    none = src[:0]
    check(torch.ops.gqc.relation(none, none, 0, 2), none, none, 0, 2)
    narrow = torch.ops.gqc.relation(src, dst, 5, 6, True)
    check(narrow, src.int(), dst.int(), 5, 6)
    torch.library.opcheck(torch.ops.gqc.relation.default, (src, dst, 5, 6, True))


def test_relation_of_edges_that_are_in_order():
    src, dst = torch.arange(4).repeat_interleave(2), torch.tensor([3, 0, 1, 1, 0, 2, 3, 3])
    check(torch.ops.gqc.relation(src, dst, 4, 4), src, dst, 4, 4)


@pytest.mark.parametrize("wrong", [-1, 5, 2**32 + 1])
def test_ends_out_of_range(wrong):
    right, ends = torch.zeros(3, dtype=torch.int64), torch.tensor([0, wrong, 1])
    for src, dst in ((ends, right), (right, ends)):
        with pytest.raises(IndexError, match=f"{wrong}.*there are 5 nodes"):
            torch.ops.gqc.relation(src, dst, 5, 5, True)


def test_the_cache_dies_with_the_graph():
    graph = random_graph()
    alive = weakref.ref(relations(graph)[0][0])
    del graph
    gc.collect()
    assert alive() is None
