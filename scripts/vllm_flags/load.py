"""A load generator's command line: `vllm bench serve`, with its own defaults."""

import re

from conf.mistakes import did_you_mean, nearest
from scripts.vllm_flags.parser import Given, parse_flags, words_of
from scripts.vllm_flags.serve import BENCH, SERVE, model_rule, program_of
from scripts.vllm_flags.translation import Rule, Translation, apply, table
from sim.documents import user_path


DEFAULTS = {"num-prompts": 1000, "request-rate": float("inf"), "dataset-name": "random"}
DATASETS = ("random", "sharegpt", "sonnet", "burstgpt", "timed_trace")


def bench(command: str, alone: bool = False) -> Translation:
    """Translate a load generator's command line, with its defaults; the leading `vllm bench serve` may be left out.

    `alone`: without a server's command, so the model is the one named here.
    """
    words = words_of(command)
    if words and not words[0].startswith("-"):
        wrong = f"--bench wants the flags of `vllm bench serve`, --request-rate 10 ..., got {words[0]!r}"
        try:
            program, words = program_of(words)
        except ValueError:
            raise ValueError(f"{wrong}.") from None
        if program != BENCH:
            raise ValueError(f"{wrong}; give the server's command as --serve.")
    names, shorts = table(BENCH)
    given = parse_flags(words, names, shorts, BENCH, {SERVE: table(SERVE)[0]})
    if given.words:
        raise ValueError(f"{BENCH}: {given.words[0]!r} belongs to no flag.")
    for name, default in DEFAULTS.items():
        given.flags.setdefault(name, default)
    out = Translation()
    apply(given, BENCH, RULES | ({"model": model_rule} if alone else {}), out)
    return out


def request_rate_rule(given: Given, out: Translation) -> None:
    """Gamma gaps of the given burstiness, scaled so that the last arrives at num_prompts / rate, as vLLM does."""
    if given.flags["dataset-name"] == "timed_trace" or "ramp-up-strategy" in given.flags:
        return
    rate = given.flags["request-rate"]
    out.set("workload.arrival", "gamma" if given.flags.get("burstiness", 1.0) != 1.0 else "poisson")
    out.set("workload.rate", rate)
    if rate != float("inf"):
        out.set("workload.normalize_rate", True)


def burstiness_rule(given: Given, out: Translation) -> None:
    """Shape of the gaps."""
    out.set("workload.burstiness", given.flags["burstiness"])


def ramp_rule(given: Given, out: Translation) -> None:
    """A rate that rises linearly."""
    strategy = given.flags.get("ramp-up-strategy")
    if strategy != "linear":
        raise ValueError(f"{BENCH}: --ramp-up-strategy wants linear, the only ramp modelled, got {strategy}.")
    missing = [name for name in ("ramp-up-start-rps", "ramp-up-end-rps") if name not in given.flags]
    if missing:
        raise ValueError(f"{BENCH}: --ramp-up-strategy wants --{missing[0]} too.")
    out.set("workload.arrival", "ramp")
    out.set("workload.rate", given.flags["ramp-up-start-rps"])
    out.set("workload.rate_end", given.flags["ramp-up-end-rps"])


def dataset_rule(given: Given, out: Translation) -> None:
    """Where prompts and lengths come from."""
    flags = given.flags
    name, path = flags["dataset-name"], flags.get("dataset-path")
    if name not in DATASETS:
        raise ValueError(
            f"{BENCH}: --dataset-name {name} is not available here{did_you_mean(nearest(name, DATASETS))} "
            f"Known are {', '.join(DATASETS)}; any trace of lengths works as workload=PATH."
        )
    if name in ("burstgpt", "timed_trace") or (
        name == "sharegpt" and path and user_path(path, "--dataset-path").exists()
    ):
        if not path:
            raise ValueError(f"{BENCH}: --dataset-name {name} wants --dataset-path.")
        out.set("workload", path)
        out.set("workload.format", name)
    elif name == "sharegpt":
        out.set("workload", "sharegpt")
        why = f", {path} not being here" if path else ""
        out.notes.append(
            f"ShareGPT lengths are drawn from the shipped profile{why}: the distribution, not the very requests"
        )
        if "sharegpt-output-len" in flags:
            out.ignored.append(
                (
                    "--sharegpt-output-len",
                    "output lengths come from the profile; use --dataset-name random for fixed ones",
                )
            )
    else:
        sonnet = name == "sonnet"
        prefix = flags.get(f"{name}-prefix-len", 200 if sonnet else 0)
        prompt = flags.get(f"{name}-input-len", 550 if sonnet else 1024) - (prefix if sonnet else 0)
        out.set("workload", "random")
        if name != "random":
            out.set("workload.name", name)
        out.set("workload.lengths", "uniform" if flags.get("random-range-ratio") and not sonnet else "fixed")
        out.set("workload.input_tokens", prompt)
        out.set("workload.output_tokens", flags.get(f"{name}-output-len", 150 if sonnet else 128))
        out.set("workload.prefix_tokens", prefix)
        if flags.get("random-range-ratio") and not sonnet:
            out.set("workload.range_ratio", flags["random-range-ratio"])


def goodput_rule(given: Given, out: Translation) -> None:
    """`ttft:500 tpot:50`, in ms."""
    for item in given.flags["goodput"]:
        metric, _, bound = str(item).partition(":")
        if metric not in ("ttft", "tpot", "itl", "e2el") or not re.fullmatch(r"\d+(\.\d*)?", bound):
            raise ValueError(f"{BENCH}: --goodput wants ttft, tpot, itl or e2el as METRIC:MILLISECONDS, got {item!r}.")
        out.set(f"slo.{metric}_ms", float(bound))


def percentiles_rule(given: Given, out: Translation) -> None:
    """`25,50,75`."""
    text = given.flags["metric-percentiles"]
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"\d+(\.\d*)?", part) and float(part) <= 100 for part in parts):
        raise ValueError(f"{BENCH}: --metric-percentiles wants numbers from 0 to 100, 25,50,99, got {text!r}.")
    out.set("percentiles", [float(part) for part in parts])


RULES: dict[str, Rule] = {
    "model": lambda given, out: None,
    "request_rate": request_rate_rule,
    "burstiness": burstiness_rule,
    "ramp": ramp_rule,
    "dataset": dataset_rule,
    "goodput": goodput_rule,
    "percentiles": percentiles_rule,
}
