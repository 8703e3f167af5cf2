"""Speculative decoding: what a user may ask for, and who drafts how many tokens then.

A decode row carries drafts beside its token, and the model verifies them all in one pass: of k drafts the first ones
that are right are accepted, and one token comes on top. The drafter runs after each step: over the tokens of the step
first, then once more for every further draft (EAGLE, MTP, a draft model), or once for all (Medusa); n-gram looks in the
text.
"""

from dataclasses import dataclass, field

from sim.documents import nearest
from sim.model.drafters import eagle3_heads, eagle_head, medusa_heads, mtp_modules
from sim.model.read import load_model
from sim.model.shards import Shards
from sim.model.spec import ModelSpec
from sim.model.weights import allocated, layer_bytes, weight_bytes
from sim.workload.acceptance import check_acceptance, is_set
from sim.workload.acceptance.conf import AcceptanceConf


NONE = "none"
METHODS = (NONE, "ngram", "medusa", "eagle", "eagle3", "mtp", "draft_model")
KEY = "engine.speculation"

WITH_KV = ("eagle", "eagle3", "mtp", "draft_model")
"""Drafters that have KV of their own: slots for the drafts are taken ahead."""

MOST_TOKENS = 64
MEDUSA_HEADS = 5
"""Of the published heads (arXiv 2401.10774)."""


@dataclass
class SpeculationConf:
    """Schema of `conf/speculation/*.yaml`. None: not set.

    - `method`: none, ngram, medusa, eagle, eagle3, mtp or draft_model. `num_speculative_tokens`: drafts of a row.
    - `draft_model`: of `draft_model`, a model of the catalogue or a config.json; of eagle and eagle3, the shape of the
      head where it is not that of a layer of the model.
    - `draft_vocab`: tokens that an EAGLE head of its own vocabulary knows. `medusa_heads`: how many there are.
    - `match_rate`: of ngram, the share of look-ups that find something to propose.
    - `enforce_eager`: the drafter runs without CUDA graphs.
    - `acceptance`: how many of the drafts are right. `published`: if that says nothing, by position the chances that a
      draft and all before it are.
    """

    method: str = NONE
    num_speculative_tokens: int | None = None
    draft_model: str | None = None
    draft_vocab: int | None = None
    medusa_heads: int | None = None
    match_rate: float | None = None
    enforce_eager: bool = False
    acceptance: AcceptanceConf = field(default_factory=AcceptanceConf)
    published: list[float] | None = None


@dataclass(frozen=True)
class Drafter:
    """A model that drafts: `first` over the tokens of a step, then `later` for one token of each row, `passes` times.

    `of_rows`: the first pass too runs over one token of each row. `held`: all that is kept in memory, with embedding
    and LM head (`whole`), or without but for a `head` of its own.
    """

    first: ModelSpec
    later: ModelSpec
    passes: int
    held: tuple[ModelSpec, ...]
    of_rows: bool = False
    whole: bool = False
    head: bool = False

    def weight_bytes(self, shards: Shards) -> float:
        """Bytes of one rank after loading."""
        if self.whole:
            return sum(weight_bytes(model, shards, 1)[0] for model in self.held)
        layers = sum(layer_bytes(model, shards) for model in self.held)
        own = allocated(self.first.lm_head(shards.mixer).weight_bytes) if self.head else 0.0
        return layers + own


@dataclass(frozen=True)
class Speculation:
    """Speculative decoding as it runs: up to `tokens` drafts a row by `method`, with a `drafter` if it is a model."""

    method: str
    tokens: int
    acceptance: AcceptanceConf
    drafter: Drafter | None = None
    match_rate: float = 1.0
    enforce_eager: bool = False

    @property
    def lookahead(self) -> bool:
        """Whether slots for the drafts are taken ahead, and the last cached block is computed again."""
        return self.method in WITH_KV

    @property
    def query_tokens(self) -> int:
        """Tokens of a row with all its drafts."""
        return 1 + self.tokens


def resolve_speculation(
    conf: SpeculationConf, model: ModelSpec, engine: str, drafters: list[str]
) -> Speculation | None:
    """What runs; None without drafts. `engine`: name and version; `drafters`: methods that it has.

    **Raises:** `ValueError`, one sentence, for what cannot be.
    """
    if conf.method not in METHODS:
        near = nearest(conf.method, METHODS)
        raise ValueError(f"{KEY}.method wants one of {', '.join(METHODS)}, got {conf.method!r}{near}.")
    for key, takers in (
        ("num_speculative_tokens", METHODS[1:]),
        ("draft_model", ("draft_model", "eagle", "eagle3")),
        ("draft_vocab", ("eagle", "eagle3")),
        ("medusa_heads", ("medusa",)),
        ("match_rate", ("ngram",)),
    ):
        if getattr(conf, key) is not None and conf.method not in takers:
            raise ValueError(
                f"{KEY}.{key} has no effect with {KEY}.method={conf.method}: leave it out, or choose "
                f"{', '.join(takers)}."
            )
    if conf.method == NONE:
        return None
    if conf.method not in drafters:
        known = f"wanted is one of {', '.join(drafters)}" if drafters else "no method of it is known"
        raise ValueError(f"{engine} has no {KEY}.method={conf.method}: {known}; or choose another engine.")
    tokens = conf.num_speculative_tokens
    if tokens is None or not 1 <= tokens <= MOST_TOKENS:
        raise ValueError(
            f"{KEY}.num_speculative_tokens wants the drafts of a row, from 1 to {MOST_TOKENS}, got {tokens}."
        )
    rate = 1.0 if conf.match_rate is None else conf.match_rate
    if not 0.0 <= rate <= 1.0:
        raise ValueError(f"{KEY}.match_rate wants a share from 0 to 1, got {rate:g}.")
    if conf.draft_vocab is not None and not 1 <= conf.draft_vocab <= model.vocab:
        raise ValueError(
            f"{KEY}.draft_vocab wants a number from 1 to the {model.vocab:,} tokens of {model.name}, got "
            f"{conf.draft_vocab:,}."
        )
    acceptance = conf.acceptance
    if conf.published is not None and not is_set(acceptance):
        acceptance = AcceptanceConf(positions=conf.published)
    check_acceptance(acceptance, tokens)
    drafter = _drafter(conf, model, tokens)
    return Speculation(conf.method, tokens, acceptance, drafter, rate, conf.enforce_eager)


def _drafter(conf: SpeculationConf, model: ModelSpec, tokens: int) -> Drafter | None:
    if conf.method == "medusa":
        heads = MEDUSA_HEADS if conf.medusa_heads is None else conf.medusa_heads
        if tokens > heads:
            raise ValueError(
                f"{KEY}.num_speculative_tokens={tokens} is more than the {heads} Medusa heads can draft: lower it, or "
                f"set {KEY}.medusa_heads."
            )
        spec = medusa_heads(model, heads)
        return Drafter(spec, spec, 0, (spec,), of_rows=True)
    if conf.method == "mtp":
        modules = mtp_modules(model)
        if tokens > len(modules) and tokens % len(modules):
            raise ValueError(
                f"{KEY}.num_speculative_tokens={tokens} must be a multiple of the {len(modules)} MTP modules of "
                f"{model.name}, or at most as many."
            )
        return Drafter(modules[0], modules[0], tokens - 1, modules)
    if conf.method == "draft_model":
        if conf.draft_model is None:
            raise ValueError(f"{KEY}.draft_model wants the model that drafts: a name of the catalogue, or a file.")
        small = load_model(conf.draft_model)
        if small.vocab != model.vocab:
            raise ValueError(
                f"{KEY}.draft_model={conf.draft_model} has {small.vocab:,} tokens in its vocabulary, {model.name} has "
                f"{model.vocab:,}: a draft model has the same."
            )
        return Drafter(small, small, tokens - 1, (small,), whole=True)
    if conf.method in ("eagle", "eagle3"):
        head = None if conf.draft_model is None else load_model(conf.draft_model)
        if conf.method == "eagle":
            first = later = eagle_head(model, conf.draft_vocab, head)
        else:
            first, later = eagle3_heads(model, conf.draft_vocab, head)
        return Drafter(first, later, tokens - 1, (first,), head=conf.draft_vocab is not None)
    return None
