"""Kinds of graphs and everything that a hand-written module may do with one."""

import dgl_cases as cases
import pytest
import torch
from dgl_cases import SIZES, D, Size
from dgl_compare import check, replay
from torch import nn

dgl = pytest.importorskip("dgl")

import dgl.function as fn  # noqa: E402
import dgl.nn.pytorch as dnn  # noqa: E402

from gqc.capture import capture, read_call  # noqa: E402
from gqc.capture.islands import StructureIsland  # noqa: E402


class Model(nn.Module):
    """A module made from a function of itself, a graph and features, with two linear layers to train."""

    def __init__(self, forward):
        super().__init__()
        self.a = nn.Linear(D, D)
        self.b = nn.Linear(D, D)
        self.run = forward

    def forward(self, *args, **kwargs):
        return self.run(self, *args, **kwargs)


def eager_islands(captured):
    return [i.name for i in captured.islands if not isinstance(i, StructureIsland)]


def check_function(forward, make=None, islands=0, **options):
    captured = check(Model(forward), SIZES, make or cases.x(), **options)
    assert len(eager_islands(captured)) == islands, [(i.name, i.reason) for i in captured.islands]
    return captured


# ---- heterographs and blocks


def hetero_features(g, size):
    return {ntype: cases.normal(g.num_nodes(ntype), D, seed=size.seed + i) for i, ntype in enumerate(g.ntypes)}


def hetero_inputs(size):
    g = cases.hetero(size)
    return g, hetero_features(g, size)


def test_hetero_graph_conv():
    conv = dnn.HeteroGraphConv(
        {
            "follows": dnn.GraphConv(D, 5, allow_zero_in_degree=True),
            "buys": dnn.SAGEConv((D, D), 5, "pool"),
            "sold": dnn.GATConv((D, D), 5, 1, allow_zero_in_degree=True),
        },
        aggregate=lambda tensors, ntype: sum(t.reshape(t.shape[0], -1) for t in tensors),
    )
    check(conv, SIZES, hetero_inputs)


@pytest.mark.parametrize("aggregate", ["sum", "max", "mean", "stack"])
def test_rgcn_on_a_heterograph(aggregate):
    conv = dnn.HeteroGraphConv(
        {e: dnn.GraphConv(D, 4, norm="right", allow_zero_in_degree=True) for e in ("follows", "buys", "sold")},
        aggregate,
    )
    check(conv, SIZES, hetero_inputs)


@pytest.mark.parametrize("cross", ["sum", "max", "min", "mean", "stack"])
def test_multi_update_all(cross):
    def forward(self, g, features):
        with g.local_scope():
            for ntype, h in features.items():
                g.nodes[ntype].data["h"] = self.a(h)
            functions = {e: (fn.copy_u("h", "m"), fn.mean("m", "o")) for e in ("follows", "buys")}
            g.multi_update_all(functions | {"sold": (fn.copy_u("h", "m"), fn.max("m", "o"))}, cross)
            return g.nodes["user"].data["o"], g.nodes["item"].data["o"]

    check_function(forward, hetero_inputs)


@pytest.mark.parametrize("reducer", [fn.sum, fn.max, fn.min])
def test_update_all_over_all_relations(reducer):
    def forward(self, g, features):
        with g.local_scope():
            g.ndata["h"] = {ntype: -self.a(h).abs() for ntype, h in features.items()}
            g.update_all(fn.copy_u("h", "m"), reducer("m", "o"))
            return g.nodes["user"].data["o"], g.nodes["item"].data["o"]

    check_function(forward, hetero_inputs)


@pytest.mark.parametrize("norm_by", ["dst", "src"])
def test_edge_softmax_over_all_relations(norm_by):
    def forward(self, g, features):
        with g.local_scope():
            g.ndata["h"] = {ntype: self.a(h) for ntype, h in features.items()}
            g.apply_edges(fn.u_dot_v("h", "h", "s"))
            weights = dgl.ops.edge_softmax(g, g.edata["s"], norm_by=norm_by)
            return [weights[e] for e in g.canonical_etypes]

    check_function(forward, hetero_inputs)


def test_node_type_without_relations():
    def inputs(size):
        edges = cases.ends(size.nodes, size.nodes, size.edges, size.seed)
        g = dgl.heterograph({("a", "r", "a"): edges}, {"a": size.nodes, "lonely": size.nodes + 3})
        return g, cases.normal(size.nodes, D, seed=1), cases.normal(size.nodes + 3, D, seed=2)

    def forward(self, g, h, lonely):
        with g.local_scope():
            g.nodes["lonely"].data["h"] = lonely
            return self.a(g.nodes["lonely"].data["h"]), dgl.ops.copy_u_sum(g, self.b(h)), g.num_nodes("lonely")

    check_function(forward, inputs)


def blocks(size: Size):
    g = cases.looped(size)
    seeds = torch.arange(size.nodes // 4)
    made = []
    for _ in range(2):
        block = dgl.to_block(dgl.in_subgraph(g, seeds), seeds)
        seeds = block.srcdata[dgl.NID]
        made.insert(0, block)
    return made, cases.normal(len(seeds), D, seed=size.seed)


@pytest.mark.parametrize("kind", ["gcn", "gat", "sage"])
def test_list_of_blocks(kind):
    layer = {
        "gcn": lambda: dnn.GraphConv(D, D),
        "gat": lambda: dnn.GATConv(D, D, 1),
        "sage": lambda: dnn.SAGEConv(D, D, "mean"),
    }[kind]

    class Sampled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([layer(), layer()])

        def forward(self, blocks, h):
            for conv, block in zip(self.layers, blocks, strict=True):
                h = torch.relu(conv(block, h).reshape(block.num_dst_nodes(), -1))
            return h

    check(Sampled(), SIZES, blocks)


# ---- hand-written message passing


@pytest.mark.parametrize("op", ["add", "sub", "mul", "div"])
@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min"])
def test_builtin_messages(op, reduce):
    idtype = torch.int32 if op in ("add", "div") else torch.int64

    def forward(self, g, h, w):
        with g.local_scope():
            g.srcdata["h"], g.edata["w"] = self.a(h), w.abs() + 0.5
            g.update_all(getattr(fn, f"u_{op}_e")("h", "w", "m"), getattr(fn, reduce)("m", "o"))
            return g.dstdata["o"]

    check_function(forward, cases.x_e(lambda s: _as(cases.sparse_graph(s), idtype)))


def _as(graph, idtype):
    return graph.int() if idtype is torch.int32 else graph.long()


@pytest.mark.parametrize(
    "op", ["u_add_v", "u_sub_v", "u_mul_v", "u_div_v", "u_dot_v", "v_dot_u", "u_mul_e", "e_sub_v", "copy_u", "copy_v"]
)
def test_dgl_ops(op):
    def forward(self, g, h, w):
        operand = {"u": self.a(h), "v": self.b(h).abs() + 0.5, "e": w}
        left, name, right = op.split("_") if op.count("_") == 2 else ("", op, "")
        args = [operand[op[-1]]] if name.startswith("copy") else [operand[left], operand[right]]
        return getattr(dgl.ops, op)(g, *args)

    check_function(forward, cases.x_e())


def test_heads_broadcast():
    def forward(self, g, h, w):
        feat = self.a(h).reshape(-1, 2, 3)
        scores = dgl.ops.u_dot_v(g, feat, feat)
        alpha = dgl.nn.functional.edge_softmax(g, scores)
        return dgl.ops.u_mul_e_sum(g, feat, alpha), dgl.ops.u_add_e_max(g, feat, w.reshape(-1, 2, 3))

    check_function(forward, cases.x_e())


def test_one_dimensional_features():
    def forward(self, g, h):
        x = self.a(h)[:, 0]
        return dgl.ops.copy_u_sum(g, x), dgl.ops.u_dot_v(g, x, x), dgl.ops.edge_softmax(g, dgl.ops.u_add_v(g, x, x))

    check_function(forward)


def test_edge_functions():
    def forward(self, g, h, w):
        with g.local_scope():
            g.ndata["h"], g.edata["w"] = self.a(h), w
            g.apply_edges(lambda e: {"s": torch.tanh(e.src["h"] - e.dst["h"]) * e.data["w"]})
            g.update_all(lambda e: {"m": e.src["h"] * e.data["s"]}, fn.sum("m", "o"))
            g.apply_nodes(lambda n: {"o": self.b(n.data["o"]) + n.data["h"]})
            return g.ndata["o"], g.edata["s"]

    check_function(forward, cases.x_e())


def test_messages_on_some_edges():
    def forward(self, g, h, w, eids):
        with g.local_scope():
            g.ndata["h"], g.edata["w"] = self.a(h), w
            g.apply_edges(lambda e: {"w": e.src["h"] + e.dst["h"]}, eids)
            g.apply_edges(fn.u_mul_v("h", "h", "p"), eids)
            return dgl.ops.edge_softmax(g, g.edata["w"]), g.edata["p"], dgl.ops.edge_softmax(g, w[eids], eids=eids)

    def inputs(size):
        g, h, w = cases.x_e()(size)
        return g, h, w, torch.randperm(g.num_edges(), generator=cases.generator(size.seed))[: g.num_edges() // 2]

    check_function(forward, inputs)


REDUCERS = {
    "sum": lambda n: {"o": n.mailbox["m"].sum(1)},
    "mean": lambda n: {"o": torch.mean(n.mailbox["m"], dim=1)},
    "max": lambda n: {"o": n.mailbox["m"].max(1)[0]},
    "min": lambda n: {"o": torch.min(n.mailbox["m"], 1).values},
    "elementwise": lambda n: {"o": (torch.relu(n.mailbox["m"]) * 2 - 1).sum(dim=1) + n.data["h"]},
    "centred": lambda n: {"o": ((n.mailbox["m"] - n.mailbox["m"].mean(1, keepdim=True)) ** 2).mean(1)},
    "attention": lambda n: {
        "o": (torch.softmax((n.mailbox["m"] * n.data["h"].unsqueeze(1)).exp(), dim=1) * n.mailbox["m"]).sum(1)
    },
    "degree": lambda n: {"o": n.mailbox["m"].sum(1) / n.mailbox["m"].shape[1] ** 0.5},
    "picked": lambda n: {"o": n.mailbox["m"][:, :, :2].sum(1)},
}


@pytest.mark.parametrize("name", REDUCERS)
def test_reduce_functions_without_grouping_by_degree(name):
    def forward(self, g, h):
        with g.local_scope():
            g.ndata["h"] = self.a(h)
            g.update_all(fn.copy_u("h", "m"), REDUCERS[name])
            return g.ndata["o"]

    check_function(forward, cases.x(cases.sparse_graph))


def test_layers_inside_reduce_functions():
    def forward(self, g, h):
        def reduce(nodes):
            return {"o": torch.sigmoid(self.b(nodes.mailbox["m"])).sum(1)}

        with g.local_scope():
            g.ndata["h"] = self.a(h)
            g.update_all(fn.copy_u("h", "m"), reduce)
            return g.ndata["o"]

    check_function(forward, cases.x(cases.sparse_graph))


EAGER_REDUCERS = {
    "sorted": lambda n: {"o": n.mailbox["m"].sort(1).values[:, 0]},
    "first message": lambda n: {"o": n.mailbox["m"][:, 0]},
    "branch on degree": lambda n: {"o": n.mailbox["m"].sum(1) if n.mailbox["m"].shape[1] > 2 else n.data["h"]},
    "two results": lambda n: {"o": n.mailbox["m"].cumsum(1)[:, -1], "p": n.mailbox["m"].median(1).values},
}


@pytest.mark.parametrize("name", EAGER_REDUCERS)
def test_other_reduce_functions_are_islands(name):
    def forward(self, g, h):
        with g.local_scope():
            g.ndata["h"] = self.a(h)
            g.update_all(fn.copy_u("h", "m"), EAGER_REDUCERS[name])
            return self.b(g.ndata["o"])

    captured = check_function(forward, cases.x(cases.sparse_graph), islands=1)
    assert "degree by degree" in next(i.reason for i in captured.islands if not isinstance(i, StructureIsland))


# ---- columns of the argument


def with_columns(size):
    g = cases.looped(size)
    g.ndata["x"] = cases.node(g, size)
    g.edata["w"] = cases.edge(g, size, 1)
    g.ndata["label"] = torch.arange(g.num_nodes()) % 3
    return (g,)


def test_columns_are_inputs_with_gradients():
    def forward(self, g):
        with g.local_scope():
            g.ndata["h"] = self.a(g.ndata["x"])
            g.update_all(fn.u_mul_e("h", "w", "m"), fn.sum("m", "h"))
            return g.ndata["h"], g.ndata["label"]

    check_function(forward, with_columns)


def test_columns_written_outside_a_scope_reach_the_graph():
    model = Model(lambda self, g: _write_columns(self, g))
    captured = capture(model, with_columns(SIZES[0]))
    for size in SIZES:
        eager, compiled = with_columns(size), with_columns(size)
        model(*eager)
        replay(captured, compiled, {})
        assert compiled[0].ndata.keys() == eager[0].ndata.keys()
        for name in eager[0].ndata:
            torch.testing.assert_close(compiled[0].ndata[name], eager[0].ndata[name])
        torch.testing.assert_close(compiled[0].edata["w"], eager[0].edata["w"])


def _write_columns(self, g):
    g.ndata["h"] = self.a(g.ndata["x"])
    g.update_all(fn.copy_u("h", "m"), fn.mean("m", "mean"))
    g.edata["w"] = g.edata["w"] * 2
    g.ndata.pop("label")


def test_capture_changes_neither_graph_nor_model():
    model = Model(lambda self, g: _write_columns(self, g))
    (g,) = with_columns(SIZES[0])
    before = dict(g.ndata), dict(g.edata)
    capture(model, (g,))
    assert {k: v is before[0][k] for k, v in g.ndata.items()} == dict.fromkeys(before[0], True)
    assert {k: v is before[1][k] for k, v in g.edata.items()} == dict.fromkeys(before[1], True)


# ---- graphs made inside forward


@pytest.mark.parametrize(
    "change",
    [
        dgl.add_self_loop,
        dgl.remove_self_loop,
        lambda g: dgl.add_self_loop(dgl.remove_self_loop(g)),
        dgl.reverse,
        lambda g: g.add_self_loop(),
        lambda g: dgl.add_edges(g, torch.tensor([0, 1]), torch.tensor([2, 0])),
        lambda g: dgl.remove_edges(g, torch.tensor([1, 3])),
        lambda g: dgl.edge_subgraph(g, torch.arange(5), relabel_nodes=False),
    ],
    ids=["add", "remove", "renew", "reverse", "method", "add_edges", "remove_edges", "edge_subgraph"],
)
def test_changed_structure(change):
    def forward(self, g, h):
        changed = change(g)
        with changed.local_scope():
            changed.ndata["h"] = self.a(h)
            changed.update_all(fn.copy_u("h", "m"), fn.mean("m", "h"))
            return changed.ndata["h"], changed.in_degrees(), changed.num_edges()

    check_function(forward, cases.x(cases.graph))


def test_self_loops_keep_edge_columns():
    def forward(self, g, h, w):
        with g.local_scope():
            g.edata["w"] = w
            looped = dgl.add_self_loop(dgl.remove_self_loop(g), fill_data=2.0)
            return dgl.ops.u_mul_e_sum(looped, self.a(h), looped.edata["w"])

    check_function(forward, cases.x_e(cases.graph))


# ---- degrees and decisions


def test_zero_in_degree_decides_the_variant():
    conv = dnn.GraphConv(D, 5)
    captured = capture(conv, cases.x()(SIZES[0]))
    bad = cases.x(cases.sparse_graph)(SIZES[1])
    assert captured.guards.check(read_call(bad, {}).flat) is not None
    with pytest.raises(dgl.DGLError, match="There are 0-in-degree nodes in the graph"):
        capture(conv, bad)


def test_degrees_of_given_nodes():
    def forward(self, g, h, nodes):
        return g.in_degrees(nodes), g.out_degrees(nodes), self.a(h) * g.out_degrees().unsqueeze(-1)

    def inputs(size):
        g, h = cases.x(cases.graph)(size)
        return g, h, torch.arange(size.nodes // 3)

    check_function(forward, inputs)


# ---- wrong input: the user sees what eager DGL says


@pytest.mark.parametrize(
    ("forward", "text"),
    [
        (lambda self, g, h: g.ndata.update({"h": self.a(h)}), "Expect number of features to match number of nodes"),
        (lambda self, g, h: dgl.ops.copy_u_sum(g, self.a(h)), "Expect U_data to have size"),
        (lambda self, g, h: dgl.ops.u_add_v(g, self.a(h), self.a(h)), "Expect U_data to have size"),
    ],
)
def test_wrong_number_of_rows(forward, text):
    g = cases.graph(SIZES[0])
    with pytest.raises(dgl.DGLError, match=text):
        capture(Model(forward), (g, torch.randn(7, D)))


def test_integer_features_are_refused_as_in_eager():
    g = cases.graph(SIZES[0])
    model = Model(lambda self, g, h: dgl.ops.copy_u_sum(g, h))
    with pytest.raises(dgl.DGLError, match="Feature data must be float type"):
        capture(model, (g, torch.ones(g.num_nodes(), D, dtype=torch.int64)))


def test_unknown_graph_queries_make_the_module_an_island():
    class Neighbours(nn.Module):
        def forward(self, g, h):
            return h * len(g.successors(0))

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Neighbours()
            self.last = nn.Linear(D, 3)

        def forward(self, g, h):
            return self.last(self.inner(g, h))

    captured = check(Outer(), SIZES, cases.x())
    (island,) = [i for i in captured.islands if not isinstance(i, StructureIsland)]
    assert island.name == "inner"
    assert "successors" in island.reason


def test_a_graph_that_is_no_argument_is_refused():
    own = cases.looped(SIZES[0])
    model = Model(lambda self, h: _use_own(self, own, h))
    from gqc.errors import CaptureError

    with pytest.raises(CaptureError, match="not one of its arguments"):
        capture(model, (cases.node(own, SIZES[0]),))
    assert not own.ndata


def _use_own(self, g, h):
    with g.local_scope():
        g.ndata["h"] = self.a(h)
        g.update_all(fn.copy_u("h", "m"), fn.sum("m", "h"))
        return g.ndata["h"]


# ---- batched graphs


def batch(size: Size):
    sizes = [Size(n, 3 * n, size.seed + n) for n in range(3, 3 + size.seed + 2)]
    g = dgl.batch([cases.graph(s) for s in sizes])
    return g, cases.normal(g.num_nodes(), D, seed=size.seed)


POOLING = {
    "SumPooling": dnn.SumPooling,
    "AvgPooling": dnn.AvgPooling,
    "MaxPooling": dnn.MaxPooling,
    "SortPooling": lambda: dnn.SortPooling(4),
    "WeightAndSum": lambda: dnn.WeightAndSum(D),
    "GlobalAttentionPooling": lambda: dnn.GlobalAttentionPooling(nn.Linear(D, 1), nn.Linear(D, 5)),
    "Set2Set": lambda: dnn.Set2Set(D, 2, 1),
}


@pytest.mark.parametrize("name", POOLING)
def test_pooling(name):
    check(POOLING[name](), SIZES, batch)


def test_readouts():
    def forward(self, g, h):
        with g.local_scope():
            g.ndata["h"] = self.a(h)
            g.apply_edges(fn.u_add_v("h", "h", "e"))
            g.ndata["w"] = self.b(h)[:, :1]
            return (
                dgl.sum_nodes(g, "h", "w"),
                dgl.mean_nodes(g, "h"),
                dgl.max_nodes(g, "h"),
                dgl.softmax_nodes(g, "h"),
                dgl.sum_edges(g, "e"),
                dgl.broadcast_nodes(g, dgl.mean_edges(g, "e")),
                dgl.readout_nodes(g, "h", op="min"),
                g.batch_size,
            )

    check_function(forward, batch)
    check_function(forward)  # one graph that is not batched


@pytest.mark.parametrize("sortby", [None, 1])
def test_topk(sortby):
    def forward(self, g, h):
        with g.local_scope():
            g.ndata["h"] = self.a(h)
            return dgl.topk_nodes(g, "h", 3, sortby=sortby), dgl.topk_nodes(g, "h", 2, descending=False, sortby=sortby)[
                0
            ]

    check_function(forward, batch)


def test_graph_classifier():
    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = dnn.GraphConv(D, D)
            self.norm = nn.BatchNorm1d(D)
            self.out = nn.Linear(D, 3)

        def forward(self, g, h):
            with g.local_scope():
                g.ndata["h"] = torch.relu(self.norm(self.conv(g, h)))
                return self.out(dgl.mean_nodes(g, "h"))

    check(Classifier(), SIZES, batch)
