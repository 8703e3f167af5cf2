"""`headway models`: the shipped catalogue, or one model in full."""

from typing import TYPE_CHECKING, Any

from scripts.answer import Answer
from scripts.arguments import Arguments
from scripts.table import table


if TYPE_CHECKING:
    from sim.model.spec import ModelSpec


ACTIVE = (
    "active: of models with experts, the parameters one token is multiplied with: those of the experts it goes to and\n"
    "all others but the embedding table, which is looked up. KV bytes/token: of the whole model, without windows."
)


def run(arguments: Arguments) -> Answer:
    """A table of all models, or what is known of one (a name, a HuggingFace id, or the path of a config.json)."""
    from sim.model.read import catalogue, load_conf, load_model, model_from_conf
    from sim.report.collect import natural

    if len(arguments.words) > 1:
        raise ValueError(f"headway models wants one name, got {' '.join(arguments.words)}.")
    if arguments.words:
        found = describe(load_model(arguments.words[0]))
        width = max(map(len, found))
        lines = [f"{key:<{width}}  {shown(value)}" for key, value in found.items()]
        return Answer({"status": "ok", "model": found}, "\n".join(lines))
    models = {}
    experts = set()
    for name, path in sorted(catalogue().items(), key=lambda item: natural(item[0])):
        conf = load_conf(path)
        model = model_from_conf(conf, path.parent)
        models[name] = {"hf_id": conf.hf_id, **describe(model)}
        if model.is_moe:
            experts.add(name)
    head = ("name", "HuggingFace id", "params", "active", "layers", "KV bytes/token", "max length")
    rows = [
        (
            name,
            str(model["hf_id"]),
            f"{model['params'] / 1e9:.2f} B",
            f"{model['active_params'] / 1e9:.2f} B" if name in experts else "",
            str(model["layers"]),
            f"{model['kv_bytes_per_token']:,.0f}",
            f"{model['max_model_len']:,}",
        )
        for name, model in models.items()
    ]
    return Answer({"status": "ok", "models": models}, f"{table(head, rows, left=2)}\n\n{ACTIVE}")


def describe(model: "ModelSpec") -> dict[str, Any]:
    """What a person asks of a model; bytes are of the whole model on one rank."""
    caches = [layer.mixer.cache(1, model.kv_bytes_per_element) for layer in model.layers]
    kinds: dict[str, int] = {}
    for cache in caches:
        kinds[cache.kind] = kinds.get(cache.kind, 0) + 1
    return {
        "name": model.name,
        "model_type": model.model_type,
        "params": model.params(),
        "active_params": model.active_params(),
        "layers": len(model.layers),
        "hidden": model.hidden,
        "vocab": model.vocab,
        "max_model_len": model.max_model_len,
        "quantisation": model.quantisation,
        "kv_dtype": model.kv_dtype,
        "kv_bytes_per_token": sum(cache.bytes_per_token for cache in caches),
        "state_bytes_per_request": sum(cache.state_bytes for cache in caches),
        "layer_kinds": kinds,
        "notes": list(model.notes),
        "source": model.source,
    }


def shown(value: Any) -> str:
    """A value for a person."""
    if isinstance(value, dict):
        return ", ".join(f"{count} {kind}" for kind, count in value.items())
    if isinstance(value, list):
        return "; ".join(map(str, value)) or "-"
    return f"{value:,.0f}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
