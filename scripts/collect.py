"""`headway collect DIR`: the runs below a folder in one table, as text, as JSON, as DIR/table.csv and as a page."""

from scripts.answer import Answer
from scripts.arguments import Arguments


def run(arguments: Arguments) -> Answer:
    """Collect and write table.csv and sweep.html beside the runs."""
    from sim.documents import user_path
    from sim.report.collect import collect, collect_csv, collect_text, table_notes
    from sim.report.page.sweep import runs_with_page, sweep_page

    if len(arguments.words) != 1:
        raise ValueError(f"headway collect wants one folder, got {len(arguments.words)}.")
    folder = user_path(arguments.words[0], "headway collect")
    rows = collect(folder)
    path = folder / "table.csv"
    path.write_text(collect_csv(rows), encoding="utf-8")
    page = folder / "sweep.html"
    page.write_text(sweep_page(rows, folder.resolve().name, runs_with_page(rows, folder)), encoding="utf-8")
    fields = {"status": "ok", "runs": rows, "table": str(path), "page": str(page)}
    fields["notes"] = table_notes(rows)
    return Answer(fields, f"{collect_text(rows)}\n\ntable: {path}\npage: {page}")
