"""The layers of a plan's model by kind, for reports."""

from collections import Counter

from sim.deployment.plan import Plan
from sim.model.spec import Layer, MoE
from sim.report.result import LayerKind


def layer_kinds(plan: Plan) -> tuple[LayerKind, ...]:
    """Equal layers together, in order of their first, named for what they have; names are distinct."""
    model = plan.model
    stages = model.stages(len(plan.stages))
    stage_of = [stage for stage, held in enumerate(stages) for _ in held]
    found: dict[Layer, dict[int, int]] = {}
    for number, layer in enumerate(layer for held in stages for layer in held):
        found.setdefault(layer, {})[number] = stage_of[number]
    seen: Counter[str] = Counter()
    kinds = []
    for layer, numbers in found.items():
        name = f"{type(layer.mixer).__name__}, {type(layer.ffn).__name__}"
        window = getattr(layer.mixer, "window", None) or getattr(layer.mixer, "chunk", None)
        name += f", window {window}" if window else ""
        seen[name] += 1
        kinds.append(
            LayerKind(
                name if seen[name] == 1 else f"{name} ({seen[name]})",
                numbers,
                float(sum(matrix.k * matrix.n for matrix in layer.linears(model.hidden, 1))),
                isinstance(layer.ffn, MoE),
            )
        )
    return tuple(kinds)
