"""A machine's constants, and the time of a primitive that follows from them."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from math import isfinite
from typing import NamedTuple

from gqc.errors import PolicyError


class Work(NamedTuple):
    """What a primitive does, whatever its precision.

    Attributes:
        dtype: of its floats, ``"float32"``, ``"bfloat16"`` or ``"float16"``.
        operations: multiplications and additions of a dense product.
        torch: whether torch computes it in full precision, and not an op of gqc.
        edges: how often it reads a row of a node operand.
        gathered: elements in these rows.
        operands: for each operand that int8 needs a copy of, its elements and how many primitives read the copy.
    """

    dtype: str
    operations: int = 0
    torch: bool = False
    edges: int = 0
    gathered: int = 0
    operands: tuple[tuple[int, int], ...] = ()


_LEEWAY = 2.0
"""Up to how much faster than estimated int8 is: fusion is not counted, and torch's narrow products are overrated."""


class Look(NamedTuple):
    """What a product does to give int8: it computes its values once more, when their largest magnitude is known.

    Attributes:
        precision: in which it multiplies, ``"int8"``, ``"fp32"`` or ``"bf16x3"``.
        operations: its multiplications and additions.
        elements: of its result.
        results: how many int8 matrices it gives.
        instructions: of the program that makes them of its result.
        read: bytes of what it and the program read.
    """

    precision: str
    operations: int
    elements: int
    results: int
    instructions: int
    read: int


class Storage(NamedTuple):
    """Microseconds of a second look, and of writing bfloat16 that a ``quantize`` reads."""

    again: float
    bfloat16: float


class FloatProduct(NamedTuple):
    """A product of float32 matrices.

    Attributes:
        precision: in which gqc multiplies, ``"fp32"`` or ``"bf16x3"``; torch in float32.
        operations: multiplications and additions.
        read: bytes of both operands.
        program: elements of the result that elementwise steps read, which run with gqc's product alone.
        scaled: elements of a product with a column that gqc's product does with its own.
    """

    precision: str
    operations: int
    read: int
    program: int = 0
    scaled: int = 0


class FloatProducts(NamedTuple):
    """Microseconds of torch's product, with what it leaves to others, and of gqc's."""

    torch: float
    gqc: float


class Estimate(NamedTuple):
    """Microseconds of a primitive in full precision and in int8, its share of the int8 copies included."""

    full: float
    int8: float

    def loses(self) -> bool:
        """Whether int8 would be slower, however much fusion spares it."""
        return self.int8 > _LEEWAY * self.full


def _rate(unit: str, value: float) -> float:
    """A field with its unit and its value on the machine that :data:`BUILT_IN` was measured on."""
    return field(default=value, metadata={"unit": unit})


@dataclass(frozen=True)
class CostModel:
    """Constants of a machine, all above zero.

    Attributes:
        torch_call: of an op of torch on a few elements, in microseconds.
        call: likewise of a quantized op of gqc.
        quantize_call: likewise of ``quantize``.
        float32_gemm, bfloat16_gemm, int8_gemm: 10^9 multiplications and additions a second of a large product.
        float32_mm: the same of gqc's product of float32 matrices, where ``float32_gemm`` is torch's.
        quantize: GB of floats a second of ``quantize``, which looks for the largest magnitude first.
        float_rows, int8_rows: GB a second of rows that SPMM reads at random.
        float_edge, int8_edge: nanoseconds that SPMM takes for an edge in addition.
        steps: 10^9 elements a second that an instruction of a pointwise program works on.
        memory: GB a second of large tensors that are read or written from end to end.
    """

    torch_call: float = _rate("us", 1.8)
    call: float = _rate("us", 23)
    quantize_call: float = _rate("us", 15)
    float32_gemm: float = _rate("GOP/s", 170)
    bfloat16_gemm: float = _rate("GOP/s", 650)
    int8_gemm: float = _rate("GOP/s", 780)
    quantize: float = _rate("GB/s", 10)
    float_rows: float = _rate("GB/s", 24)
    int8_rows: float = _rate("GB/s", 20)
    float_edge: float = _rate("ns", 1)
    int8_edge: float = _rate("ns", 4.5)
    steps: float = _rate("G/s", 25)
    memory: float = _rate("GB/s", 14)
    float32_mm: float = _rate("GOP/s", 115)

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not (isfinite(value) and value > 0):
                raise PolicyError(f"CostModel.{each.name}={value!r}: expected a number of {each.metadata['unit']} > 0")

    def estimate(self, work: Work) -> Estimate:
        """The time of a primitive."""
        size = 4 if work.dtype == "float32" else 2
        gemm = self.float32_gemm if work.dtype == "float32" else self.bfloat16_gemm
        full = self.torch_call if work.torch else self.call
        full += work.operations / gemm * 1e-3
        full += work.edges * self.float_edge * 1e-3 + size * work.gathered / self.float_rows * 1e-3
        int8 = self.call + work.operations / self.int8_gemm * 1e-3
        int8 += work.edges * self.int8_edge * 1e-3 + work.gathered / self.int8_rows * 1e-3
        int8 += sum((self.quantize_call + size * n / self.quantize * 1e-3) / readers for n, readers in work.operands)
        return Estimate(full, int8)

    def storage(self, look: Look) -> Storage:
        """The times of both ways to int8 results of a product, without what they have in common."""
        floats = 3 / self.bfloat16_gemm if look.precision == "bf16x3" else 1 / self.float32_gemm
        again = look.operations * (1 / self.int8_gemm if look.precision == "int8" else floats)
        again += look.elements * (look.instructions + look.results) / self.steps + look.read / self.memory
        # Rounded, written, read and turned into floats again.
        each = 2 * look.elements / self.steps + 2 * 2 * look.elements / self.memory
        return Storage(again * 1e-3, look.results * (self.quantize_call + each * 1e-3))

    def float_products(self, product: FloatProduct) -> FloatProducts:
        """The times of both ways to a product of float32 matrices that is not quantized."""
        rate = self.bfloat16_gemm / 3 if product.precision == "bf16x3" else self.float32_mm
        reading = product.read / self.memory
        torch = self.torch_call + max(product.operations / self.float32_gemm, reading) * 1e-3
        if product.program:  # as a program of its own that reads what the product has written
            torch += self.call + 2 * 4 * product.program / self.memory * 1e-3
        if product.scaled:
            torch += self.torch_call + 2 * 4 * product.scaled / self.memory * 1e-3
        gqc = self.call + max(product.operations / rate, reading) * 1e-3
        return FloatProducts(torch, gqc)

    def float24(self, elements: int, products: int, lines: float) -> float:
        """The time that a matrix in float24 saves beside one in float32, less what rounding it takes.

        Args:
            elements: of the matrix.
            products: how many products read it from end to end.
            lines: how many cache lines of 64 bytes fewer sums over neighbours read at random.
        """
        saved = elements * (1 + products) / self.memory + 64 * lines / self.float_rows
        return (saved - 3 * elements / self.steps) * 1e-3

    def lines(self) -> list[str]:
        """A line for each constant, with its unit."""
        return [f"{f.name} {getattr(self, f.name):g} {f.metadata['unit']}" for f in fields(self)]


_AVX512 = CostModel(int8_gemm=450, bfloat16_gemm=100)
_AVX2 = CostModel(
    float32_gemm=60,
    float32_mm=57,
    bfloat16_gemm=1,
    int8_gemm=65,
    quantize=5,
    float_rows=22,
    int8_rows=7,
    float_edge=1.3,
    int8_edge=2,
    steps=10,
)
_AVXVNNI = replace(_AVX2, int8_gemm=150)
_PORTABLE = CostModel(
    float32_gemm=30,
    float32_mm=30,
    bfloat16_gemm=1,
    int8_gemm=45,
    quantize=2.2,
    float_rows=17,
    int8_rows=5,
    float_edge=1.5,
    int8_edge=2.1,
    steps=5,
)
BUILT_IN = {"amx": CostModel(), "avx512": _AVX512, "avxvnni": _AVXVNNI, "avx2": _AVX2, "portable": _PORTABLE}
"""By instruction set, for machines that were not measured: one thread of a server processor, torch with the same
instructions.
"""
