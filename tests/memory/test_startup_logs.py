"""Against real start-up logs (public threads): tokens from the printed terms, and from first principles.

`python tests/memory/test_startup_logs.py` prints the table of errors.
"""

import csv
import json
import re
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from sim.deployment.conf import DeploymentConf
from sim.deployment.engine import EngineConf
from sim.deployment.settings import resolve_engine
from sim.hardware.read import load_device
from sim.memory import memory_budget
from sim.model.read import read_model
from sim.units import GIB


CONFIGS = json.loads((Path(__file__).parent / "models.json").read_text())
DEVICES = {"H100": "h100-sxm", "RTX PRO 6000": "rtx-pro-6000", "RTX A6000": "rtx-a6000", "RTX 3090": "rtx-3090"}
WEIGHTS = {"bf16;w=fp8": "fp8"}


def read_cases(path: Path) -> dict[str, dict]:
    """Case id -> its settings, and `got`: metric -> number."""
    cases: dict[str, dict] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["category"] == "kv_budget":
                name, _, metric = row["id"].partition(".")
                case = cases.setdefault(name, row | {"got": {}})
                if re.fullmatch(r"-?\d+(\.\d+)?", row["value"]):
                    case["got"][metric] = float(row["value"])
    return cases


def budget_of(case: dict, **engine_keys):
    """Our budget for a case; None if the model or device is not among those we describe."""
    device_name = next((name for part, name in DEVICES.items() if part in case["hardware"]), None)
    version = re.match(r"\d+\.\d+(\.\d+)?", case["engine_version"])
    if case["model"] not in CONFIGS or device_name is None or version is None or case["engine"] != "vllm":
        return None
    config = dict(CONFIGS[case["model"]])
    if case["dtype"] == "fp32":
        config["torch_dtype"] = "float32"
    model = read_model(config, case["model"], quantization=WEIGHTS.get(case["dtype"]))
    device = load_device(device_name)
    total = re.search(r"\(([\d.]+) GiB\)", case["hardware"])
    if total:
        device = replace(device, memory_bytes=float(total[1]) * GIB, memory_bytes_estimated=False)
    conf = EngineConf(
        version=version[0],
        gpu_memory_utilization=float(case["gpu_memory_utilization"] or 0.9),
        max_model_len=int(case["max_model_len"]) if case["max_model_len"].isdigit() else None,
        max_num_seqs=int(case["max_num_seqs"]) if case["max_num_seqs"] else None,
        kv_cache_dtype="fp8" if "kv=fp8" in case["dtype"] else "auto",
        **engine_keys,
    )
    deployment = DeploymentConf(tensor_parallel=int(case["tp"] or 1), pipeline_parallel=int(case["pp"] or 1))
    return memory_budget(model, device, resolve_engine(conf, model, device, deployment), deployment)


def available_error(case: dict, budget) -> float | None:
    """Relative error of the KV memory: in tokens where they are logged, otherwise in GiB."""
    got = case["got"]
    if got.get("kv_tokens"):
        return budget.tokens / got["kv_tokens"] - 1
    if got.get("num_gpu_blocks"):
        return budget.num_blocks / got["num_gpu_blocks"] - 1
    if got.get("available_kv"):
        return budget.available_bytes / GIB / got["available_kv"] - 1
    return None


def rows(path: Path) -> list[dict]:
    found = []
    for name, case in sorted(read_cases(path).items()):
        budget = budget_of(case)
        error = None if budget is None else available_error(case, budget)
        if error is not None:
            found.append({"id": name, "case": case, "budget": budget, "error": error})
    return found


def main() -> None:
    table = rows(Path(__file__).resolve().parents[3] / "shared/data/cases/cases.csv")
    for row in table:
        case, budget, got = row["case"], row["budget"], row["case"]["got"]
        terms = "  ".join(
            f"{name} {budget.stage.value(name) / GIB:.2f}/{got[metric]:.2f}"
            for name, metric in (
                ("weights", "weights"),
                ("peak_activation", "peak_activation"),
                ("non_torch", "non_torch"),
                ("cuda_graphs", "cudagraph_actual"),
            )
            if metric in got
        )
        shape = f"tp{case['tp']} pp{case['pp']}"
        print(
            f"{row['id']} {case['engine_version']:<8.8} {case['model'].split('/')[-1]:<34.34} {shape} "
            f"{row['error']:+7.2%} {budget.oom_risk:<8} ours/log {terms}"
        )
    for version in sorted({row["case"]["engine_version"] for row in table}):
        errors = [abs(row["error"]) for row in table if row["case"]["engine_version"] == version]
        print(f"vLLM {version}: {len(errors)} logs, median {median(errors):.2%}, worst {max(errors):.2%}")


if __name__ == "__main__":
    main()
