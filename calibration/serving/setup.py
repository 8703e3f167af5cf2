"""From a measured row to the configuration that stands for it, as overrides of `headway simulate`."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

from calibration.serving.recipes import POOL, settings_of
from calibration.serving.table import Row, Workers
from calibration.serving.version import Version, version_of
from sim.documents import mapping, parse_yaml, read_mapping
from sim.hardware.read import list_devices


ROUNDS = 10
"""Requests per client: InferenceX sends ten per client, and so does every bench that does not say."""

POOLS = ("deployment=pd-1p1d", "deployment.decode_router=round_robin")
"""In turn, as Dynamo's front end does unless told otherwise (its documentation of `--router-mode`)."""

INFERENCEX_LENGTHS = 0.8
"""InferenceX draws lengths uniformly from this share of the nominal ones up to them."""


@dataclass(frozen=True)
class Setup:
    """A row as a configuration: overrides in order, the engine version and how it is known, and what is left out."""

    overrides: tuple[str, ...]
    device: str
    model: str
    version: Version
    parallel: str
    left_out: tuple[str, ...] = ()

    def with_overrides(self, more: Sequence[str]) -> "Setup":
        """The same with further overrides, which win."""
        return replace(self, overrides=(*self.overrides, *more))


def setup_of(row: Row, lookup: Callable[[str], str]) -> Setup:
    """The configuration of a row. `ValueError`, one sentence, for a row that cannot be described.

    `lookup`: the catalogue's name of a model by its HuggingFace id, `ValueError` if it has none.
    Nothing that was measured is read.
    """
    if row.concurrency is None or not row.concurrency >= 1 or row.concurrency % 1:
        raise ValueError(f"a closed loop has a whole number of clients, got {row.concurrency}.")
    if not (row.isl and row.osl):
        raise ValueError("a row wants isl and osl, the lengths of prompt and answer.")
    device, version = device_of(row.hardware), version_of(row)
    model, stored = model_of(row, lookup)
    workers = row.workers if row.disaggregated else None
    overrides = [f"model={model}", f"hardware={device}", f"engine={row.serves}-{version.name}", *stored]
    left_out: list[str] = []
    if workers is None:
        sizes = parallel_sizes(row)
        settings, left_out = settings_of(*_facts(row, device, model, "both", Workers(1, *sizes[:2], 1)))
        overrides += _deployment(*sizes)
        overrides += [f"{'++' if '.' in key else ''}engine.{key}={_literal(value)}" for key, value in settings.items()]
        words = [_words(*sizes)]
    else:
        words = []
        overrides += POOLS
        for role, side in zip(("prefill", "decode"), workers, strict=True):
            settings, out = settings_of(*_facts(row, device, model, role, side))
            left_out += [f"{role}: {word}" for word in out]
            told, more = _told(side, settings)
            overrides += _pool(role, told, more, settings)
            words.append(f"{told.count}x{_words(*_sizes(told)).replace('+', '')}")
    return Setup(tuple([*overrides, *_workload(row)]), device, model, version, "+".join(words), tuple(left_out))


def _facts(row: Row, device: str, model: str, role: str, side: Workers) -> tuple[dict[str, str], dict[str, int]]:
    """What recipes may ask of the servers of one role, and the counts that their formulas may use."""
    counts = {
        "concurrency": int(row.concurrency or 1),
        "isl": row.isl,
        "osl": row.osl,
        "tensor_parallel": side.tensor_parallel,
        "ranks": side.count * side.data_parallel,
    }
    facts = {
        "bench": row.bench,
        "engine": row.serves,
        "hardware": device,
        "model": model,
        "precision": row.precision,
        "tensor_parallel": str(side.tensor_parallel),
        "isl": str(row.isl),
        "osl": str(row.osl),
        "attention": "dp" if side.data_parallel > 1 else "tp",
        "date": row.date or "",
        "role": role,
        "instances": str(side.count),
    }
    return facts, counts


def device_of(name: str) -> str:
    """The catalogue's name of a device."""
    plain = name.strip().lower()
    known = list_devices()
    for tried in (_file("machines.yaml").get(plain), plain, f"{plain}-sxm", plain.replace("_", "-")):
        if tried in known:
            return str(tried)
    raise ValueError(f"hardware must name a device of `headway hardware`, got {name!r:.40}.")


def model_of(row: Row, lookup: Callable[[str], str]) -> tuple[str, list[str]]:
    """The catalogue's name of the row's model, and the overrides that store it in the row's precision."""
    tables = _file("models.yaml")
    name = row.model
    for suffix in mapping_list(tables["suffixes"]):
        if name.lower().endswith(suffix.lower()):
            name = name[: -len(suffix)]
            break
    names = mapping(tables["names"], "models.yaml: names")
    found = names.get(name.lower().rpartition("/")[2])
    if found is None:
        try:
            found = lookup(row.model)
        except ValueError:
            found = lookup(name)
    slug = str(found)
    precision = row.precision.lower()
    if not precision or precision == stored_as(slug):
        return slug, []
    twin = next((other for other in _twins(slug, precision) if stored_as(other) == precision), None)
    if twin is not None:
        return twin, []
    formats = mapping(tables["formats"], "models.yaml: formats")
    if precision not in formats:
        raise ValueError(f"precision must be one of {', '.join(formats)} or empty, got {row.precision!r:.40}.")
    of_model = mapping(formats[precision], precision)
    section = of_model.get(slug, of_model["any"])
    drop = ["~model.config.quantization_config"] if stored_as(slug) not in ("bf16", "fp16") else []
    if section is None:
        return slug, drop
    return slug, [*drop, f"++model.config.quantization_config={_literal(section)}"]


def _twins(slug: str, precision: str) -> list[str]:
    """Entries of the same model that may be stored so, by their names."""
    base = re.sub(r"-(fp8|fp4|w4a16|w8a8)$", "", slug)
    names = [path.name.removesuffix(".yaml") for path in (resources.files("conf") / "model").iterdir()]
    return [name for name in (f"{base}-{precision}", base) if name in names and name != slug]


@cache
def stored_as(slug: str) -> str:
    """The precision in which a catalogue model's large matrices are stored: bf16, fp8, fp4 or int4."""
    with resources.as_file(resources.files("conf") / "model" / f"{slug}.yaml") as path:
        config = mapping(read_mapping(path).get("config") or {}, slug)
    section = config.get("quantization_config")
    if not section:
        return "bf16"
    words = str(section).lower()
    for sign, precision in (("mxfp4", "fp4"), ("nvfp4", "fp4"), ("'num_bits': 4", "int4"), ("'bits': 4", "int4")):
        if sign in words:
            return precision
    return "int8" if "'type': 'int'" in words else "fp8"


def parallel_sizes(row: Row) -> tuple[int, int, bool]:
    """`(tensor parallel, data parallel of attention, whether experts are spread)`.

    With attention in data parallel (`dp` above 1) the table has the group's width in `num_gpus` and the size of one
    attention group is what is left of it; otherwise `tp`, where it is blank `num_gpus`. Where more ranks share the
    experts than there are devices, the table has multiplied the other sizes by `ep`: `dp` says nothing.
    """
    width = row.num_gpus or row.tp * max(row.dp, 1) or 1
    data = max(row.dp, 1) if row.ep <= width else 1
    if width % data:
        raise ValueError(f"dp={row.dp} must divide num_gpus={width}.")
    return (width // data if data > 1 else row.tp or width), data, row.ep > 1


def _deployment(tensor: int, data: int, expert: bool) -> list[str]:
    words = [f"deployment.tensor_parallel={tensor}"] if tensor > 1 else []
    words += [f"deployment.data_parallel={data}"] if data > 1 else []
    return words + (["deployment.expert_parallel=true"] if expert else [])


def _sizes(side: Workers) -> tuple[int, int, bool]:
    return side.tensor_parallel, side.data_parallel, side.expert_parallel > 1


def _words(tensor: int, data: int, expert: bool) -> str:
    words = [f"tp{tensor}"] if tensor > 1 or data == 1 else []
    return "+".join(words + ([f"dp{data}"] if data > 1 else []) + (["ep"] if expert else []))


def _told(side: Workers, settings: dict[str, Any]) -> tuple[Workers, dict[str, Any]]:
    """Sizes of an instance as a recipe has them where it has, and further keys of its pool; both leave `settings`."""
    own = {key.removeprefix(POOL): settings.pop(key) for key in list(settings) if key.startswith(POOL)}
    sizes = {key: own.pop(key) for key in ("tensor_parallel", "data_parallel") if key in own}
    return replace(side, **sizes), own


def _pool(name: str, side: Workers, more: Mapping[str, Any], settings: Mapping[str, Any]) -> list[str]:
    """A pool of the instances of one role, with further keys and settings of its own."""
    where = f"deployment.pools.{name}"
    sizes = [word.replace("deployment.", f"{where}.") for word in _deployment(*_sizes(side))]
    sizes += [f"{where}.{key}={_literal(value)}" for key, value in more.items()]
    own = [f"++{where}.settings.{key}={_literal(value)}" for key, value in settings.items()]
    return [f"{where}.replicas={side.count}", *sizes, *own]


def _workload(row: Row) -> list[str]:
    """The closed loop: who sends how many requests of which lengths."""
    spread = ["workload.lengths=uniform_below", f"workload.range_ratio={INFERENCEX_LENGTHS}"]
    prompts = re.search(r"(\d+) prompts", row.notes)
    return [
        "workload=closed-loop",
        f"workload.concurrency={int(row.concurrency or 1)}",
        f"workload.input_tokens={row.isl}",
        f"workload.output_tokens={row.osl}",
        *([f"workload.num_requests={prompts[1]}"] if prompts else [f"workload.rounds={ROUNDS}"]),
        *(spread if row.bench == "inferencex" else []),
    ]


def _literal(value: Any) -> str:
    """A value in the grammar of overrides."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_literal, value)) + "]"
    text = str(value)
    return text if re.fullmatch(r"[A-Za-z0-9_.+-]+", text) else f"'{text}'"


def mapping_list(value: Any) -> list[str]:
    """A list of texts of a data file."""
    return [str(item) for item in value]


@cache
def _file(name: str) -> dict[str, Any]:
    text = (resources.files("calibration.serving") / name).read_text(encoding="utf-8")
    return mapping(parse_yaml(text, name), name)
