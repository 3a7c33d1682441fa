"""The verify pass: read every block of a store and compare it with its digest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from scrlm_dask.engine.execution import Execution, Pass
from scrlm_dask.engine.features import placeholder_blocks
from scrlm_dask.errors import StoreError, UnreachableError
from scrlm_dask.events import Note
from scrlm_dask.storage.arrays import StoredArray, open_node
from scrlm_dask.storage.feature_store import covered_arrays, open_store, read_block
from scrlm_dask.storage.locations import Location
from scrlm_dask.storage.manifest import DIGESTS, compare_digests, open_digests
from scrlm_dask.storage.store_info import digests_are_current


@dataclass(frozen=True)
class DamagedBlock:
    """A block that cannot be read, or that differs from its digest.

    Attributes
    ----------
    block : int
        Number of the block in the manifest; without a manifest, number of the chunk.
    first_row, last_row : int
        First and last row of the block.
    reason : str
        Message of the error.
    """

    block: int
    first_row: int
    last_row: int
    reason: str


def check_digests_pass(
    execution: Execution, store: Location, stored: StoredArray, block_rows: int, has_digests: bool
) -> tuple[DamagedBlock, ...]:
    """Read every block and compare it with its digest; return the damaged blocks in order.

    Without digests, every chunk is only read.
    """
    n_rows, n_features = stored.shape
    blocks = placeholder_blocks((n_rows, n_features), stored.dtype, block_rows)
    # All blocks of a task are one part, because the arrays are opened once per part.
    parts = placeholder_blocks((n_rows, n_features), stored.dtype, blocks.layout.task_rows)
    damaged: tuple[DamagedBlock, ...] = execution.run(
        _CHECK_DIGESTS,
        parts,
        {"store": store, "stored": stored, "block_rows": block_rows, "has_digests": has_digests},
    )
    return damaged


def verify_rewritten(execution: Execution, store: Location, files: str) -> None:
    """Verify a store whose files, `files`, were written after its digests; raise if rows differ.

    The digest of the features in records and labels stores is computed from these digests.
    """
    if digests_are_current(store, files):
        return
    text = (
        f"the files of the features store {store} were written after its digests, for example by a "
        "copy; verifying them first (`scrlm inspect --verify` does this once for all runs)"
    )
    execution.emit(Note(text))
    damage = verify_digests(execution, store)
    if damage:
        more = f" ({len(damage)} blocks in total)" if len(damage) > 1 else ""
        raise StoreError(
            f"the features store {store} was changed after it was written: {damage[0].reason}{more}"
        )


def verify_digests(execution: Execution, store: Location) -> tuple[DamagedBlock, ...]:
    """Compare all blocks with the digests of the manifest; without a manifest, read nothing."""
    opened = open_store(store)
    if opened.manifest is None:
        return ()
    block_rows = opened.manifest.block_rows
    return check_digests_pass(execution, store, opened.features, block_rows, has_digests=True)


def _check_digests_part(
    plan: NDArray[Any],
    start: int,
    store: Location,
    stored: StoredArray,
    block_rows: int,
    has_digests: bool,
) -> tuple[DamagedBlock, ...]:
    # Not the group for each part: its attributes may name thousands of source files.
    node = store / DIGESTS if has_digests else store
    # raises on a worker that lacks the mount, because a missing mount is not damage
    open_node(node, "the features store")
    step = block_rows if has_digests else stored.chunks[0]  # a block may have several chunks
    digests = open_digests(store) if has_digests else None
    covered = (stored,) if digests is None else covered_arrays(store)

    def find_damage(first: int, stop: int) -> tuple[DamagedBlock, ...]:
        try:
            values = read_block(covered, first, stop)
            if digests is not None:
                compare_digests(digests, store, first // step, step, *values)
        except UnreachableError:
            raise
        except StoreError as error:
            open_node(node, "the features store")  # raises if the whole store is gone
            return (DamagedBlock(first // step, first, stop - 1, str(error)),)
        return ()

    stop = start + len(plan)
    damage = find_damage(start, stop)  # all blocks at once, because a read costs a millisecond
    if damage and len(plan) > step:
        ranges = ((first, min(first + step, stop)) for first in range(start, stop, step))
        damage = tuple(found for each in ranges for found in find_damage(*each))
    return damage


_CHECK_DIGESTS = Pass("verify", _check_digests_part, tuple.__add__)
