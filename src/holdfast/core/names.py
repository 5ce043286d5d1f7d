"""Names and metadata: what may be one, checked once, before anything is asked of a store.

Contract: a name is any text of 1 to 1024 bytes of UTF-8. Nothing is trimmed, folded or truncated:
names that differ in one code point are different locks, on every backend. How a backend spells a
name in its own alphabet is its own business, as long as the spelling is injective.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from holdfast.errors import Misconfigured

__all__ = [
    "MAX_METADATA_BYTES",
    "MAX_NAME_BYTES",
    "checked_metadata",
    "checked_name",
    "checked_prefix",
    "shown",
]

NONE: Mapping[str, str] = MappingProxyType({})
MAX_NAME_BYTES = 1024
MAX_METADATA_BYTES = 4096


def checked_name(name: Any) -> str:
    if not isinstance(name, str):
        raise Misconfigured(f"a lock's name is text, not {type(name).__name__}: {name!r:.80}")
    if not name:
        raise Misconfigured("a lock needs a name: the empty string would be shared by accident")
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise Misconfigured(
            f"the name {name!r:.80} cannot be written as UTF-8 (a lone surrogate at "
            f"position {error.start}); decode it properly, or use its repr()"
        ) from None
    if size > MAX_NAME_BYTES:
        raise Misconfigured(
            f"the name {name[:40]!r}… has {size} bytes of UTF-8; the limit is {MAX_NAME_BYTES}, "
            "everywhere, so that no store truncates it silently. Use a hash of the long part"
        )
    # Of a subclass only the text: an Enum's member is formatted as another one, "Color.RED".
    return str.__str__(name)


def checked_prefix(prefix: Any) -> str:
    """The beginning of names; empty for all of them."""
    return "" if prefix == "" else checked_name(prefix)


def checked_metadata(metadata: Any, reserved: Sequence[str] = ()) -> Mapping[str, str]:
    if metadata is None:
        return NONE
    if not isinstance(metadata, Mapping) or not all(
        isinstance(key, str) and isinstance(value, str)
        for key, value in metadata.items()  # pyright: ignore[reportUnknownVariableType]
    ):
        raise Misconfigured("metadata maps text to text, for example {'job': 'nightly import'}")
    pairs: dict[str, str] = dict(metadata)  # pyright: ignore[reportUnknownArgumentType]
    try:
        size = sum(len(key.encode()) + len(value.encode()) for key, value in pairs.items())
    except UnicodeEncodeError:
        raise Misconfigured(
            "metadata must be writable as UTF-8 (it has a lone surrogate)"
        ) from None
    if size > MAX_METADATA_BYTES:
        raise Misconfigured(
            f"metadata has {size} bytes; the limit is {MAX_METADATA_BYTES}, because it is stored "
            "with every holder and waiter. Keep a key to the details instead of the details"
        )
    for key in reserved:
        if key in pairs:
            raise Misconfigured(f"metadata cannot set {key!r}: the client says that itself")
    return pairs


def shown(info: Mapping[str, str]) -> str:
    """Who it is, for a message: "web-3:4711 (nightly import)"."""
    label = f" ({info['label']})" if info.get("label") else ""
    return f"{info.get('host', '?')}:{info.get('pid', '?')}{label}"
