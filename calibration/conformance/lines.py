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
    if path.exists() and not path.is_file():
        raise Malformed(f"{path}: a file is wanted, this is none.")
    with open(path, "rb") as raw:
        compressed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        try:
            for line in gzip.GzipFile(fileobj=raw) if compressed else raw:
                number += 1
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise Malformed(f"{path}, line {number}: this is not text in UTF-8.") from None
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            said = "it ends too early" if isinstance(error, EOFError) else str(error)
            raise Malformed(f"{path}, line {number + 1}: the compressed data is damaged ({said}).") from None


def not_json(error: ValueError) -> str:
    """What a parser of JSON has against a text."""
    said = str(getattr(error, "msg", error))
    return "a number has too many digits" if "int_max_str_digits" in said else said


def read_text(path: Path) -> str:
    """A whole file."""
    return "".join(line for _, line in read_lines(path))
