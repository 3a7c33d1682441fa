"""Change the metadata in the footer of a Parquet file, which Thrift's compact protocol encodes."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Types of the compact protocol.
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 12
_INTEGERS = (4, 5, 6)

# Numbers of fields in parquet.thrift.
SCHEMA, NUM_ROWS, ROW_GROUPS, KEY_VALUES = 2, 3, 4, 5  # FileMetaData
COLUMNS, GROUP_ROWS = 1, 3  # RowGroup
COLUMN = 3  # ColumnChunk
NUM_VALUES, COMPRESSED_SIZE, PAGE_OFFSET, STATISTICS, SIZES = 5, 7, 9, 12, 16  # ColumnMetaData
REPETITIONS = 2  # SizeStatistics
NULL_COUNT = 3  # Statistics
KEY, VALUE = 1, 2  # KeyValue


@dataclass
class Field:
    """A value of a Thrift structure with its type; a structure is a dictionary of fields."""

    kind: int
    value: Any

    def at(self, *path: int) -> Field:
        """Return the field at a path of field numbers and positions in lists."""
        found = self
        for step in path:
            inner = found.value[step]
            found = inner if isinstance(inner, Field) else Field(found.value.kind, inner)
        return found


class Items(list[Field]):
    """A Thrift list; its items have the type `kind`."""

    def __init__(self, kind: int, items: list[Field]) -> None:
        super().__init__(items)
        self.kind = kind


def change_footer(path: Path, change: Callable[[Field], None]) -> None:
    """Apply `change` to the metadata (a structure) of the Parquet file, and write the file."""
    data = path.read_bytes()
    size = struct.unpack("<I", data[-8:-4])[0]
    body, footer = data[: -8 - size], data[-8 - size : -8]
    metadata = _Decoder(footer).read(_STRUCT)
    assert _encode(metadata) == footer  # nothing but the change is different
    change(metadata)
    footer = _encode(metadata)
    path.write_bytes(body + footer + struct.pack("<I", len(footer)) + b"PAR1")


class _Decoder:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def _take(self, size: int) -> bytes:
        self.at += size
        return self.data[self.at - size : self.at]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._take(1)[0]
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def read(self, kind: int) -> Field:
        if kind in _INTEGERS:
            number = self._varint()
            return Field(kind, (number >> 1) ^ -(number & 1))
        if kind == _BINARY:
            return Field(kind, self._take(self._varint()))
        if kind in (_LIST, _SET):
            return Field(kind, self._items())
        if kind == _STRUCT:
            return Field(kind, self._fields())
        size = {_TRUE: 0, _FALSE: 0, _BYTE: 1, _DOUBLE: 8}[kind]
        return Field(kind, self._take(size))

    def _items(self) -> Items:
        head = self._take(1)[0]
        number, kind = head >> 4, head & 15
        number = self._varint() if number == 15 else number
        if kind in (_TRUE, _FALSE):  # a boolean in a list is a byte
            return Items(kind, [Field(_BYTE, self._take(1)) for _ in range(number)])
        return Items(kind, [self.read(kind) for _ in range(number)])

    def _fields(self) -> dict[int, Field]:
        fields: dict[int, Field] = {}
        number = 0
        while head := self._take(1)[0]:
            number = number + (head >> 4) if head >> 4 else self.read(4).value
            fields[number] = self.read(head & 15)
        return fields


def _encode(field: Field) -> bytes:
    kind, value = field.kind, field.value
    if kind in _INTEGERS:
        return _encode_varint(value << 1 if value >= 0 else (-value << 1) - 1)
    if kind == _BINARY:
        return _encode_varint(len(value)) + bytes(value)
    if kind in (_LIST, _SET):
        long = len(value) >= 15
        head = bytes([(15 if long else len(value)) << 4 | value.kind])
        return head + _encode_varint(len(value)) * long + b"".join(map(_encode, value))
    if kind == _STRUCT:
        return _encode_fields(value)
    return bytes(value)


def _encode_fields(fields: dict[int, Field]) -> bytes:
    parts, before = [], 0
    for number, field in sorted(fields.items()):
        step, before = number - before, number
        near = 0 < step < 16
        parts.append(bytes([(step if near else 0) << 4 | field.kind]))
        parts.append(b"" if near else _encode(Field(4, number)))
        parts.append(_encode(field))
    return b"".join(parts) + b"\0"


def _encode_varint(value: int) -> bytes:
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])
