"""Makes the length profiles that the project ships (`sim/workload/profiles/*.csv`) from the measured length sets.

    python -m calibration.length_profiles DATA [NAME...]

DATA is the folder that holds `traces/` and `llmservingsim/`. A profile is a small table: requests are sorted by input
length and cut into bins of given weight; each bin has its input range and the quantiles of its own outputs, so that the
dependence of output on input survives.
"""

import argparse
import ast
import csv
import io
import json
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.optimize import nnls  # type: ignore[import-untyped]


Pairs = Int[np.ndarray, "request 2"]
Grid = tuple[float, ...]

EDGES: Grid = (  # narrow around the median, p90 and p99, where a profile is judged
    *(0, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.495, 0.505, 0.55, 0.6, 0.65, 0.7),
    *(0.75, 0.8, 0.84, 0.87, 0.895, 0.905, 0.93, 0.95, 0.97, 0.98, 0.987, 0.993, 1),
)
LEVELS: Grid = (
    *(
        0,
        0.01,
        0.03,
        0.06,
        0.1,
        0.15,
        0.2,
        0.25,
        0.3,
        0.35,
        0.4,
        0.45,
        0.5,
        0.55,
        0.6,
        0.65,
        0.7,
        0.75,
        0.8,
        0.84,
        0.87,
    ),
    *(0.9, 0.92, 0.94, 0.955, 0.965, 0.975, 0.982, 0.988, 0.992, 0.996, 1),
)
CAPPED_EDGES: Grid = (0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.9875, 0.9925, 1)
CAPPED_LEVELS: Grid = (*LEVELS[:-6], 0.97, *(round(0.977 + 0.001 * i, 3) for i in range(23)), 1)
COARSE_LEVELS: Grid = (0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1)


@dataclass(frozen=True)
class Recipe:
    """Where one profile comes from: how to load its pairs, its table's grid, and the words that go into its header."""

    load: Callable[[Path], Pairs]
    source: str
    licence: str
    note: str = "all rows with at least one input and one output token"
    edges: Grid = EDGES
    levels: Grid = LEVELS


def lengths_csv(name: str, columns: tuple[int, int] = (0, 1)) -> Callable[[Path], Pairs]:
    """Two integer columns of `traces/<name>`."""

    def load(data: Path) -> Pairs:
        with open(data / "traces" / name, newline="", encoding="utf-8") as file:
            rows = list(csv.reader(file))[1:]
        return np.array([[int(row[columns[0]]), int(row[columns[1]])] for row in rows])

    return load


def benchmark_filter(pairs: Pairs) -> Bool[np.ndarray, " request"]:
    """What vLLM's serving benchmark keeps of ShareGPT: prompt and output >= 4, prompt <= 1024, total <= 2048 tokens."""
    return (pairs >= 4).all(axis=1) & (pairs[:, 0] <= 1024) & (pairs.sum(axis=1) <= 2048)


def sharegpt(data: Path) -> Pairs:
    """The two ShareGPT samples of LLMServingSim (100 and 300 conversations, Llama tokenizer), filtered."""
    rows: list[list[int]] = []
    for count in (100, 300):
        path = data / "llmservingsim" / "ispass26" / "dataset" / f"sharegpt_req{count}_rate10_llama.jsonl"
        for line in path.read_text(encoding="utf-8").splitlines():
            item = json.loads(line)
            rows.append([item["input_toks"], item["output_toks"]])
    pairs = np.array(rows)
    return pairs[benchmark_filter(pairs)]


def sharegpt_vicuna(data: Path) -> Pairs:
    """The ShareGPT-Vicuna length set, filtered."""
    pairs = lengths_csv("lens_sharegpt-vicuna.csv")(data)
    return pairs[benchmark_filter(pairs)]


def mooncake(data: Path) -> Pairs:
    """Input and output lengths of Mooncake's conversation trace."""
    import gzip

    with gzip.open(data / "traces" / "mooncake_conversation_trace.jsonl.gz", "rt", encoding="utf-8") as file:
        items = [json.loads(line) for line in file]
    return np.array([[item["input_length"], item["output_length"]] for item in items])


def servegen_reasoning(data: Path) -> Pairs:
    """200,000 pairs from ServeGen's DeepSeek-R1 clients.

    A client's histograms hold for 6 hours; each (client, window) weighs as many requests as its rate table says.
    Within one, input and output are paired independently (the histograms are marginal), by a fixed permutation.
    """
    rates: dict[str, np.ndarray] = {}
    histograms: dict[str, dict[str, dict[str, str]]] = {}
    with tarfile.open(data / "traces" / "servegen_subset.tar.xz") as archive:
        for member in archive:
            if "reason/deepseek-r1/" not in member.name or not member.isfile():
                continue
            file = archive.extractfile(member)
            assert file is not None
            text = file.read().decode()
            client, kind = Path(member.name).stem.rsplit("-", 1)
            if kind == "trace":
                rates[client] = np.array([[float(row[0]), float(row[1])] for row in csv.reader(io.StringIO(text))])
            else:
                histograms[client] = json.loads(text)
    rng = np.random.Generator(np.random.PCG64(0))
    windows = []
    for client in sorted(histograms):
        start_s, rate = rates[client].T
        for begin, window in histograms[client].items():
            inputs, outputs = (ast.literal_eval(window[key]) for key in ("input_tokens", "output_tokens"))
            inside = (start_s % 86400 >= float(begin)) & (start_s % 86400 < float(begin) + 21600)
            weight = float(rate[inside].sum())
            if inputs and outputs and weight > 0:
                windows.append((weight, inputs, outputs))
    total = sum(weight for weight, _, _ in windows)
    parts = []
    for weight, inputs, outputs in windows:
        count = round(200_000 * weight / total)
        # Equally spaced quantiles, so that the small table does not inherit sampling noise.
        parts.append(np.stack([_spread(inputs, count), rng.permutation(_spread(outputs, count))], axis=1))
    return np.concatenate(parts)


def _spread(histogram: dict[int, float], count: int) -> Int[np.ndarray, " request"]:
    values = np.array(sorted(histogram), dtype=np.int64)
    cumulative = np.cumsum([histogram[value] for value in values])
    at = (np.arange(count) + 0.5) / max(count, 1) * cumulative[-1]
    return values[np.minimum(np.searchsorted(cumulative, at), len(values) - 1)]


MLPERF = "openshift-psap/performance-dashboard, mlperf-data/summaries"
AZURE = "Azure/AzurePublicDataset, AzureLLMInferenceTrace"
FILTER = "vLLM's serving-benchmark filter: prompt and output >= 4, prompt <= 1024, prompt + output <= 2048 tokens"
RECIPES = {
    "sharegpt": Recipe(
        sharegpt,
        "ShareGPT first turns, Llama tokenizer: casys-kaist/LLMServingSim, ispass26 dataset, 100 + 300 conversations",
        "MIT",
        f"{FILTER}; 367 requests, so the tails are coarse",
        levels=COARSE_LEVELS,
    ),
    "sharegpt-vicuna": Recipe(
        sharegpt_vicuna,
        "openshift-psap/performance-dashboard, datasets/summaries/sharegpt-vicuna.csv",
        "Apache-2.0",
        f"{FILTER}; its outputs are far longer than ShareGPT's first answers (vLLM's benchmark prints about 200)",
    ),
    "azure-code": Recipe(
        lengths_csv("AzureLLMInferenceTrace_2023_code.csv", (1, 2)), f"{AZURE}_code (2023)", "CC-BY-4.0"
    ),
    "azure-conv": Recipe(
        lengths_csv("AzureLLMInferenceTrace_2023_conv.csv", (1, 2)), f"{AZURE}_conv (2023)", "CC-BY-4.0"
    ),
    "reasoning": Recipe(
        lengths_csv("lens_deepseek-r1.csv"),
        "openshift-psap/performance-dashboard, datasets/summaries/deepseek-r1.csv (MLPerf inference DeepSeek-R1)",
        "Apache-2.0",
        "all rows; 1.1 % of the outputs were cut at 32768 tokens",
        CAPPED_EDGES,
        CAPPED_LEVELS,
    ),
    "reasoning-servegen": Recipe(
        servegen_reasoning,
        "alibaba/ServeGen, data/reason/deepseek-r1, 10 busiest clients with length histograms",
        "Apache-2.0",
        "clients weighted by their rate; within a client, input and output are independent",
    ),
    "mlperf-llama2-70b": Recipe(
        lengths_csv("lens_mlperf_llama2-70b-99.csv"), f"{MLPERF}/llama2-70b-99.csv (OpenOrca)", "Apache-2.0"
    ),
    "mlperf-llama3.1-8b": Recipe(
        lengths_csv("lens_mlperf_llama3-1-8b-datacenter.csv"), f"{MLPERF}/llama3-1-8b-datacenter.csv", "Apache-2.0"
    ),
    "mlperf-llama3.1-405b": Recipe(
        lengths_csv("lens_mlperf_llama3-1-405b.csv"), f"{MLPERF}/llama3-1-405b.csv", "Apache-2.0"
    ),
    "mlperf-mixtral-8x7b": Recipe(
        lengths_csv("lens_mlperf_mixtral-8x7b.csv"), f"{MLPERF}/mixtral-8x7b.csv", "Apache-2.0"
    ),
    "arxiv-summarization": Recipe(
        lengths_csv("vidur_arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv"),
        "microsoft/vidur, data/processed_traces/arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv",
        "MIT",
    ),
    "mooncake-conversation": Recipe(
        mooncake, "kvcache-ai/Mooncake, FAST25-release/traces/conversation_trace.jsonl", "Apache-2.0"
    ),
}


def pairs_of(name: str, data: Path) -> Pairs:
    """The (input, output) lengths that the profile `name` summarises."""
    pairs = RECIPES[name].load(data)
    return pairs[(pairs >= 1).all(axis=1)]


def table(pairs: Pairs, edges: Grid, levels: Grid) -> Float[np.ndarray, "bin column"]:
    """Rows (weight, lowest input, highest input, output quantiles), bins of input cut at the quantiles `edges`."""
    ordered = pairs[np.argsort(pairs[:, 0], kind="stable")].astype(np.float64)
    cuts = np.unique(np.round(np.array(edges) * len(ordered)).astype(int))
    rows = []
    for first, last in zip(cuts[:-1], cuts[1:], strict=True):
        inputs = spline(ordered[first:last, 0], np.array([0.0, 1.0]))
        outputs = spline(np.sort(ordered[first:last, 1]), np.array(levels))
        rows.append([(last - first) / len(ordered), *inputs, *outputs])
    return np.array(rows)


def spline(ordered: Float[np.ndarray, " n"], levels: Float[np.ndarray, " q"]) -> Float[np.ndarray, " q"]:
    """The quantile function of a sorted sample as straight lines between `levels`.

    Least squares, because a projection on a space that holds the constants keeps the mean, which plain quantiles with
    lines between do not in a long tail. The unknowns are the steps between knots, which may not be negative.
    """
    at = (np.arange(len(ordered)) + 0.5) / len(ordered)
    left = np.clip(np.searchsorted(levels, at, side="right") - 1, 0, len(levels) - 2)
    share = (at - levels[left]) / (levels[left + 1] - levels[left])
    basis = np.zeros((len(ordered), len(levels)))
    basis[np.arange(len(ordered)), left] = 1 - share
    basis[np.arange(len(ordered)), left + 1] = share
    # Knots that a small sample does not determine stay near the plain quantiles.
    ridge = 0.05 * np.eye(len(levels))
    steps_to_knots = np.tril(np.ones((len(levels), len(levels))))
    system = np.concatenate([basis, ridge]) @ steps_to_knots
    target = np.concatenate([ordered, ridge @ np.quantile(ordered, levels)]) - ordered[0]
    return np.minimum(ordered[0] + np.cumsum(nnls(system, target)[0]), ordered[-1])


def write(name: str, pairs: Pairs, path: Path) -> None:
    """Write one profile with its provenance and the statistics of its source."""
    recipe = RECIPES[name]
    rows = table(pairs, recipe.edges, recipe.levels)
    lines = [
        f"# source: {recipe.source}",
        f"# licence: {recipe.licence}",
        f"# rows: {len(pairs)}",
        f"# note: {recipe.note}",
        *(f"# {what} tokens: {_statistics(pairs[:, i])}" for i, what in enumerate(("input", "output"))),
        ",".join(["weight", "input_low", "input_high", *(f"output_{level:g}" for level in recipe.levels)]),
    ]
    lines += [",".join([f"{row[0]:.6g}", *(f"{value:.6g}" for value in row[1:])]) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _statistics(values: Int[np.ndarray, " request"]) -> str:
    p50, p90, p99 = np.quantile(values, [0.5, 0.9, 0.99])
    return f"mean {values.mean():.6g} p50 {p50:.6g} p90 {p90:.6g} p99 {p99:.6g} max {values.max()}"


def main() -> None:
    """Write the named profiles, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("names", nargs="*", default=list(RECIPES))
    arguments = parser.parse_args()
    folder = Path(__file__).resolve().parents[1] / "sim" / "workload" / "profiles"
    for name in arguments.names:
        pairs = pairs_of(name, arguments.data)
        write(name, pairs, folder / f"{name}.csv")
        print(f"{name}: {len(pairs)} requests")


if __name__ == "__main__":
    main()
