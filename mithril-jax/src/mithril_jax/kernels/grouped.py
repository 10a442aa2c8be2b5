"""Kernels of products with a matrix for each block, with shapes that are known beforehand.

Blocks are put in the order of their matrices and taken in chunks that have one matrix each. How
many chunks there are is known when the program runs: a loop goes on for as long as there are some.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from mithril.spi import KernelRun, TensorType, Types, accumulator, ops

from mithril_jax.kernels.table import kernel

CHUNK_ROWS = 128
"""Rows of a chunk, if a block has fewer: enough that taking its matrix costs little."""


class _Chunks(NamedTuple):
    """Which blocks are multiplied together.

    Args:
        blocks: [chunks, blocks of a chunk], numbers of blocks; behind the last one for none.
        entries: [chunks], their matrix.
        places: [blocks], where each block is among those of all chunks; behind them for none.
        count: how many chunks there are, the first ones.
    """

    blocks: Any
    entries: Any
    places: Any
    count: Any


@kernel(ops.GroupedMatmul)
def grouped_matmul(op: ops.GroupedMatmul, types: Types) -> KernelRun:
    """A loop over chunks, each multiplied by its matrix."""
    (result,) = op.infer(types)
    dtype, accumulate = result.dtype.numpy, accumulator(result.dtype)
    groups, count, rows, features = types[0].shape
    stack_type = types[2]
    if not all(type.size for type in (*types, result)):
        return lambda x, ids, stack: jnp.zeros(result.shape, dtype)
    out, contracted = result.shape[3], 0 if op.transposed else 1

    def run(x: Any, ids: Any, stack: Any) -> Any:
        blocks = lax.reshape(x, (groups * count, rows, features))
        chunks = _chunk(ids, stack_type.shape[0], rows)
        number, size = chunks.blocks.shape

        def step(index: Any, made: Any) -> Any:
            chosen = _gather(blocks, chunks.blocks[index]).reshape(size * rows, features)
            matrix = lax.dynamic_index_in_dim(stack, chunks.entries[index], 0, keepdims=False)
            product = lax.dot_general(
                chosen, matrix, (((1,), (contracted,)), ((), ())),
                preferred_element_type=accumulate,
            )  # fmt: skip
            product = lax.convert_element_type(product, dtype)
            return lax.dynamic_update_index_in_dim(made, product, index, 0)

        empty = jnp.zeros((number, size * rows, out), dtype)
        made = lax.fori_loop(0, chunks.count, step, empty).reshape(number * size, rows, out)
        return _gather(made, chunks.places).reshape(result.shape)

    return run


@kernel(ops.GroupedOuter)
def grouped_outer(op: ops.GroupedOuter, types: Types) -> KernelRun:
    """A loop over chunks, each added to its entry."""
    (result,) = op.infer(types)
    dtype, accumulate = result.dtype.numpy, accumulator(result.dtype)
    rows, flat = types[0].shape[2], [_flat(x) for x in types[:2]]
    if not all(type.size for type in (*types, result)):
        return lambda left, right, ids: jnp.zeros(result.shape, dtype)

    def run(left: Any, right: Any, ids: Any) -> Any:
        left, right = lax.reshape(left, flat[0]), lax.reshape(right, flat[1])
        chunks = _chunk(ids, op.entries, rows)

        def step(index: Any, total: Any) -> Any:
            first, second = (_gather(x, chunks.blocks[index]) for x in (left, right))
            product = lax.dot_general(
                first, second, (((0, 1), (0, 1)), ((), ())), preferred_element_type=accumulate
            )
            entry = chunks.entries[index]
            so_far = lax.dynamic_index_in_dim(total, entry, 0, keepdims=False)
            return lax.dynamic_update_index_in_dim(total, so_far + product, entry, 0)

        total = lax.fori_loop(0, chunks.count, step, jnp.zeros(result.shape, accumulate))
        return lax.convert_element_type(total, dtype)

    return run


def _chunk(ids: Any, entries: int, rows: int) -> _Chunks:
    """Return the chunks of blocks, those of the first entry first."""
    ids = ids.reshape(-1)
    total, size = ids.shape[0], max(1, CHUNK_ROWS // max(rows, 1))
    size = min(size, total)
    ids = jnp.where((ids >= 0) & (ids < entries), ids, entries)
    numbers = lax.iota(np.int32, total)
    sorted_ids, order = lax.sort((ids, numbers), is_stable=True, num_keys=1)
    ends = jnp.searchsorted(sorted_ids, jnp.arange(entries, dtype=ids.dtype), side="right")
    ends = lax.convert_element_type(ends, np.int32)
    starts = jnp.concatenate([jnp.zeros(1, np.int32), ends[:-1]])
    chunk_ends = jnp.cumsum((ends - starts + size - 1) // size)
    chunk_starts = jnp.concatenate([jnp.zeros(1, chunk_ends.dtype), chunk_ends[:-1]])
    bound = total // size + entries
    chunk = lax.iota(np.int32, bound)
    entry = jnp.minimum(jnp.searchsorted(chunk_ends, chunk, side="right"), entries - 1)
    first = starts[entry] + (chunk - chunk_starts[entry]) * size
    at = first[:, None] + lax.iota(np.int32, size)
    inside = (at < ends[entry][:, None]) & (chunk < chunk_ends[-1])[:, None]
    blocks = jnp.where(inside, order[jnp.minimum(at, total - 1)], total)
    places = jnp.full(total, bound * size, np.int32)
    everywhere = lax.iota(np.int32, bound * size)
    places = places.at[blocks.reshape(-1)].set(everywhere, mode="drop", unique_indices=True)
    return _Chunks(blocks, entry, places, chunk_ends[-1])


def _gather(blocks: Any, numbers: Any) -> Any:
    """Return blocks by number, and zeros for numbers behind the last one."""
    return blocks.at[numbers].get(mode="fill", fill_value=0, wrap_negative_indices=False)


def _flat(x: TensorType) -> tuple[int, int, int]:
    return (x.shape[0] * x.shape[1], x.shape[2], x.shape[3])
