"""Header blocks (RFC 7541) as far as a client needs them that allows no table of shared state.

Contract: what is written is literals and the static table only; what is read must be, too, because
the connection announces a table of size 0 (`http2.py`). So a block means the same whenever it is
read, lost frames desynchronise nothing, and blocks that come again and again are read once.
"""

from __future__ import annotations

from functools import lru_cache

__all__ = ["decode", "encode"]

STATUSES = {8: b"200", 9: b"204", 10: b"206", 11: b"304", 12: b"400", 13: b"404", 14: b"500"}
"""The entries of the static table that a client cares about: `:status`."""
STATIC = 61

# How many bits each byte has in the Huffman code of RFC 7541, which is canonical: the lengths say
# all. The 257th symbol, the end of a string, is never written.
_LENGTHS = bytes.fromhex(
    "0d171c1c1c1c1c1c1c181e1c1c1e1c1c1c1c1c1c1c1c1e1c1c1c1c1c1c1c1c1c060a0a0c0d06080b0a0a080b08060606"
    "0505050606060606060607080f060c0a0d06070707070707070707070707070707070707070707070807080d130d0e06"
    "0f05060506050606060507070606060506070605050607070707070f0b0e0d1c14161414161616171617171717171817"
    "1818161718171717171516171617171816151416161717151716161815161717151516151716171714161616171616"
    "171a1a1413161716191a1a1a1b1b1a181913151a1b1b1a1b1815151a1a1c1b1b1b1418141516151517161619191818"
    "1a171a1b1a1a1b1b1b1b1b1c1b1b1b1b1b1a"
)


def _codes() -> dict[tuple[int, int], int]:
    """(length, code) -> byte."""
    codes: dict[tuple[int, int], int] = {}
    code = last = 0
    for length, symbol in sorted((length, symbol) for symbol, length in enumerate(_LENGTHS)):
        code <<= length - last
        last = length
        codes[length, code] = symbol
        code += 1
    return codes


_CODES = _codes()


def encode(headers: list[tuple[bytes, bytes]]) -> bytes:
    """Literals that are never to be remembered, not compressed: legible in a network trace."""
    return b"".join(b"\x00" + _text(name) + _text(value) for name, value in headers)


def _text(text: bytes) -> bytes:
    return _integer(len(text), 7) + text


def _integer(value: int, bits: int) -> bytes:
    most = (1 << bits) - 1
    if value < most:
        return bytes([value])
    rest, out = value - most, bytearray([most])
    while rest >= 128:
        out.append(rest & 127 | 128)
        rest >>= 7
    out.append(rest)
    return bytes(out)


@lru_cache(maxsize=256)
def decode(block: bytes) -> dict[bytes, bytes]:
    """The headers of a block. The result is shared: do not change it. ValueError: not a block."""
    headers: dict[bytes, bytes] = {}
    at = 0
    try:
        while at < len(block):
            first = block[at]
            if first & 0x80:  # from the table, name and value
                index, at = _read_integer(block, at, 7)
                if index > STATIC:
                    raise ValueError("a header refers to a table that we did not allow")
                if index in STATUSES:
                    headers[b":status"] = STATUSES[index]
                continue
            if first & 0xE0 == 0x20:  # the size of the table, which is 0
                _, at = _read_integer(block, at, 5)
                continue
            index, at = _read_integer(block, at, 6 if first & 0x40 else 4)
            if index > STATIC:
                raise ValueError("a header refers to a table that we did not allow")
            name = b":status" if index in STATUSES else b""
            if not index:
                name, at = _read_text(block, at)
            headers[name], at = _read_text(block, at)
    except IndexError:
        raise ValueError("a header block ends in the middle") from None
    return headers


def _read_integer(block: bytes, at: int, bits: int) -> tuple[int, int]:
    most = (1 << bits) - 1
    value = block[at] & most
    at += 1
    if value < most:
        return value, at
    shift = 0
    while True:
        byte = block[at]
        at += 1
        value += (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at
        if shift > 28:
            raise ValueError("a number in a header block is too long")


def _read_text(block: bytes, at: int) -> tuple[bytes, int]:
    compressed = block[at] & 0x80
    size, at = _read_integer(block, at, 7)
    if at + size > len(block):
        raise ValueError("a header block ends in the middle")
    text = block[at : at + size]
    return (_expand(text) if compressed else text), at + size


def _expand(text: bytes) -> bytes:
    out = bytearray()
    code = length = 0
    for byte in text:
        for bit in range(7, -1, -1):
            code = code << 1 | byte >> bit & 1
            length += 1
            symbol = _CODES.get((length, code))
            if symbol is not None:
                out.append(symbol)
                code = length = 0
    if length > 7 or code != (1 << length) - 1:  # what is left must be padding: ones
        raise ValueError("a compressed header is broken")
    return bytes(out)
