"""Text files, compressed or not, whose damage is told with the line it begins on."""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path


class Malformed(ValueError):
    """A file that is not what it should be; the text names the file and the line."""


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a file, numbered from 1, read as they are asked for; `Malformed` names the line of damage."""
    number = 0
    with open(path, "rb") as raw:
        compressed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        try:
            for line in gzip.GzipFile(fileobj=raw) if compressed else raw:
                number += 1
                yield number, line.decode()
        except UnicodeDecodeError:
            raise Malformed(f"{path}, line {number}: this is not text in UTF-8.") from None
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            said = "it ends too early" if isinstance(error, EOFError) else str(error)
            raise Malformed(f"{path}, line {number + 1}: the compressed data is damaged ({said}).") from None


def read_text(path: Path) -> str:
    """A whole file."""
    return "".join(line for _, line in read_lines(path))
