"""What a configuration says of the way from prefill to decode instances: costs, what fails, and the words for it."""

from conf.schema import SimulateConf
from sim.event.elastic import is_elastic
from sim.event.handover import Failures, HandOverCosts
from sim.hardware.kv_transfer import connector_of, transfer_facts
from sim.scheduler.find import roles_of


NEVER_FAILS = ("transfers that fail, and leases that run out (deployment.transfer.failure_rate, lease_s)",)
NOTICED = ("the time until a failed instance is noticed: others know of it at once",)
LEAVES_WHOLE = ("transfer of layers while others are still computed (deployment.transfer.layerwise)",)


def costs_of(conf: SimulateConf, scheduler: str, layers: int) -> tuple[HandOverCosts, float]:
    """What a hand-over between instances of a scheduler costs, and the share of the links' rate that it reaches.

    `layers`: of the model, which may leave one by one.
    """
    given = conf.deployment.transfer
    facts = transfer_facts(connector_of(given.connector, scheduler)).values
    value = {key: facts[key] if getattr(given, key) is None else getattr(given, key) for key in facts}
    several = layers if given.layerwise else 0
    costs = HandOverCosts(value["hand_over_s"], value["setup_s"], value["block_s"], value["latency_s"], several)
    return costs, value["efficiency"]


def failures_of(conf: SimulateConf, lease_s: float, gone: bool) -> Failures | None:
    """What becomes of loads that fail, if any do. `lease_s`: the engine's. `gone`: prefill instances may fail."""
    given = conf.deployment.transfer
    if not given.failure_rate and given.lease_s is None and not gone:
        return None
    return Failures(
        given.failure_rate,
        given.load_failure_policy == "recompute",
        lease_s if given.lease_s is None else given.lease_s,
        given.lease_s is not None,
        conf.seed,
    )


def hand_over_rows(conf: SimulateConf, scheduler: str, failures: Failures | None) -> list[tuple[str, str, str]]:
    """Assumptions: who decodes, what a hand-over costs, what overlaps and what fails."""
    deployment, rows = conf.deployment, []
    connector = connector_of(deployment.transfer.connector, scheduler)
    facts, sources = transfer_facts(connector)
    roles = roles_of(scheduler)
    early = (roles is not None and roles.decode_first) or deployment.pairing == "at_arrival"
    when = "when the request arrives" if early else "when the prefill ends"
    rows.append(("decode instance", f"{deployment.decode_router}, chosen {when}", "deployment.decode_router, pairing"))
    rows.append(("KV connector", connector, "deployment.transfer.connector"))
    words = {
        "hand_over_s": ("hand-over to the decode side's server", "{:.2f} ms", 1e3),
        "setup_s": ("before the first byte, per transfer", "{:.2f} ms", 1e3),
        "block_s": ("before the first byte, per block", "{:.1f} us", 1e6),
        "latency_s": ("latency of a transfer", "{:.2f} ms", 1e3),
        "efficiency": ("share of the links' rate that transfers reach", "{:.2f}", 1.0),
    }
    for key, (what, form, scale) in words.items():
        given = getattr(deployment.transfer, key)
        source = f"deployment.transfer.{key}" if given is not None else sources[key]
        rows.append((what, form.format(scale * (facts[key] if given is None else given)), source))
    transfer, where = deployment.transfer, "deployment.transfer"
    if transfer.layerwise:
        rows.append(("KV of a layer", "leaves while later layers and chunks are computed", f"{where}.layerwise"))
    if failures is None:
        return rows
    gone = ", and those of a prefill instance that fails" if is_elastic(deployment) else ""
    then = "the decode instance computes the prompt" if failures.recomputes else "the request ends with an error"
    rows.append(
        (
            "transfers that fail",
            f"{100 * failures.rate:g} %{gone}; {then}",
            f"{where}.failure_rate, load_failure_policy",
        )
    )
    since = "after its prefill" if failures.expires else "after the failure of its transfer"
    source = (
        f"{where}.lease_s" if failures.expires else "the engine's lease, renewed while the decode side wants the KV"
    )
    rows.append(("a prefill instance frees KV that nobody reads", f"{failures.lease_s:g} s {since}", source))
    return rows


def not_modelled(conf: SimulateConf, scheduler: str) -> list[str]:
    """What is left out of hand-overs between instances of a scheduler."""
    roles, transfer = roles_of(scheduler), conf.deployment.transfer
    return [
        *(roles.not_modelled if roles is not None else ()),
        *(NOTICED if is_elastic(conf.deployment) else ()),
        *(() if transfer.failure_rate or transfer.lease_s else NEVER_FAILS),
        *(() if transfer.layerwise else LEAVES_WHOLE),
    ]
