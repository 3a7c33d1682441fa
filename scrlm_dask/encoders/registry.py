"""Which encoder a name means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from scrlm_dask.encoders.base import Encoder, Kind
from scrlm_dask.encoders.light import open_hashing, open_pixels
from scrlm_dask.encoders.models import open_clip_model, open_sentences, open_torchvision
from scrlm_dask.encoders.named import open_named
from scrlm_dask.errors import InputError


@dataclass(frozen=True)
class Family:
    """Encoders of one library: what they take, and how one is opened."""

    takes: tuple[Kind, ...]
    open: Callable[[str, str, Kind, str | None], Encoder]  # name, what follows, kind, device
    has_device: bool = True


FAMILIES = {
    "pixels": Family(("images",), lambda name, rest, *_: open_pixels(name, rest), False),
    "hashing": Family(("texts",), lambda name, rest, *_: open_hashing(name, rest), False),
    "sentence-transformers": Family(("texts",), open_sentences),
    "open_clip": Family(("images", "texts"), open_clip_model),
    "torchvision": Family(("images",), open_torchvision),
}
_NAMED = Family(("images", "texts"), lambda name, *_: open_named(name), has_device=False)


def open_encoder(name: str, kind: Kind, device: str | None) -> Encoder:
    """The encoder for items of a kind, its model loaded; this is done once."""
    first, colon, rest = name.partition(":")
    family = FAMILIES.get(first) or (_NAMED if colon else None)
    if family is None or (family.has_device and not rest):
        raise InputError(
            f"the encoder {name!r} is not known; give pixels, hashing, sentence-transformers:NAME, "
            "open_clip:MODEL/PRETRAINED, torchvision:MODEL or module:function"
        )
    if kind not in family.takes:
        fitting = ", ".join(key for key, known in FAMILIES.items() if kind in known.takes)
        raise InputError(
            f"the encoder {name} takes {' and '.join(family.takes)} and the input holds {kind}; "
            f"for these there are {fitting} and module:function"
        )
    if device is not None and not family.has_device:
        raise InputError(f"--device says nothing to the encoder {name}; leave it out")
    return family.open(name, rest, kind, device)
