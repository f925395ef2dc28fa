"""The ring's arithmetic against schoolbook multiplication and Python's own whole numbers."""

from __future__ import annotations

import ast
import inspect
import textwrap

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blindsight.federated.sums.pad import bits, cipher, ring, sampler
from blindsight.federated.sums.pad.parameters import primes

SMALL = 16  # the code does not care about the degree, a schoolbook does


def residues(rng: np.random.Generator, prime: int, n: int) -> np.ndarray:
    x = rng.integers(0, prime, n).astype(np.uint32)
    x[: n // 4] = prime - 1
    return x


def schoolbook(x: np.ndarray, y: np.ndarray, prime: int) -> list[int]:
    n = len(x)
    out = [0] * n
    for i, a in enumerate(x.tolist()):
        for j, b in enumerate(y.tolist()):
            out[(i + j) % n] += a * b if i + j < n else -a * b
    return [value % prime for value in out]


@pytest.mark.parametrize("width", [20, 25, 28, 30])
@pytest.mark.parametrize("degree", [SMALL, 256])
def test_transforms_multiply_modulo_x_to_the_n_plus_one(width: int, degree: int) -> None:
    rng = np.random.default_rng(width)
    for prime in primes(degree, width, 2):
        at = ring.field(prime, degree)
        x, y = residues(rng, prime, degree), residues(rng, prime, degree)
        fx, fy, product = x.copy(), y.copy(), np.zeros(degree, dtype=np.uint32)
        ring.forward(fx, at)
        ring.forward(fy, at)
        ring.multiply_add(fx, fy, product, prime)
        ring.inverse(product, at)
        assert product.tolist() == schoolbook(x, y, prime)


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_reductions_agree_with_remainders(data: st.DataObject) -> None:
    prime = data.draw(
        st.sampled_from([*primes(4096, 25, 2), *primes(4096, 30, 2), *primes(8192, 28, 2)])
    )
    numbers = st.lists(
        st.one_of(st.integers(0, prime - 1), st.just(prime - 1)), min_size=8, max_size=8
    )
    a, s, x = (np.array(data.draw(numbers), dtype=np.uint32) for _ in range(3))
    plus, minus, total = x.copy(), x.copy(), x.copy()
    ring.multiply_add(a, s, plus, prime)
    ring.multiply_subtract(a, s, minus, prime)
    ring.add_into(total, a, prime)
    for i in range(8):
        u, v, w = int(a[i]), int(s[i]), int(x[i])
        assert (plus[i], minus[i], total[i]) == (
            (w + u * v) % prime,
            (w - u * v) % prime,
            (w + u) % prime,
        )


@given(width=st.integers(1, 56), count=st.integers(1, 70), data=st.data())
@settings(max_examples=60, deadline=None)
def test_bits_survive_packing(width: int, count: int, data: st.DataObject) -> None:
    numbers = np.array(
        data.draw(st.lists(st.integers(0, (1 << width) - 1), min_size=count, max_size=count)),
        np.uint64,
    )
    packed = bits.pack(numbers, width)
    whole = sum(int(x) << (width * i) for i, x in enumerate(numbers))
    assert packed == whole.to_bytes(-(-count * width // 8), "little")
    out = np.empty(count, dtype=np.uint64)
    assert bits.unpack(packed, width, out) == int(numbers.max())
    np.testing.assert_array_equal(out, numbers)


def test_nothing_divides_or_branches_on_a_secret() -> None:
    """The kernels that touch secrets hold no remainder, no division and no condition but a public
    one.
    """
    kernels = (
        ring._lazy, ring._less, ring._forward, ring._product, ring._multiply_add, ring.add_into,
        cipher._fill, cipher._signed, sampler._scan,
    )  # fmt: skip
    for kernel in kernels:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kernel.py_func)))
        for node in ast.walk(tree):
            assert not isinstance(node, (ast.Mod, ast.FloorDiv, ast.Div, ast.IfExp)), kernel
            if isinstance(node, ast.If):
                assert ast.unparse(node.test) == "minus"
