"""Interactions and knowledge graphs: what is read, what is generated, how it is split."""

from pathlib import Path

import numpy as np
import pytest
import torch

from examples.recommendation.datasets import RecommendationData, amazon_book, lastfm, load
from examples.recommendation.datasets.latent import CORE, INTERACTIONS, ITEMS, RELATIONS, TRIPLES, USERS

SCALE = 50


@pytest.fixture(scope="module")
def generated() -> RecommendationData:
    return amazon_book(SCALE)


def interactions(data: RecommendationData) -> torch.Tensor:
    return torch.cat([data.train, data.test])


def test_generated_counts_are_those_of_the_paper(generated: RecommendationData) -> None:
    assert (generated.users, generated.items) == (round(USERS / SCALE), round(ITEMS / SCALE))
    pairs, triples = interactions(generated), generated.triples
    assert len(pairs) == round(INTERACTIONS / SCALE) == len(pairs.unique(dim=0))
    assert len(triples) == round(TRIPLES / SCALE) == len(triples.unique(dim=0))
    assert triples[:, 0].max() < generated.items <= triples[:, 2].min()
    assert triples[:, 2].max() < generated.entities
    for side, count in ((0, generated.users), (1, generated.items)):
        assert torch.bincount(pairs[:, side], minlength=count).min() >= CORE


def test_generated_popularity_follows_zipf(generated: RecommendationData) -> None:
    def exponent(index: torch.Tensor, first: int, last: int) -> float:
        counts = torch.bincount(index).sort(descending=True).values[first:last]
        return -np.polyfit(np.log(np.arange(first, last) + 1), counts.log().numpy(), 1)[0]

    # Drawn without replacement and with at least ten an item, so somewhat flatter than the weights.
    assert 0.4 < exponent(interactions(generated)[:, 1], 3, generated.items // 3) < 0.9
    assert 0.3 < exponent(generated.triples[:, 2], 3, generated.entities // 4) < 1.1
    sizes = torch.bincount(generated.triples[:, 1])
    expected = 1 / torch.arange(1, RELATIONS + 1)
    torch.testing.assert_close(sizes / len(generated.triples), expected / expected.sum(), atol=1e-4, rtol=0)


def test_generated_graph_tells_about_interactions(generated: RecommendationData) -> None:
    """Two items that one user liked share more tails than two items of different users."""
    tails = torch.zeros(generated.items, generated.entities)
    tails[generated.triples[:, 0], generated.triples[:, 2]] = 1
    shared = tails @ tails.T
    users, items = interactions(generated)[interactions(generated)[:, 0].argsort()].unbind(1)
    same_user = users[1:] == users[:-1]
    of_one_user = shared[items[1:], items[:-1]][same_user].mean()
    of_any = shared[items[1:], items[torch.randperm(len(items))][:-1]].mean()
    assert of_one_user > 1.05 * of_any


def test_same_seed_same_data() -> None:
    first, again, other = amazon_book(200, seed=3), amazon_book(200, seed=3), amazon_book(200, seed=4)
    assert torch.equal(first.train, again.train)
    assert torch.equal(first.triples, again.triples)
    assert not torch.equal(first.train, other.train)


@pytest.mark.parametrize("scale", [0.0, -1.0, 1e6])
def test_a_scale_that_leaves_nothing_is_refused(scale: float) -> None:
    with pytest.raises(ValueError, match="scale"):
        amazon_book(scale)


def test_split_holds_a_fifth_of_each_user_out(generated: RecommendationData) -> None:
    train, test = (torch.bincount(part[:, 0], minlength=generated.users) for part in (generated.train, generated.test))
    assert torch.equal(test, ((train + test) * 0.2).round().long())
    assert train.min() > 0
    keys = [set(map(tuple, part.tolist())) for part in (generated.train, generated.test)]
    assert not keys[0] & keys[1]
    one = RecommendationData.split("one", np.array([[0, 1]]), np.zeros((1, 3)), (2, 2, 2, 1))
    assert one.train.tolist() == [[0, 1]]
    assert len(one.test) == 0


def write(root: Path, ratings: str, triples: str) -> None:
    folder = root / "KGRec" / "LastFM_music"
    folder.mkdir(parents=True)
    (folder / "ratings_final.txt").write_text(ratings)
    (folder / "kg_final.txt").write_text(triples)


def test_lastfm_takes_positive_ratings(tmp_path: Path) -> None:
    write(tmp_path, "0\t0\t1\n0\t1\t0\n1\t1\t1\n", "0\t0\t2\n1\t1\t3\n")
    data = lastfm(tmp_path)
    assert (data.users, data.items, data.entities, data.relations) == (2, 2, 4, 2)
    assert interactions(data).sort(0).values.tolist() == [[0, 0], [1, 1]]


def test_missing_or_wrong_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--data-root"):
        load("lastfm")
    with pytest.raises(ValueError, match="lastfm, amazon-book"):
        load("movielens")
    with pytest.raises(FileNotFoundError, match=r"ratings_final.txt: --data-root"):
        lastfm(tmp_path)
    write(tmp_path, "0\t1\n", "0\t0\t2\n")
    with pytest.raises(ValueError, match="three integers"):
        lastfm(tmp_path)
    (tmp_path / "KGRec" / "LastFM_music" / "ratings_final.txt").write_text("0\t7\t1\n")
    with pytest.raises(ValueError, match="item 7 is no entity"):
        lastfm(tmp_path)


def test_lastfm_of_the_public_files(data_root: Path) -> None:
    data = lastfm(data_root)
    assert (data.users, data.items, data.entities, data.relations) == (1872, 3846, 9366, 60)
    assert len(data.triples) == 15518
    assert len(data.train) + len(data.test) == 21173
