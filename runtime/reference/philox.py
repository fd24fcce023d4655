"""Philox4x32-7 in PyTorch integers: random bits as a function of seed, node and element index.

Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC'11, section 3.3.
"""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDS = 7
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_WORD = 0xFFFFFFFF


def philox4x32(counter: list[Tensor], key: tuple[int, int], rounds: int = ROUNDS) -> list[Tensor]:
    """The four output words of every counter.

    Args:
        counter: four int64 tensors of one shape, each value a word from 0 to 2**32 - 1.
        key: two words.
        rounds: 7 as gqc uses it, 10 as in the paper's known answers.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(rounds):
        high0, low0 = _multiply(c0, _MULTIPLIERS[0])
        high1, low1 = _multiply(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _WEYL[0]) & _WORD, (k1 + _WEYL[1]) & _WORD
    return [c0, c1, c2, c3]


def random_bits(count: int, seed: Tensor, node: int) -> Tensor:
    """16 random bits for each of ``count`` elements, int64 ``[count]`` with values from 0 to 65535.

    Args:
        count: number of elements of the tensor that they are for.
        seed: int64 tensor of 2 elements: number drawn for the step, step counter.
        node: number of the graph node that draws.
    """
    return _numbers(count, 16, seed, node)


def random_bytes(count: int, seed: Tensor, node: int) -> Tensor:
    """A random byte for each of ``count`` elements, int64 ``[count]``: those of :func:`random_bits`, low ones first."""
    return _numbers(count, 8, seed, node)


def _numbers(count: int, bits: int, seed: Tensor, node: int) -> Tensor:
    number, step = (int(part) & 0xFFFFFFFFFFFFFFFF for part in seed)
    of_block = 128 // bits
    block = torch.arange((count + of_block - 1) // of_block)
    constant = torch.ones_like(block)
    counter = [block & _WORD, block >> 32, constant * (node & _WORD), constant * (step & _WORD)]
    words = torch.stack(philox4x32(counter, (number & _WORD, number >> 32)), dim=1)
    return ((words[..., None] >> torch.arange(0, 32, bits)) & (2**bits - 1)).flatten()[:count]


def _multiply(word: Tensor, multiplier: int) -> tuple[Tensor, Tensor]:
    """High and low word of a product of 64 bits, which int64 holds modulo 2**64."""
    product = word * multiplier
    return (product >> 32) & _WORD, product & _WORD
