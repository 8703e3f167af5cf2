"""The schema of `acceptance`: how many of the drafts of speculative decoding are right."""

from dataclasses import dataclass


@dataclass
class AcceptanceConf:
    """How many drafts of a row are accepted, the first so many of them. None: not set.

    - `law`: `rate`, `positions`, `beta`, `domains`, `pattern` or `trace` (`sim.workload.acceptance`); None: the one
      whose keys are set.
    - `rate`: each draft's chance, those before it accepted; of `beta`, the mean over requests.
    - `positions`: chances of the first draft, the second and so on: that it and all before it are accepted (as engines
      print them), or, with `conditional`, that it is where those before it are.
    - `concentration`: of `beta`, how alike requests are: a request's rate is Beta(concentration * rate,
      concentration * (1 - rate)).
    - `rates`, `shares`: of `domains`, the rate of each, and how many requests are of it (equally many if not given).
    - `pattern`: accepted drafts of a request's verifications in turn, over and over.
    - `path`: of `trace`, a csv file with the column `accepted`, and perhaps `request`.
    """

    law: str | None = None
    rate: float | None = None
    positions: list[float] | None = None
    conditional: bool | None = None
    concentration: float | None = None
    rates: list[float] | None = None
    shares: list[float] | None = None
    pattern: list[int] | None = None
    path: str | None = None
