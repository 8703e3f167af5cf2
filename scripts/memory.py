"""`headway memory`: the KV budget of a deployment, term by term, whether it fits or not."""

from scripts.answer import Answer
from scripts.arguments import Arguments
from scripts.configure import request
from scripts.simulate import show_configuration


def run(arguments: Arguments) -> Answer:
    """The sum as text or JSON; exit code 2 if the engine would not start."""
    asked = request(arguments)
    if arguments.value("--cfg") is not None:
        return show_configuration(asked)
    from sim.memory.describe import describe
    from sim.memory.text import to_json, to_text

    conf = asked.config()
    budget = describe(conf.model, conf.hardware, conf.engine, conf.deployment)
    fields = {"status": "ok" if budget.fits else "infeasible", **to_json(budget)}
    fields["ignored_flags"] = [{"flag": flag, "reason": why} for flag, why in asked.ignored]
    return Answer(fields, "\n".join([to_text(budget), *asked.remarks()]), 0 if budget.fits else 2)
