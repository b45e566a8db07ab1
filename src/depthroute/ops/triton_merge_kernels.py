# type: ignore
# What a kernel is written in is Triton's language, of which Python's checkers know nothing.
"""The kernels of the merge, in the words of `reference.py`; docs/kernels.md derives them.

A program takes a run of rows, one after another: a row is a query at a token. Tiles and types are as in the read's.
"""

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows"])
@no_type_check
def merge_kernel(
    first,
    second,
    first_lse,
    second_lse,
    mixed,
    lse,
    rows,
    WIDTH: tl.constexpr,
    INSIDE: tl.constexpr,
    TOKENS: tl.constexpr,
    WIDTH_TILE: tl.constexpr,
):
    """p = sigmoid(lse_2 - lse_1), mixed = mixed_1 + p (mixed_2 - mixed_1): a row is a query at a token."""
    coordinate = tl.arange(0, WIDTH_TILE)
    start = tl.program_id(0).to(tl.int64) * TOKENS
    for number in range(start, tl.minimum(start + TOKENS, rows)):
        one, two = tl.load(first_lse + number), tl.load(second_lse + number)
        share = 1.0 / (1.0 + tl.exp(one - two))
        # Of two reads whose sources are all hidden, -inf, the difference is no number.
        apart = tl.where(one == two, 0.0, tl.abs(one - two))
        tl.store(lse + number, tl.maximum(one, two) + tl.log(1.0 + tl.exp(-apart)))
        place = number * WIDTH + coordinate
        a = tl.load(first + place, mask=coordinate < WIDTH, other=0.0).to(INSIDE)
        b = tl.load(second + place, mask=coordinate < WIDTH, other=0.0).to(INSIDE)
        # From the nearer end, so that a share of 1 gives the second read to the bit.
        mix = tl.where(share < 0.5, a + share * (b - a), b - (1.0 - share) * (b - a))
        tl.store(mixed + place, mix.to(mixed.dtype.element_ty), mask=coordinate < WIDTH)


@triton.jit(do_not_specialize=["rows"])
@no_type_check
def merge_backward_kernel(
    first,
    second,
    first_lse,
    second_lse,
    mixed_grad,
    lse_grad,
    first_grad,
    second_grad,
    first_lse_grad,
    second_lse_grad,
    rows,
    WIDTH: tl.constexpr,
    INSIDE: tl.constexpr,
    TOKENS: tl.constexpr,
    WIDTH_TILE: tl.constexpr,
):
    """dshare = <dmixed, mixed_2 - mixed_1>; the shares are p for the second read and 1 - p for the first."""
    coordinate = tl.arange(0, WIDTH_TILE)
    start = tl.program_id(0).to(tl.int64) * TOKENS
    for number in range(start, tl.minimum(start + TOKENS, rows)):
        apart = tl.load(first_lse + number) - tl.load(second_lse + number)
        share, rest = 1.0 / (1.0 + tl.exp(apart)), 1.0 / (1.0 + tl.exp(-apart))
        place = number * WIDTH + coordinate
        a = tl.load(first + place, mask=coordinate < WIDTH, other=0.0).to(INSIDE)
        b = tl.load(second + place, mask=coordinate < WIDTH, other=0.0).to(INSIDE)
        grad = tl.load(mixed_grad + place, mask=coordinate < WIDTH, other=0.0).to(INSIDE)
        through_lse = tl.load(lse_grad + number)
        moved = share * rest * tl.sum(grad * (b - a), 0)
        tl.store(first_lse_grad + number, rest * through_lse - moved)
        tl.store(second_lse_grad + number, share * through_lse + moved)
        tl.store(first_grad + place, (rest * grad).to(first_grad.dtype.element_ty), mask=coordinate < WIDTH)
        tl.store(second_grad + place, (share * grad).to(second_grad.dtype.element_ty), mask=coordinate < WIDTH)
