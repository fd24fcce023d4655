import pickle
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import torch

from examples.datasets import NodeData, blocks, load, photo, planetoid, tolokers

# Nodes, directed edges, features, classes, isolated nodes: as published (CiteSeer without its self-loops).
PUBLISHED = {
    "cora": (2708, 10556, 1433, 7, 0),
    "citeseer": (3327, 9104, 3703, 6, 48),
    "pubmed": (19717, 88648, 500, 3, 0),
}


def check_graph(data: NodeData) -> None:
    source, target = (end.long() for end in data.graph.edges())
    nodes = data.graph.num_nodes()
    forward, backward = source * nodes + target, target * nodes + source
    assert torch.equal(forward.sort().values, backward.sort().values)
    assert forward.unique().numel() == forward.numel()
    assert (source != target).all()
    assert (data.train.int() + data.val.int() + data.test.int() <= 1).all()


@pytest.mark.parametrize("name", PUBLISHED)
def test_planetoid_files_give_the_published_counts(name: str, data_root: Path) -> None:
    data = load(name, data_root)
    nodes, edges, width, classes, isolated = PUBLISHED[name]
    assert data.features.shape == (nodes, width)
    assert data.graph.num_edges() == edges
    assert data.classes == classes == data.labels.max() + 1
    assert (data.graph.in_degrees() == 0).sum() == isolated
    assert [int(mask.sum()) for mask in (data.train, data.val, data.test)] == [20 * classes, 500, 1000]
    check_graph(data)


def test_planetoid_places_test_rows_and_isolated_nodes(tmp_path: Path) -> None:
    """Test node ids 603, 600, 604: rows of tx stand in that order, and 601 and 602 have neither features nor label."""
    rng = np.random.default_rng()
    test = [603, 600, 604]
    allx, tx = rng.random((600, 5), dtype=np.float32) + 0.1, rng.random((3, 5), dtype=np.float32) + 0.1
    ally, ty = np.eye(4, dtype=np.int32)[rng.integers(0, 4, 600)], np.eye(4, dtype=np.int32)[[2, 3, 1]]
    neighbours = {node: [] for node in range(605)} | {0: [603, 1, 0], 603: [0], 1: [0, 0]}
    parts = {"x": scipy.sparse.csr_matrix(allx[:20]), "allx": scipy.sparse.csr_matrix(allx)}
    parts |= {"tx": scipy.sparse.csr_matrix(tx), "y": ally[:20], "ally": ally, "ty": ty, "graph": neighbours}
    raw = tmp_path / "Planetoid" / "Cora" / "raw"
    raw.mkdir(parents=True)
    for part, value in parts.items():
        (raw / f"ind.cora.{part}").write_bytes(pickle.dumps(value))
    (raw / "ind.cora.test.index").write_text("\n".join(map(str, test)) + "\n")

    data = planetoid("cora", tmp_path)

    assert data.labels[test].tolist() == [2, 3, 1]
    torch.testing.assert_close(data.features[test], torch.from_numpy(tx / tx.sum(1, keepdims=True)))
    assert data.features[601:603].abs().sum() == 0
    assert sorted(zip(*(end.tolist() for end in data.graph.edges()), strict=True)) == [
        (0, 1),
        (0, 603),
        (1, 0),
        (603, 0),
    ]
    assert data.test.nonzero().flatten().tolist() == sorted(test)
    assert int(data.train.sum()) == 20
    check_graph(data)


def test_a_file_that_is_not_data_is_refused(tmp_path: Path) -> None:
    raw = tmp_path / "Planetoid" / "Cora" / "raw"
    raw.mkdir(parents=True)
    (raw / "ind.cora.x").write_bytes(pickle.dumps(Path("anything")))
    with pytest.raises(pickle.UnpicklingError, match="not a Planetoid file: it asks for pathlib"):
        planetoid("cora", tmp_path)


def test_missing_file_and_missing_root_say_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"PubMed.raw.ind\.pubmed\.x"):
        load("pubmed", tmp_path)
    with pytest.raises(ValueError, match="--data-root"):
        load("pubmed")
    with pytest.raises(ValueError, match="no data set 'reddit'"):
        load("reddit")


@pytest.mark.parametrize("nodes", [16, 101, 5000])
def test_blocks_is_a_simple_undirected_graph_and_all_nodes_are_split(nodes: int) -> None:
    data = blocks(nodes, seed=int(torch.randint(1000, ())))
    assert data.graph.num_nodes() == nodes == len(data.features)
    assert (data.train | data.val | data.test).all()
    check_graph(data)


def test_blocks_repeats_with_its_seed_only() -> None:
    once, again, other = blocks(300, seed=3), blocks(300, seed=3), blocks(300, seed=4)
    assert torch.equal(once.features, again.features)
    assert torch.equal(once.graph.edges()[0], again.graph.edges()[0])
    assert not torch.equal(once.features, other.features)


def test_blocks_has_the_degrees_and_the_homophily_that_were_asked_for() -> None:
    data = blocks(10_000, mean_degree=10, homophily=0.7, exponent=2.5)
    source, target = (end.long() for end in data.graph.edges())
    same = (data.labels[source] == data.labels[target]).float().mean()
    by_chance = data.labels.bincount().div(10_000).square().sum()
    assert abs(same - (0.7 + 0.3 * by_chance)) < 0.05
    degrees = data.graph.in_degrees().float()
    assert 8 < degrees.mean() <= 10
    assert degrees.max() > 20 * degrees.median()


def test_blocks_needs_the_neighbours_to_tell_classes_apart() -> None:
    data = blocks(4000)
    looped = data.with_self_loops()
    assert looped.graph.num_edges() == data.graph.num_edges() + 4000
    source, target = (end.long() for end in looped.graph.edges())
    smoothed = torch.zeros_like(data.features).index_add(0, target, data.features[source])
    smoothed /= looped.graph.in_degrees()[:, None]

    def accuracy(x: torch.Tensor) -> float:
        means = torch.stack([x[data.train & (data.labels == c)].mean(0) for c in range(data.classes)])
        return (torch.cdist(x, means).argmin(1) == data.labels)[data.test].float().mean().item()

    assert accuracy(smoothed) > 1.5 * accuracy(data.features)


def test_blocks_refuses_more_classes_than_nodes() -> None:
    with pytest.raises(ValueError, match="10 nodes cannot hold 16 classes"):
        blocks(10)


# As published, each edge in both directions.
LARGER = {"photo": (7650, 238162, 745, 8), "tolokers": (11758, 1038000, 10, 2)}


@pytest.mark.parametrize("name", LARGER)
def test_larger_files_give_the_published_counts(name: str, data_root: Path) -> None:
    data = load(name, data_root)
    nodes, edges, width, classes = LARGER[name]
    assert data.features.shape == (nodes, width)
    assert data.graph.num_edges() == edges
    assert data.classes == classes == data.labels.max() + 1
    assert (data.train | data.val | data.test).all()
    check_graph(data)


def test_photo_reads_words_edges_and_draws_a_split(tmp_path: Path) -> None:
    rng = np.random.default_rng()
    nodes = 200
    words = scipy.sparse.random(nodes, 12, 0.3, format="csr", dtype=np.float32, random_state=0)
    words.data[:5] = 0.0  # stored, but absent
    edges = scipy.sparse.csr_matrix(
        np.triu(rng.random((nodes, nodes)) < 0.05).astype(np.float32)
    )  # one direction, with self-loops
    raw = tmp_path / "Amazon" / "Photo" / "raw"
    raw.mkdir(parents=True)
    parts = {
        f"{name}_{part}": getattr(matrix, part)
        for name, matrix in (("adj", edges), ("attr", words))
        for part in ("data", "indices", "indptr", "shape")
    }
    np.savez(raw / "amazon_electronics_photo.npz", **parts, labels=np.arange(nodes) % 3)

    data = photo(tmp_path)

    assert torch.equal(data.features, torch.from_numpy(words.toarray() > 0).float())
    assert data.graph.num_edges() == 2 * np.triu(edges.toarray(), 1).sum()
    for label in range(3):
        counts = [int((mask & (data.labels == label)).sum()) for mask in (data.train, data.val)]
        assert counts == [20, 30]
    assert torch.equal(photo(tmp_path).train, data.train)
    assert not torch.equal(photo(tmp_path, split_seed=1).train, data.train)
    assert (data.train | data.val | data.test).all()
    check_graph(data)


def test_tolokers_reads_a_public_split(tmp_path: Path) -> None:
    rng = np.random.default_rng()
    part = rng.integers(0, 3, (10, 50))
    masks = {f"{name}_masks": part == number for number, name in enumerate(("train", "val", "test"))}
    raw = tmp_path / "HeterophilousGraphDataset" / "tolokers" / "raw"
    raw.mkdir(parents=True)
    arrays = {
        "node_features": rng.random((50, 10), dtype=np.float32),
        "node_labels": rng.integers(0, 2, 50),
        "edges": np.array([[0, 1], [1, 2], [7, 3]]),
    }
    np.savez(raw / "tolokers.npz", **arrays, **masks)

    data = tolokers(tmp_path, split=3)

    assert torch.equal(data.test, torch.from_numpy(part[3] == 2))
    assert data.graph.num_edges() == 6
    assert data.metric == "roc_auc"
    check_graph(data)


def test_larger_sets_say_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"amazon_electronics_photo\.npz"):
        load("photo", tmp_path)
    with pytest.raises(ValueError, match=r"DIR/HeterophilousGraphDataset/tolokers/raw"):
        load("tolokers")
