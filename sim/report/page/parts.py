"""Numbers and tables of a page."""

from collections.abc import Collection, Iterable, Sequence

import numpy as np


def quantity(value: float | None, digits: int = 3) -> str:
    """A number for people: `digits` significant digits at least, thousands with commas, a dash for None."""
    if value is None:
        return "–"
    if value == 0:
        return "0"
    whole = int(np.floor(np.log10(abs(value)))) + 1
    # What six decimals cannot show is written with an exponent.
    return f"{value:.{digits - 1}e}" if whole < -5 else f"{value:,.{max(0, digits - whole)}f}"


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "", words: Collection[int] = frozenset()
) -> str:
    """An HTML table of cells that are HTML already; the first column heads the row, those in `words` are text."""
    marks = [' class="word"' if column in words else "" for column in range(len(head))]
    body = "".join(
        "<tr>"
        + f'<th scope="row">{cells[0]}</th>'
        + "".join(f"<td{mark}>{cell}</td>" for cell, mark in zip(cells[1:], marks[1:], strict=True))
        + "</tr>"
        for cells in map(tuple, rows)
    )
    heads = "".join(f'<th scope="col"{mark}>{cell}</th>' for cell, mark in zip(head, marks, strict=True))
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'
    )
