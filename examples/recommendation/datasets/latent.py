"""A generated set of the law of Amazon-book (KGAT, KDD 2019): counts, 10-core, Zipf popularity, a graph with signal."""

from __future__ import annotations

import numpy as np

from examples.recommendation.datasets.interactions import RecommendationData

USERS, ITEMS, INTERACTIONS, ENTITIES, RELATIONS, TRIPLES = 70_679, 24_915, 847_733, 88_572, 39, 2_557_746
CORE = 10  # interactions that each user and each item has at least
DIMENSIONS = 16
TASTE = 10.0  # factor of the cosine of two latent vectors in a logit
LARGEST_SCALE = 400  # beyond, an item would be linked to most entities
CHUNK = 1 << 24  # elements of a matrix of weights that is drawn from at once


def amazon_book(scale: float = 1.0, seed: int = 0) -> RecommendationData:
    """Users, items and other entities are directions in a space of 16 dimensions; what is near in it is linked.

    User ``u`` draws distinct items from ``softmax(u·v + log popularity)``, the popularity of items being Zipf's with
    exponent 0.8; then interactions move from items that have more than ten to those that have fewer. Each item
    draws its tails in the same way from the entities that are no items, whose popularity is Zipf's with exponent 1. The
    tails of a relation are a set of their own, and the sizes of relations are Zipf's with exponent 1.

    Args:
        scale: what all counts but that of relations are divided by.
        seed: same seed, same data.

    Raises:
        ValueError: the scale leaves too few items to choose from.
    """
    if not 0 < scale <= LARGEST_SCALE:
        raise ValueError(
            f"scale {scale:g} must be above 0 and at most {LARGEST_SCALE}, which leaves {ITEMS // LARGEST_SCALE} items"
        )
    users, items, interactions, entities, triples = (
        round(count / scale) for count in (USERS, ITEMS, INTERACTIONS, ENTITIES, TRIPLES)
    )
    rng = np.random.default_rng(seed)
    tastes, items_at, others_at = (_directions(rng, count) for count in (users, items, entities - items))

    counts = _shares(rng, rng.lognormal(0.0, 1.0, users), interactions, CORE, items - 1)
    pairs = _draw(rng, tastes, items_at, zipf(rng, items, 0.8), counts)
    pairs = _fill(rng, pairs, tastes, items_at)

    counts = _shares(rng, rng.lognormal(0.0, 0.5, items), triples, 1, entities - items - 1)
    links = _draw(rng, items_at, others_at, zipf(rng, entities - items, 1.0), counts)
    relation = _relations(rng, links[:, 1], entities - items)
    links = np.stack([links[:, 0], relation, items + links[:, 1]], axis=1)
    name = "Amazon-book (generated)" if scale == 1 else f"Amazon-book (generated, 1/{scale:g})"
    return RecommendationData.split(name, pairs, links, (users, items, entities, RELATIONS), seed)


def zipf(rng: np.random.Generator, count: int, exponent: float) -> np.ndarray:
    """``rank ** -exponent``, ranks in random order."""
    return (1.0 + rng.permutation(count)) ** -exponent


def _directions(rng: np.random.Generator, count: int) -> np.ndarray:
    drawn = rng.standard_normal((count, DIMENSIONS), dtype=np.float32)
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


def _shares(rng: np.random.Generator, weights: np.ndarray, total: int, least: int, most: int) -> np.ndarray:
    """Split a total in proportion to weights, each share from ``least`` to ``most``."""
    counts = np.full(len(weights), least)
    while (rest := total - counts.sum()) > 0:
        free = weights * (counts < most)
        counts = np.minimum(counts + rng.multinomial(rest, free / free.sum()), most)
    return counts


def _draw(
    rng: np.random.Generator, left: np.ndarray, right: np.ndarray, popularity: np.ndarray, counts: np.ndarray
) -> np.ndarray:
    """For row i of ``left`` draw ``counts[i]`` rows of ``right`` without replacement, in proportion to their weights.

    The smallest of exponential variables with the weights as rates are such a draw (Efraimidis and Spirakis 2006).
    """
    found = []
    popularity = popularity.astype(np.float32)
    for begin in range(0, len(left), step := max(1, CHUNK // len(right))):
        rows = slice(begin, begin + step)
        times = rng.standard_exponential((len(left[rows]), len(right)), dtype=np.float32)
        times /= np.exp(TASTE * (left[rows] @ right.T)) * popularity
        most = int(counts[rows].max())
        nearest = np.argpartition(times, most, axis=1)[:, :most]
        nearest = np.take_along_axis(nearest, np.argsort(np.take_along_axis(times, nearest, 1), axis=1), 1)
        row, place = np.nonzero(np.arange(most) < counts[rows, None])
        found.append(np.stack([begin + row, nearest[row, place]], axis=1))
    return np.concatenate(found)


def _fill(rng: np.random.Generator, pairs: np.ndarray, tastes: np.ndarray, items_at: np.ndarray) -> np.ndarray:
    """Give items that have fewer than ten interactions those of users near them, which drop one of a frequent item."""
    items = len(items_at)
    pairs = pairs.copy()
    while (missing := CORE - (degree := np.bincount(pairs[:, 1], minlength=items))).max() > 0:
        poor = np.flatnonzero(missing > 0)
        wanted = _draw(
            rng, items_at[poor], tastes, np.ones(len(tastes)), np.minimum(2 * missing[poor], len(tastes) - 1)
        )
        wanted = np.stack([wanted[:, 1], poor[wanted[:, 0]]], axis=1)
        known = np.isin(wanted @ [items, 1], pairs @ [items, 1])
        wanted = _at_most(rng.permutation(wanted[~known]), missing)
        wanted = wanted[np.unique(wanted[:, 0], return_index=True)[1]]  # a user changes one item at a time

        place = rng.permutation(len(pairs))
        given = place[degree[pairs[place, 1]] > CORE]
        given = given[np.unique(pairs[given, 0], return_index=True)[1]]  # one of each user
        given = given[_nth(pairs[given, 1]) < (degree - CORE)[pairs[given, 1]]]
        _, taker, giver = np.intersect1d(wanted[:, 0], pairs[given, 0], assume_unique=True, return_indices=True)
        pairs[given[giver], 1] = wanted[taker, 1]
    return pairs


def _at_most(pairs: np.ndarray, limit: np.ndarray) -> np.ndarray:
    """The first pairs of each item, as many as its limit."""
    return pairs[_nth(pairs[:, 1]) < limit[pairs[:, 1]]]


def _nth(values: np.ndarray) -> np.ndarray:
    """How often each value has come before."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    place = np.arange(len(values)) - np.searchsorted(ordered, ordered)
    result = np.empty_like(place)
    result[order] = place
    return result


def _relations(rng: np.random.Generator, tails: np.ndarray, entities: int) -> np.ndarray:
    """A relation for each triple, by its tail: relations cut a random order of the tails into parts of Zipf's sizes."""
    ends = np.cumsum(1.0 / np.arange(1, RELATIONS + 1))
    ends = np.rint(ends / ends[-1] * len(tails))
    place = np.empty(len(tails), dtype=np.int64)
    place[np.argsort(rng.permutation(entities)[tails], kind="stable")] = np.arange(len(tails))
    return np.searchsorted(ends, place, side="right")
