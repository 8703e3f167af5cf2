"""The schema of the Hydra group `workload`."""

from dataclasses import dataclass, field

from sim.workload.retrieval.conf import RetrievalConf
from sim.workload.sessions.conf import SessionsConf


DEFAULT_REQUESTS = 1000  # where neither num_requests nor duration_s is given: the default of vLLM's serving benchmark


@dataclass
class WorkloadConf:
    """What arrives and when: an arrival process (or a trace's times) and a length law (or a trace's lengths).

    Number of requests:
      num_requests: how many; None: all that arrive in `duration_s`, all of a trace, or 1000.
      duration_s: no request arrives later than this (s).
      rounds: with `concurrency` and without `num_requests`: requests per client, num_requests = rounds x concurrency.
    Arrivals (`arrival` names a module of `sim.workload.arrival`, or is `trace`):
      rate: requests per second (poisson, gamma, constant, ramp); inf sends all at once. rate_end: the ramp's last rate.
      burstiness: shape of the gamma-distributed gaps, their squared coefficient of variation is 1 / burstiness
        (vLLM's `--burstiness`): 1 is Poisson, below 1 burstier, above 1 more even.
      normalize_rate: scale the gaps so that the last request arrives at num_requests / rate exactly, as vLLM's
        serving benchmark does.
      concurrency: never more than this many outstanding (vLLM's `--max-concurrency`); needed by `closed_loop`.
    Lengths (`lengths` names a module of `sim.workload.length`, or is `trace`):
      input_tokens, output_tokens: the nominal lengths (fixed, uniform), the means (lognormal), the largest (zipf).
      range_ratio: `uniform`: vLLM's `--random-range-ratio` r, integers from floor(n (1 - r)) to ceil(n (1 + r));
        `uniform_below`: InferenceX's, integers from floor(n r) to n. output_range_ratio: for outputs, where it differs.
      input_cv, output_cv: coefficient of variation, standard deviation / mean (lognormal).
      zipf_exponent: s in P(n) ~ n^-s.
      profile: name of a shipped table, or the path of one (profile). lengths_path: csv of input and output lengths to
        draw from (empirical).
      prefix_tokens: a prefix that all prompts share, in front of input_tokens (vLLM's `--random-prefix-len`).
      max_input_tokens, max_total_tokens: limits on the prompt and on prompt + output; `over_limit` says what happens
        to a longer request: `drop` (drawn again where lengths are drawn), `truncate` or `error`.
    Traces:
      path, format (`auto` or a module of `sim.workload.reader`); limit: read that many requests only.
      time_scale: arrival times are multiplied by it (0.5 doubles the load; vLLM's `--timed-trace-sec-multiplier`).
      sort: sort by arrival instead of refusing an unsorted trace. shuffle: random order of a trace's lengths.
      hash_block_tokens: tokens per block hash, where the format's own figure (Mooncake 512, timed_trace 16) is wrong.
    priorities: shares of requests of priority 0, 1, 2 ... ([0.1, 0.9]: a tenth is urgent), drawn for each, for
      schedulers that look at it; lower is more urgent. Relative to their sum; empty: those of the trace, or none.
    abort_after_s: the client gives a request up that has not finished so long after it was sent (s); None: it waits to
      the end, or as long as the trace says.
    sessions: requests are rounds of sessions; then `num_requests`, `rate`, `concurrency` and `duration_s` are of
      sessions, and one ends before a round that would go beyond the limits.
    pooling: requests want an embedding or a score, no tokens: they end when their prompt is computed, and lengths of
      outputs are not read.
    retrieval: what is looked up before a prompt goes to the engine, and put in front of it.
    source: where the numbers of this workload come from; printed with the result.
    """

    name: str = "workload"
    num_requests: int | None = None
    duration_s: float | None = None
    rounds: int | None = None
    arrival: str = "poisson"
    rate: float = 10.0
    rate_end: float | None = None
    burstiness: float = 1.0
    normalize_rate: bool = False
    concurrency: int | None = None
    lengths: str = "fixed"
    input_tokens: int = 1024
    output_tokens: int = 128
    range_ratio: float = 0.0
    output_range_ratio: float | None = None
    input_cv: float = 1.0
    output_cv: float = 1.0
    zipf_exponent: float = 0.6
    profile: str | None = None
    lengths_path: str | None = None
    prefix_tokens: int = 0
    max_input_tokens: int | None = None
    max_total_tokens: int | None = None
    over_limit: str = "drop"
    path: str | None = None
    format: str = "auto"
    limit: int | None = None
    time_scale: float = 1.0
    sort: bool = False
    shuffle: bool = False
    hash_block_tokens: int | None = None
    priorities: list[float] = field(default_factory=list)
    abort_after_s: float | None = None
    pooling: bool = False
    sessions: SessionsConf = field(default_factory=SessionsConf)
    retrieval: RetrievalConf = field(default_factory=RetrievalConf)
    source: str | None = None
