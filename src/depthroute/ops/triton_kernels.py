# type: ignore
# What a kernel is written in is Triton's language, of which Python's checkers know nothing.
"""The kernels of the read, in the words of `reference.py`; docs/kernels.md derives them.

A program reads a run of tokens one after another: at each token all groups of queries, for each group all sources. It
holds the whole width of a source and beside it the mixtures of one group, so a row of a source is loaded once for a
whole group. Further groups load it again before the program goes on to another token, from a cache if one holds what
the read of a token touches: so a row comes from device memory once, for any number of queries. Sources are found by
their addresses: they are never stacked, and one compiled kernel serves any number of them.

    table      [source, 2]          address of a source's first row, and coordinates between rows
    folded     [query, rank]        gain * query
    mixed      [query, token, width],   lse  [query, token]
    scores     [token, source, query]   <q, g * RMSNorm(k)>, without the prior
    scales     [token, source]          1 / sqrt(mean(k^2) + eps)
    norms      [query, token]           1 / sqrt(mean(mixed^2) + norm_eps), where the mixture is normed on the way out
    query_sums [program, query, rank]   a program's share of the gradient of `folded`
    value_sums [program, source, width],   key_sums  [program, source, rank]
                                        gradients of one token's sources, summed over the groups so far

A tile is a power of two and the width need not be: what lies beyond is masked. Nothing is added by atomics.
Triton compiles a kernel from its source and its module's names, which the wrapper of a type checker would hide.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl

TYPES = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32, torch.float64: tl.float64}
INTERPRETED = triton.knobs.runtime.interpret
"""Whether the kernels below were made for Triton's interpreter, which runs them on a CPU."""
SIZES = ["tokens", "sources"]
"""Arguments for whose values, such as 1 or multiples of 16, no kernel is compiled anew."""


@triton.jit
@no_type_check
def note_addresses(table, tensors, strides):
    """Fill rows of a table from kernel arguments: no copy from the host, so CUDA graphs may capture it."""
    for number in tl.static_range(len(tensors)):
        tl.store(table + 2 * number, tensors[number].to(tl.int64))
        tl.store(table + 2 * number + 1, strides[number])


@triton.jit
@no_type_check
def row(table, number, token, DTYPE: tl.constexpr, ALIGNMENT: tl.constexpr):
    """Where a token's row of a tensor begins. Every row of every tensor in the table is aligned to so many bytes."""
    first = tl.load(table + 2 * number).to(tl.pointer_type(DTYPE))
    return tl.multiple_of(first + token * tl.load(table + 2 * number + 1), ALIGNMENT)


@triton.jit(do_not_specialize=SIZES)
@no_type_check
def attend_kernel(
    values,
    keys,
    folded,
    prior,
    mixed,
    lse,
    scores,
    scales,
    norms,
    tokens,
    sources,
    WIDTH: tl.constexpr,
    RANK: tl.constexpr,
    QUERIES: tl.constexpr,
    OWN_KEYS: tl.constexpr,
    PRIOR: tl.constexpr,
    EPS: tl.constexpr,
    NORM_EPS: tl.constexpr,
    DTYPE: tl.constexpr,
    INSIDE: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    TOKENS: tl.constexpr,
    WIDTH_TILE: tl.constexpr,
    KEY_TILE: tl.constexpr,
    QUERY_TILE: tl.constexpr,
):
    GROUPS: tl.constexpr = (QUERIES + QUERY_TILE - 1) // QUERY_TILE
    coordinate, key_coordinate, is_value, is_key = places(WIDTH, RANK, OWN_KEYS, WIDTH_TILE, KEY_TILE)
    if GROUPS == 1:
        q = load_queries(folded, tl.arange(0, QUERY_TILE), key_coordinate, is_key, QUERIES, RANK)
    start = tl.program_id(0).to(tl.int64) * TOKENS
    for token in range(start, tl.minimum(start + TOKENS, tokens)):
        for group in range(GROUPS):
            query = group * QUERY_TILE + tl.arange(0, QUERY_TILE)
            is_query = query < QUERIES
            if GROUPS > 1:
                q = load_queries(folded, query, key_coordinate, is_key, QUERIES, RANK)
            highest = tl.full([QUERY_TILE], float("-inf"), INSIDE)
            total = tl.zeros([QUERY_TILE], INSIDE)
            mix = tl.zeros([QUERY_TILE, WIDTH_TILE], INSIDE)
            for source in range(sources):
                value = tl.load(row(values, source, token, DTYPE, ALIGNMENT) + coordinate, mask=is_value, other=0.0)
                value = value.to(INSIDE)
                if OWN_KEYS:
                    key = tl.load(row(keys, source, token, DTYPE, ALIGNMENT) + key_coordinate, mask=is_key, other=0.0)
                    key = key.to(INSIDE)
                else:
                    key = tl.where(is_key, value, 0.0)
                scale = tl.rsqrt(tl.sum(key * key, 1) / RANK + EPS)
                score = tl.sum(q * key, 1) * scale
                pair = token * sources + source
                tl.store(scores + pair * QUERIES + query, score, mask=is_query)
                tl.store(scales + pair + tl.arange(0, 1), scale)
                z = score
                if PRIOR:
                    z += tl.load(prior + source)
                higher = tl.maximum(highest, z)
                # While every source so far is hidden by a prior of -inf, there is no highest logit to subtract.
                base = tl.where(higher == float("-inf"), 0.0, higher)
                kept, weight = tl.exp(highest - base), tl.exp(z - base)
                total = total * kept + weight
                mix = mix * kept[:, None] + weight[:, None] * value
                highest = higher
            mix = mix / total[:, None]
            place = query.to(tl.int64) * tokens + token
            tl.store(lse + place, highest + tl.log(total), mask=is_query)
            if NORM_EPS is not None:
                norm = tl.rsqrt(tl.sum(mix * mix, 1) / WIDTH + NORM_EPS)
                tl.store(norms + place, norm, mask=is_query)
                mix = mix * norm[:, None]
            out = mixed + place[:, None] * WIDTH + coordinate
            tl.store(out, mix.to(DTYPE), mask=is_query[:, None] & is_value)


@triton.jit(do_not_specialize=SIZES)
@no_type_check
def attend_backward_kernel(
    values,
    keys,
    value_grads,
    key_grads,
    folded,
    prior,
    mixed,
    lse,
    scores,
    scales,
    norms,
    mixed_grad,
    lse_grad,
    query_sums,
    value_sums,
    key_sums,
    logit_grads,
    tokens,
    sources,
    WIDTH: tl.constexpr,
    RANK: tl.constexpr,
    QUERIES: tl.constexpr,
    OWN_KEYS: tl.constexpr,
    PRIOR: tl.constexpr,
    LSE_GRAD: tl.constexpr,
    NORMED: tl.constexpr,
    DTYPE: tl.constexpr,
    INSIDE: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    GRAD_ALIGNMENT: tl.constexpr,
    TOKENS: tl.constexpr,
    WIDTH_TILE: tl.constexpr,
    KEY_TILE: tl.constexpr,
    QUERY_TILE: tl.constexpr,
):
    """Gradients of every source, and this program's share of the queries' gradient.

    One group keeps its queries' gradient in registers over all tokens, and needs no sums of the sources' gradients. Of
    several, each adds to its rows of `query_sums` at every token, and to the sources' sums, which the last writes out.
    """
    GROUPS: tl.constexpr = (QUERIES + QUERY_TILE - 1) // QUERY_TILE
    coordinate, key_coordinate, is_value, is_key = places(WIDTH, RANK, OWN_KEYS, WIDTH_TILE, KEY_TILE)
    program = tl.program_id(0).to(tl.int64)
    if GROUPS == 1:
        q_grad = tl.zeros([QUERY_TILE, KEY_TILE if OWN_KEYS else WIDTH_TILE], INSIDE)
    start = program * TOKENS
    for token in range(start, tl.minimum(start + TOKENS, tokens)):
        for group in range(GROUPS):
            query = group * QUERY_TILE + tl.arange(0, QUERY_TILE)
            is_query = query < QUERIES
            here = is_query[:, None] & is_value
            if GROUPS > 1:
                q_grad = tl.zeros([QUERY_TILE, KEY_TILE if OWN_KEYS else WIDTH_TILE], INSIDE)
            place = query.to(tl.int64) * tokens + token
            grad = tl.load(mixed_grad + place[:, None] * WIDTH + coordinate, mask=here, other=0.0)
            mix = tl.load(mixed + place[:, None] * WIDTH + coordinate, mask=here, other=0.0).to(INSIDE)
            if NORMED:
                norm = tl.load(norms + place, mask=is_query, other=1.0)
                grad = grad.to(INSIDE)
                grad = (grad - mix * (tl.sum(grad * mix, 1) / WIDTH)[:, None]) * norm[:, None]
                mix = mix / norm[:, None]
            # sum_i a_i <dmixed, v_i> = <dmixed, mixed>
            mean = tl.sum(grad.to(INSIDE) * mix, 1)
            log_total = tl.load(lse + place, mask=is_query, other=0.0)
            through_lse = tl.zeros([QUERY_TILE], INSIDE)
            if LSE_GRAD:
                through_lse = tl.load(lse_grad + place, mask=is_query, other=0.0)
            for source in range(sources):
                value = tl.load(row(values, source, token, DTYPE, ALIGNMENT) + coordinate, mask=is_value, other=0.0)
                value = value.to(INSIDE)
                pair = token * sources + source
                score = tl.load(scores + pair * QUERIES + query, mask=is_query, other=0.0)
                scale = tl.load(scales + pair)
                z = score
                if PRIOR:
                    z += tl.load(prior + source)
                weight = tl.where(is_query, tl.exp(z - log_total), 0.0)
                through_mix = tl.sum(grad.to(INSIDE) * value, 1) - mean
                # The weight of a single source is 1 whatever its logit, to the bit.
                z_grad = weight * (through_lse + tl.where(sources > 1, through_mix, 0.0))
                if PRIOR:
                    tl.store(logit_grads + pair * QUERIES + query, z_grad, mask=is_query)
                if OWN_KEYS:
                    key = tl.load(row(keys, source, token, DTYPE, ALIGNMENT) + key_coordinate, mask=is_key, other=0.0)
                    key = key.to(INSIDE)
                else:
                    key = tl.where(is_key, value, 0.0)
                q_grad += (z_grad * scale)[:, None] * key
                q = load_queries(folded, query, key_coordinate, is_key, QUERIES, RANK)
                inward = tl.sum(z_grad * score) * scale * scale / RANK
                key_grad = tl.sum(z_grad[:, None] * q, 0)[None, :] * scale - key * inward
                value_grad = tl.sum(weight[:, None] * grad.to(INSIDE), 0)[None, :]
                part = program * sources + source
                if OWN_KEYS:
                    out = row(key_grads, source, token, DTYPE, GRAD_ALIGNMENT) + key_coordinate
                    add_group(key_grad, key_sums, part * RANK + key_coordinate, out, is_key, group, GROUPS, DTYPE)
                else:
                    value_grad += key_grad
                out = row(value_grads, source, token, DTYPE, GRAD_ALIGNMENT) + coordinate
                add_group(value_grad, value_sums, part * WIDTH + coordinate, out, is_value, group, GROUPS, DTYPE)
            if GROUPS > 1:
                q_place = query_sums + program * QUERIES * RANK + query[:, None] * RANK + key_coordinate
                q_here = is_query[:, None] & is_key
                if token > start:
                    q_grad += tl.load(q_place, mask=q_here, other=0.0)
                tl.store(q_place, q_grad, mask=q_here)
                # What a thread stores or loads here, another may load for the next group or store for the next token.
                tl.debug_barrier()
    if GROUPS == 1:
        query = tl.arange(0, QUERY_TILE)
        q_place = query_sums + program * QUERIES * RANK + query[:, None] * RANK + key_coordinate
        tl.store(q_place, q_grad, mask=(query < QUERIES)[:, None] & is_key)


@triton.jit
@no_type_check
def add_group(grad, sums, place, out, here, group, GROUPS: tl.constexpr, DTYPE: tl.constexpr):
    """One group's share of a source's gradient: the first starts the sum, the last writes it to `out`."""
    if GROUPS > 1:
        if group > 0:
            grad += tl.load(sums + place, mask=here, other=0.0)
        if group < GROUPS - 1:
            tl.store(sums + place, grad, mask=here)
    if group == GROUPS - 1:
        tl.store(out, grad.to(DTYPE), mask=here)


@triton.jit
@no_type_check
def load_queries(folded, query, key_coordinate, is_key, QUERIES: tl.constexpr, RANK: tl.constexpr):
    here = (query < QUERIES)[:, None] & is_key
    return tl.load(folded + query[:, None] * RANK + key_coordinate, mask=here, other=0.0)


@triton.jit
@no_type_check
def places(
    WIDTH: tl.constexpr,
    RANK: tl.constexpr,
    OWN_KEYS: tl.constexpr,
    WIDTH_TILE: tl.constexpr,
    KEY_TILE: tl.constexpr,
):
    """The coordinates of a tile, and which of them exist. A key that is a value's tail has the value's tile."""
    coordinate = tl.arange(0, WIDTH_TILE)[None, :]
    is_value = coordinate < WIDTH
    if OWN_KEYS:
        key_coordinate = tl.arange(0, KEY_TILE)[None, :]
        is_key = key_coordinate < RANK
    else:
        key_coordinate = coordinate - (WIDTH - RANK)
        is_key = is_value & (key_coordinate >= 0)
    return coordinate, key_coordinate, is_value, is_key


@triton.jit
@no_type_check
def sum_kernel(parts, whole, rows, columns, ROW_TILE: tl.constexpr, COLUMN_TILE: tl.constexpr):
    """whole[column] = sum over rows of parts[row, column], always in the same order."""
    column = tl.program_id(0) * COLUMN_TILE + tl.arange(0, COLUMN_TILE)
    total = tl.zeros([COLUMN_TILE], whole.dtype.element_ty)
    for start in range(0, rows, ROW_TILE):
        line = (start + tl.arange(0, ROW_TILE)).to(tl.int64)
        here = (line < rows)[:, None] & (column < columns)[None, :]
        total += tl.sum(tl.load(parts + line[:, None] * columns + column[None, :], mask=here, other=0.0), 0)
    tl.store(whole + column, total, mask=column < columns)
