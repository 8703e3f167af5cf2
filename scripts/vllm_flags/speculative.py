"""`--speculative-config` of vLLM: the method, how many drafts, and the model that makes them."""

from typing import Any

from conf.files import by_hf_id, looks_like_file
from scripts.vllm_flags.parser import Given
from scripts.vllm_flags.translation import Translation
from sim.deployment.speculation import KEY, METHODS, NONE


UNREAD = {
    "prompt_lookup_max": f"how often n-grams match is {KEY}.match_rate",
    "prompt_lookup_min": f"how often n-grams match is {KEY}.match_rate",
    "draft_tensor_parallel_size": "the drafter has the ranks of the model",
}


def speculative_rule(given: Given, out: Translation) -> None:
    """Acceptance is not among the flags: that of `conf/speculation` holds, or the user is asked for it."""
    config: dict[str, Any] = dict(given.flags["speculative-config"])
    model, method = config.pop("model", None), config.pop("method", None) or ""
    method = method or _method_of(str(model or ""))
    method = "mtp" if method.endswith("mtp") else method
    if method not in METHODS or method == NONE:
        out.ignored.append(("--speculative-config", f"drafts by {method} are not modelled: the run is without them"))
        return
    out.set("speculation", method.replace("_", "-"))
    if "num_speculative_tokens" in config:
        out.set(f"{KEY}.num_speculative_tokens", config.pop("num_speculative_tokens"))
    if config.pop("enforce_eager", False):
        out.set(f"{KEY}.enforce_eager", True)
    if method == "draft_model" and model is not None:
        out.set(f"{KEY}.draft_model", model if looks_like_file(model) else by_hf_id(model))
    elif method in ("eagle", "eagle3") and model is not None:
        out.notes.append(f"{model} is taken to be an {method} head like a layer of the model")
    for key in config:
        out.ignored.append((f"--speculative-config.{key}", UNREAD.get(key, "not a setting known here")))


def _method_of(model: str) -> str:
    """What vLLM takes a drafter for by its name."""
    name = model.lower()
    return "eagle3" if "eagle3" in name else "eagle" if "eagle" in name else "draft_model"
