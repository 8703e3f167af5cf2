"""`headway collect DIR`: the runs below a folder in one table, as text, as JSON and as DIR/table.csv."""

from pathlib import Path

from scripts.answer import Answer
from scripts.arguments import Arguments


def run(arguments: Arguments) -> Answer:
    """Collect and write table.csv beside the runs."""
    from sim.report.collect import collect, collect_csv, collect_text

    if len(arguments.words) != 1:
        raise ValueError(f"headway collect wants one folder, got {len(arguments.words)}.")
    folder = Path(arguments.words[0])
    rows = collect(folder)
    path = folder / "table.csv"
    path.write_text(collect_csv(rows), encoding="utf-8")
    return Answer({"status": "ok", "runs": rows, "table": str(path)}, f"{collect_text(rows)}\n\ntable: {path}")
