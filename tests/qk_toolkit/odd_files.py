"""Pipes, sockets and devices in place of a regular file, and Parquet files with wrong footers."""

import base64
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

Maker = Callable[[Path], object]


def make_socket(path):
    """A socket file. Its address must be short, so it is bound from inside the folder."""
    here = Path.cwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(here)


def _link_to_fifo(path):
    os.mkfifo(path.with_name(".pipe"))
    path.symlink_to(".pipe")


NOT_REGULAR = {
    "FIFO": os.mkfifo,
    "socket": make_socket,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "folder": Path.mkdir,
    "link to a FIFO": _link_to_fifo,
}


def replace_by(make, path):
    """Replace a file by the result of `make`."""
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    make(path)


def _varint(number):
    """A number as in a Parquet footer: zigzag, seven bits per byte."""
    number, out = number << 1, bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def claim(path, number, instead_of):
    """Change every occurrence of a number in the footer of a Parquet file."""
    data = path.read_bytes()
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    footer = data[start:-8]
    assert _varint(instead_of) in footer
    footer = footer.replace(_varint(instead_of), _varint(number))
    path.write_bytes(data[:start] + footer + len(footer).to_bytes(4, "little") + b"PAR1")


def claim_type(path, column, kind):
    """Change the Arrow type of a column in the footer of a Parquet file."""
    table = pq.read_table(path)
    index = table.schema.get_field_index(column)
    schema = table.schema.set(index, pa.field(column, kind)).serialize().to_pybytes()
    with pq.ParquetWriter(path, table.schema, store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({"ARROW:schema": base64.b64encode(schema).decode()})


def huge(path, size=5 << 30, footer=0xF0FFFFFF):
    """A sparse file of this size with this footer length."""
    path.unlink(missing_ok=True)
    with path.open("wb") as file:
        file.write(b"PAR1")
        file.seek(size - 8)
        file.write(footer.to_bytes(4, "little") + b"PAR1")
