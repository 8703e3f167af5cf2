"""`headway memory`: the KV budget of a deployment, term by term, whether it fits or not."""

from dataclasses import replace
from typing import Any

from scripts.answer import Answer
from scripts.arguments import Arguments
from scripts.configure import request
from scripts.simulate import show_configuration


def run(arguments: Arguments) -> Answer:
    """The sum as text or JSON; exit code 2 if the engine would not start."""
    asked = request(arguments)
    if arguments.value("--cfg") is not None:
        return show_configuration(asked)
    from sim.deployment.pools import pools_of
    from sim.event.asked import KVSide, check_asked, check_kv
    from sim.memory.describe import describe_engine
    from sim.memory.text import to_json, to_text

    conf = asked.config()
    specs = pools_of(conf.deployment, conf.hardware, conf.engine)
    check_asked(conf.deployment, specs, conf.seed)
    sides = []
    for spec in specs:
        try:
            engine, budget = describe_engine(conf.model, spec.device, spec.engine, spec.deployment)
        except ValueError as error:
            raise ValueError(spec.refusal(error)) from error
        sides.append(KVSide(spec, engine, replace(budget, verdict=spec.own_keys(budget.verdict))))
    check_kv(sides, conf.deployment.transfer)
    budgets = [side.budget for side in sides]
    fits = all(budget.fits for budget in budgets)
    fields: dict[str, Any] = {"status": "ok" if fits else "infeasible"}
    if conf.deployment.pools:
        fields["pools"] = [
            {"name": spec.name, "role": spec.role, **to_json(budget)}
            for spec, budget in zip(specs, budgets, strict=True)
        ]
        heads = [f"pool {spec.name} ({spec.role})" for spec in specs]
        text = "\n\n".join(f"{head}\n{to_text(budget)}" for head, budget in zip(heads, budgets, strict=True))
    else:
        fields |= to_json(budgets[0])
        text = to_text(budgets[0])
    apart = [spec.deployment.ffn.devices for spec in specs if spec.deployment.ffn.devices]
    if apart:
        fields["note"] = f"attention devices; `headway plan` has the sum of the {apart[0]} FFN devices"
        text = f"{text}\n\nThis is the sum of {fields['note']}."
    fields["ignored_flags"] = [{"flag": flag, "reason": why} for flag, why in asked.ignored]
    return Answer(fields, "\n".join([text, *asked.remarks()]), 0 if fits else 2)
