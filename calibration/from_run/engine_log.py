"""The log of a server, whose engine is told by what its lines look like, never by the file's name."""

from hashlib import sha256
from pathlib import Path

from calibration.from_run import sglang_log, trtllm_log, vllm_log
from calibration.from_run.spans import EngineLog
from sim.documents import read_text


READERS = {"vllm": vllm_log, "sglang": sglang_log, "trtllm": trtllm_log}


def engine_of(path: Path) -> str | None:
    """The engine that wrote a file; None for a file that is no log known here.

    **Raises:** ValueError for a file with the lines of several engines.
    """
    text = read_text(path)
    found = [name for name, reader in READERS.items() if reader.LINE.search(text)]
    if len(found) > 1:
        raise ValueError(f"{path} holds lines of {' and '.join(found)}; give the log of one engine.")
    return found[0] if found else None


def read(path: Path, engine: str) -> EngineLog:
    """The log of `engine`.

    **Raises:** ValueError for a log of speculative decoding, and for one without KV usage.
    """
    text = read_text(path)
    return READERS[engine].read(text, path.name, sha256(text.encode()).hexdigest())
