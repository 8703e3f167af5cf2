"""The responses of a table's rows: simulated in a pool, kept in a file that says what they are of."""

import importlib.metadata
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from calibration.serving.table import Row
from scripts.progress import progress
from scripts.serving_pool import DIED, each
from sim.documents import read_mapping


if TYPE_CHECKING:
    from calibration.serving.responses import Response

SCHEMA = "headway.responses/1"
OTHERWISE = "remove the file, or give another"

type Found = dict[int, Response | str]
"""By line: the response, or why there is none."""


def responses_of(rows: list[Row], predictor: str, jobs: int, shown: bool, kept: Path | None, sha256: str) -> Found:
    """`Found` of all rows: of the file `kept` where there is one, else simulated, and then written to it.

    **Raises:** ValueError for a file of another table, predictor, version or choice of rows, or one that is damaged.
    """
    head = {
        "schema": SCHEMA,
        "headway": importlib.metadata.version("headway"),
        "sha256": sha256,
        "predictor": predictor,
    }
    if kept is not None and kept.exists():
        return _read(kept, head, rows)
    found = _simulated(rows, predictor, jobs, shown)
    if kept is not None:
        plain = {line: one if isinstance(one, str) else asdict(one) for line, one in found.items()}
        kept.write_text(json.dumps(head | {"rows": plain}) + "\n", encoding="utf-8")
    return found


def _read(path: Path, head: Mapping[str, str], rows: list[Row]) -> Found:
    from calibration.serving.responses import Response

    content = read_mapping(path)
    for name, wanted in head.items():
        if content.get(name) != wanted:
            raise ValueError(f"responses={path} has {name} {content.get(name)!r:.80}, wanted {wanted!r}; {OTHERWISE}.")
    names = {field.name for field in fields(Response)}
    stored = content.get("rows")
    lines = {str(row.line) for row in rows}
    if not isinstance(stored, dict) or not lines <= set(stored):
        raise ValueError(f"responses={path} lacks rows that until= and loads= choose; {OTHERWISE}.")
    found: dict[int, Response | str] = {}
    for line in lines:
        one = stored[line]
        if isinstance(one, dict) and set(one) == names:
            found[int(line)] = Response(**one)
        elif isinstance(one, str):
            found[int(line)] = one
        else:
            raise ValueError(f"responses={path} is damaged at row {line}; {OTHERWISE}.")
    return found


def _simulated(rows: list[Row], predictor: str, jobs: int, shown: bool) -> Found:
    found: dict[int, Response | str] = {}
    work: Callable[[Row], Response | str] = partial(respond_row, predictor=predictor)
    with progress(len(rows), "simulating", shown, tenths=True) as tell:
        for row, one in each(work, rows, jobs, DIED):
            found[row.line] = one
            tell(len(found))
    return found


def respond_row(row: Row, predictor: str) -> "Response | str":
    """The response of one row, or why it has none; in a process of a pool."""
    from calibration.serving.responses import respond
    from calibration.serving.setup import setup_of
    from conf.files import by_hf_id
    from scripts.compiled import keep_compiled
    from scripts.serving_pool import configuration
    from sim import api

    keep_compiled()
    try:
        setup = setup_of(row, by_hf_id)
        overrides = (*setup.overrides, f"predictor={predictor}")
        job = api.build(configuration(overrides, ()))
        statistic = row.statistic or "mean"
        return respond(api.run(job), job.cost, job.plan, estimated=job.estimated, statistic=statistic)
    except (ValueError, api.Infeasible) as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
