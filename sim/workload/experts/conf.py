"""The schema of `experts`: which of a model's experts the tokens choose."""

from dataclasses import dataclass


@dataclass
class ExpertsConf:
    """How popular the experts of each layer are, and how exactly steps follow it. None: the law's own default.

    - `law`: `even`, every step as its mean; or tokens choose by `uniform`, `zipf`, `power`, `dirichlet`, `domains`,
      `trace` popularity (`sim.workload.experts`).
    - `exponent`: of zipf, power and domains. `bound`: of power, the most popular expert over the least.
      `concentration`: of dirichlet (large: all alike). `domains`: kinds of texts, each with its own popular experts.
    - `path`: of trace, a csv file with `layer,expert,tokens`, and perhaps `domain`.
    - `run_tokens`: of several domains, so many tokens in a row are of one (1: each of a decode batch is of another).
    - `fluctuation`: coefficient of variation of an expert's popularity over time; `fluctuation_tokens`: how many tokens
      of a replica see the same.
    - `detail`: `collapsed`, one draw of the whole step; `layers`, every layer and rank of every step.
    """

    law: str = "even"
    exponent: float | None = None
    bound: float | None = None
    concentration: float | None = None
    domains: int | None = None
    path: str | None = None
    run_tokens: int | None = None
    fluctuation: float = 0.0
    fluctuation_tokens: int | None = None
    detail: str = "collapsed"
