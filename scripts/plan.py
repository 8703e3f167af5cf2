"""`headway plan`: a deployment as a tree: pools, replicas, stages, what a rank holds, whom it talks to, its memory."""

from scripts.answer import Answer
from scripts.arguments import Arguments
from scripts.configure import request
from scripts.simulate import show_configuration


def run(arguments: Arguments) -> Answer:
    """The tree as text or JSON; exit code 2 if a pool would not start."""
    asked = request(arguments)
    if arguments.value("--cfg") is not None:
        return show_configuration(asked)
    from sim.api.describe import describe_plan
    from sim.memory.plan_tree import tree_fields, tree_lines

    conf = asked.config()
    found = describe_plan(conf)
    head = f"{conf.model.name} on {found.gpus} device{'s' if found.gpus > 1 else ''}"
    fields = {
        "status": "ok" if found.fits else "infeasible",
        "model": conf.model.name,
        "gpus": found.gpus,
        "plan": [tree_fields(branch) for branch in found.branches],
        "ignored_flags": [{"flag": flag, "reason": why} for flag, why in asked.ignored],
    }
    return Answer(fields, "\n".join([head, *tree_lines(found.branches), *asked.remarks()]), 0 if found.fits else 2)
