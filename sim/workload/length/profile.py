"""Lengths from a small table: inputs by bins, and each bin's own quantiles of the output."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float

from sim.documents import read_text, user_path
from sim.workload.conf import WorkloadConf
from sim.workload.length import LengthLaw


READS = ("profile",)
FOLDER = Path(__file__).resolve().parents[1] / "profiles"


@dataclass(frozen=True)
class Profile:
    """A joint distribution of input and output lengths.

    Bin b has probability `weight[b]` and inputs uniform from `input_low[b]` to `input_high[b]`; its outputs have the
    quantiles `output[b]` at `levels`, with straight lines between. `facts` are the header's lines.
    """

    weight: Float[np.ndarray, " bin"]
    input_low: Float[np.ndarray, " bin"]
    input_high: Float[np.ndarray, " bin"]
    levels: Float[np.ndarray, " level"]
    output: Float[np.ndarray, "bin level"]
    facts: dict[str, str]

    def lengths(
        self, u: Float[np.ndarray, " row"], v: Float[np.ndarray, " row"]
    ) -> tuple[Float[np.ndarray, " row"], Float[np.ndarray, " row"]]:
        """Input and output lengths, rounded to whole tokens, at the probabilities u (input) and v (output)."""
        ends = np.cumsum(self.weight)
        place = u * ends[-1]
        at = np.minimum(np.searchsorted(ends, place, side="right"), len(ends) - 1)
        within = (place - (ends[at] - self.weight[at])) / self.weight[at]
        prompt = self.input_low[at] + within * (self.input_high[at] - self.input_low[at])
        left = np.clip(np.searchsorted(self.levels, v, side="right") - 1, 0, len(self.levels) - 2)
        share = (v - self.levels[left]) / (self.levels[left + 1] - self.levels[left])
        output = self.output[at, left] + share * (self.output[at, left + 1] - self.output[at, left])
        return np.floor(prompt + 0.5), np.floor(output + 0.5)


def names() -> list[str]:
    """The profiles that are shipped."""
    return sorted(path.stem for path in FOLDER.glob("*.csv"))


def load(name: str) -> Profile:
    """The shipped profile `name`, or the table in the file `name` if it ends in .csv."""
    path = user_path(name, "workload.profile") if name.endswith(".csv") else FOLDER / f"{name}.csv"
    if not path.is_file():
        raise ValueError(
            f"workload.profile wants one of {', '.join(names())} or the path of a .csv table, got {name!r}"
        )
    return _load(path)


@cache
def _load(path: Path) -> Profile:
    facts: dict[str, str] = {}
    rows: list[list[float]] = []
    columns: list[str] = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if line.startswith("#"):
            key, _, value = line[1:].partition(":")
            facts[key.strip()] = value.strip()
        elif not columns:
            columns = line.split(",")
            if columns[:3] != ["weight", "input_low", "input_high"] or len(columns) < 5:
                raise ValueError(
                    f"{path}, line {number}: wanted weight,input_low,input_high,output_0,..., got {line!r}"
                )
        else:
            try:
                row = [float(cell) for cell in line.split(",")]
            except ValueError:
                row = []
            if len(row) != len(columns) or not all(np.isfinite(row)):
                raise ValueError(f"{path}, line {number}: wanted {len(columns)} finite numbers, got {line!r}")
            rows.append(row)
    if not rows:
        raise ValueError(f"{path}: wanted a length profile with at least one bin, got none")
    numbers = np.array(rows)
    try:
        levels = np.array([float(column.removeprefix("output_")) for column in columns[3:]])
    except ValueError:
        raise ValueError(
            f"{path}: wanted columns output_<level> with levels from 0 to 1, got {','.join(columns)}"
        ) from None
    if levels[0] != 0 or levels[-1] != 1 or np.any(np.diff(levels) <= 0):
        raise ValueError(f"{path}: wanted output levels that rise from 0 to 1, got {','.join(columns[3:])}")
    if np.any(numbers[:, 0] <= 0) or np.any(np.diff(numbers[:, 1:3]) < 0) or np.any(np.diff(numbers[:, 3:]) < 0):
        raise ValueError(f"{path}: wanted positive weights and lengths that do not fall along a row, got other ones")
    return Profile(numbers[:, 0], numbers[:, 1], numbers[:, 2], levels, numbers[:, 3:], facts)


def law(conf: WorkloadConf) -> LengthLaw:
    """The law of `conf.profile`."""
    if conf.profile is None:
        raise ValueError(f"workload.lengths=profile wants workload.profile, one of {', '.join(names())}, got none")
    profile = load(conf.profile)

    def draw(u: Float[np.ndarray, "row 2"]) -> tuple[Float[np.ndarray, "row 2"], Bool[np.ndarray, " row"]]:
        return np.stack(profile.lengths(u[:, 0], u[:, 1]), axis=1), np.ones(len(u), dtype=bool)

    facts = "; ".join(
        f"{key} {value}" for key, value in profile.facts.items() if key in ("source", "licence", "rows", "note")
    )
    return LengthLaw(2, draw, (f"lengths: profile {conf.profile} ({facts})",))
