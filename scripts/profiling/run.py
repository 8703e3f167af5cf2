"""The command line of scripts/profile.py: `operators` writes one csv per family, `memory` prints the budget's terms."""

import argparse
import csv
import importlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from scripts.profiling.grid import TOKENS
from scripts.profiling.kernels import DTYPES, Bench, Row
from scripts.profiling.memory import GIB, memory_terms
from scripts.profiling.shapes import Shapes, read_shapes
from scripts.profiling.timing import GpuClock, HostClock, Times


FAMILIES = ("gemm", "attention", "moe", "elementwise", "sequence")
NOT_LEARNED = dict.fromkeys(("elementwise", "sequence"), ", to look at: `headway calibrate` does not learn from them")
"""What is said of tables that no family of the simulator is fitted to; docs/profile.md says why."""
LABELS = ("device", "source", "engine", "engine_version", "kernel", "dtype", "model", "op", "timing")


def main(words: Sequence[str] | None = None) -> int:
    """Run one command; 2 and a sentence on standard error for what cannot be."""
    arguments = parser().parse_args(words)
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        print("profile.py: torch is not installed; nothing else is needed.", file=sys.stderr)
        return 2
    try:
        device = chosen_device(torch, arguments.on)
        shapes = shapes_of(Path(arguments.model), arguments.tp, arguments.ep)
        for note in shapes.notes:
            print(f"note: {note}", file=sys.stderr)
        if arguments.command == "memory":
            return show_memory(torch, device, shapes, arguments)
        return write_operators(torch, device, shapes, arguments)
    except ValueError as error:
        print(f"profile.py: {error}", file=sys.stderr)
        return 2


def parser() -> argparse.ArgumentParser:
    """The options, those of both commands first."""
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--model", required=True, help="a config.json, or the folder that holds one")
    shared.add_argument("--tp", type=int, default=1, help="tensor-parallel ranks, of which one is measured (1)")
    shared.add_argument("--ep", type=int, default=1, help="of these, ranks that share the experts out (1)")
    shared.add_argument("--dtype", choices=sorted(DTYPES), default="bf16", help="of weights and activations (bf16)")
    shared.add_argument("--on", choices=("auto", "cuda", "cpu"), default="auto", help="where to run (auto)")
    whole = argparse.ArgumentParser(prog="profile.py", description="Profile one rank of a model on one GPU with torch.")
    commands = whole.add_subparsers(dest="command", required=True)
    operators = commands.add_parser("operators", parents=[shared], help="time kernels, one csv per family")
    operators.add_argument("--device", required=True, help="what to call the device in the tables: h100-sxm ...")
    operators.add_argument("--out", default="profile", help="folder of the tables (profile)")
    operators.add_argument("--families", default=",".join(FAMILIES), help=f"some of {','.join(FAMILIES)}")
    operators.add_argument("--tokens", default=",".join(map(str, TOKENS)), help="tokens of a batch, with commas")
    operators.add_argument("--most-cached", type=int, default=1_000_000, help="cached tokens of a batch (1000000)")
    operators.add_argument("--skews", default="0,1", help="exponents of uneven routing, with commas (0,1)")
    operators.add_argument("--warmup", type=int, default=5, help="calls before a kernel is timed (5)")
    operators.add_argument("--repeats", type=int, default=20, help="times taken, of which the median counts (20)")
    operators.add_argument("--flush-mib", type=int, default=0, help="written before every call to empty the cache (0)")
    memory = commands.add_parser("memory", parents=[shared], help="weights, torch's peak and what is outside it")
    memory.add_argument("--tokens", type=int, default=8192, help="max_num_batched_tokens (8192)")
    memory.add_argument("--rows", type=int, default=256, help="max_num_seqs (256)")
    memory.add_argument("--utilization", type=float, default=0.9, help="gpu_memory_utilization (0.9)")
    memory.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    return whole


def chosen_device(torch: Any, wanted: str) -> str:
    """`cuda` or `cpu`; ValueError for a GPU that is not there."""
    there = bool(torch.cuda.is_available())
    if wanted == "cuda" and not there:
        raise ValueError("--on cuda wants a GPU that torch sees, there is none.")
    return wanted if wanted != "auto" else "cuda" if there else "cpu"


def shapes_of(path: Path, tp: int, ep: int) -> Shapes:
    """Shapes of one rank of the model whose config.json this is."""
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        raise ValueError(f"--model {path}: there is no such config.json.")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"--model {file}: broken JSON ({error}).") from None
    if not isinstance(config, dict):
        raise ValueError(f"--model {file}: must hold a mapping of keys.")
    name = str(config.get("_name_or_path") or (file.parent.name if file.name == "config.json" else file.stem))
    return read_shapes(config, name, tp, ep)


def write_operators(torch: Any, device: str, shapes: Shapes, arguments: argparse.Namespace) -> int:
    """Time every row and write it at once, so that a run that is stopped keeps what it has."""
    families = [name.strip() for name in arguments.families.split(",") if name.strip()]
    for name in families:
        if name not in FAMILIES:
            raise ValueError(f"--families takes some of {', '.join(FAMILIES)}, got {name!r:.40}.")
    tokens = numbers("--tokens", arguments.tokens, int, 1)
    skews = numbers("--skews", arguments.skews, float, 0)
    if min(arguments.warmup, arguments.repeats) < 1 or arguments.flush_mib < 0:
        raise ValueError("--warmup and --repeats want at least 1, --flush-mib at least 0.")
    clock: HostClock | GpuClock = (
        GpuClock(torch, arguments.warmup, arguments.repeats, arguments.flush_mib * 2**20)
        if device == "cuda"
        else HostClock(arguments.warmup, arguments.repeats)
    )
    bench = Bench(torch, device, arguments.dtype, int(not (device == "cuda" and arguments.flush_mib)))
    labels = {
        "device": arguments.device,
        "source": "scripts/profile.py",
        "engine": "torch",
        "engine_version": str(torch.__version__),
        "dtype": arguments.dtype,
        "model": shapes.name,
    }
    folder = Path(arguments.out)
    folder.mkdir(parents=True, exist_ok=True)
    full = getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)
    with torch.inference_mode():
        for family in families:
            count, path = 0, folder / f"{family}.csv"
            with path.open("w", encoding="utf-8", newline="") as stream:
                try:
                    for row in rows_of(bench, family, shapes, tokens, skews, arguments.most_cached):
                        count += write_row(stream, row, labels, clock.measure(row.call), first=count == 0)
                except full:
                    print(f"{family}: out of memory after {count} rows, the rest is left out", file=sys.stderr)
            if not count:
                path.unlink()
            print(f"{path if count else family}: {count} rows{NOT_LEARNED.get(family, '')}", file=sys.stderr)
    return 0


def rows_of(
    bench: Bench, family: str, shapes: Shapes, tokens: Sequence[int], skews: Sequence[float], most_cached: int
) -> Iterator[Row]:
    """The rows of one family; none where the model has no such part."""
    if family == "gemm":
        yield from bench.products(shapes, tokens)
    elif family == "attention" and shapes.heads is not None:
        yield from bench.attention(shapes.heads, max(tokens), most_cached)
    elif family == "moe" and shapes.experts is not None:
        yield from bench.experts(shapes.experts, tokens, skews)
    elif family == "elementwise":
        yield from bench.elementwise(shapes, tokens)
    elif family == "sequence":
        yield from bench.sequences(shapes, [rows for rows in tokens if rows <= 1024])


def write_row(stream: TextIO, row: Row, labels: dict[str, str], times: Times, first: bool) -> int:
    """A line for the kernel alone, if it was recorded, and one with its launch; before the first, the header."""
    names = list(row.columns)
    out = csv.writer(stream, lineterminator="\n")
    if first:
        out.writerow((*LABELS, *names, "time_s"))
    known = labels | {"kernel": row.kernel, "op": row.op}
    cells = ["" if row.columns[name] is None else f"{row.columns[name]:.10g}" for name in names]
    written = 0
    for timing, seconds in (("kernel", times.kernel_s), ("launch", times.launch_s)):
        if seconds is not None:
            out.writerow((*({**known, "timing": timing}[name] for name in LABELS), *cells, f"{seconds:.9g}"))
            written += 1
    stream.flush()
    return written


def show_memory(torch: Any, device: str, shapes: Shapes, arguments: argparse.Namespace) -> int:
    """The terms of one rank, in the words of an engine's log."""
    if arguments.tokens < 1 or arguments.rows < 1 or not 0 < arguments.utilization <= 1:
        raise ValueError("--tokens and --rows want at least 1, --utilization a share above 0 and at most 1.")
    found = memory_terms(
        torch, device, arguments.dtype, shapes, arguments.tokens, arguments.rows, arguments.utilization
    )
    if arguments.json:
        print(json.dumps({"model": shapes.name, "tp": arguments.tp, "ep": arguments.ep, "on": device, **found}))
        return 0
    print(f"{shapes.name}, one rank of {arguments.tp}, {arguments.tokens} tokens and {arguments.rows} sequences")
    for key, words in (
        ("total_bytes", "total memory"),
        ("weights_bytes", "weights"),
        ("torch_peak_bytes", "peak activation"),
        ("non_torch_bytes", "non-torch"),
        ("available_bytes", f"for the KV cache at {arguments.utilization:g}"),
    ):
        value = found[key]
        print(f"  {words:<28}{'only a GPU tells' if value is None else f'{value / GIB:8.2f} GiB'}")
    return 0


def numbers(option: str, text: str, kind: type, least: float) -> list[Any]:
    """Numbers with commas between them; ValueError naming the option."""
    try:
        found = [kind(word) for word in text.split(",")]
    except ValueError:
        raise ValueError(f"{option} wants numbers with commas between them, got {text!r:.60}.") from None
    if min(found) < least:
        raise ValueError(f"{option} wants numbers of at least {least:g}, got {min(found):g}.")
    return found
