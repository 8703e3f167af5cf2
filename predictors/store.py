"""Fitted families of one device as files: `card.json`, for people and checks, and `<family>.msgpack`, the arrays.

The card says what was fitted to what: tables with rows and hash, seed, date, held-out errors, licence. A file whose
hash, or a family whose version, is not the one this code reads is refused, never used in silence.
"""

import importlib.metadata
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from predictors.families import MODULES, family
from predictors.family import Fitted
from sim.documents import read_mapping


SCHEMA = "headway.predictors/1"
SHIPPED = Path(str(files("predictors") / "artifacts"))


@dataclass(frozen=True, eq=False)
class Artifact:
    """The fitted families of a device. `card`: what `card.json` holds."""

    name: str
    card: Mapping[str, Any]
    families: Mapping[str, Fitted]


def save(folder: Path, device: str, fitted: Sequence[Fitted], provenance: Mapping[str, Any]) -> None:
    """Write `fitted` for the device of that full name; families already in the folder and not in `fitted` stay.

    **Arguments:**

    - `provenance`: by family, what the card tells of its data: `tables`, `rows`, `seed`, `date`, `errors`.

    **Raises:** ValueError for a folder with families of another device.
    """
    from flax.serialization import msgpack_serialize

    path = folder / "card.json"
    card = read_mapping(path) if path.is_file() else {}
    if card.get("device", device) != device:
        raise ValueError(f"{folder} holds families of {card['device']}, got {device}; take a folder of its own for it.")
    entries = dict(card.get("families", {}))
    contents = {one.family: msgpack_serialize(_float32(one.arrays)) for one in fitted}
    for one in fitted:
        entries[one.family] = {
            "version": one.version,
            "sha256": sha256(contents[one.family]).hexdigest(),
            "kernels": list(one.kernels),
            "facts": dict(one.facts),
            **provenance[one.family],
        }
    head = {"schema": SCHEMA, "device": device, "headway": importlib.metadata.version("headway")}
    text = json.dumps(head | {"families": dict(sorted(entries.items()))}, indent=1, allow_nan=False)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / f"{name}.msgpack").write_bytes(content)
    path.write_text(text + "\n", encoding="utf-8")


def load(folder: Path) -> Artifact:
    """Read what `save` wrote.

    **Raises:** ValueError, one sentence, for a foreign or damaged card, a missing file, another hash or version.
    """
    card = read_mapping(folder / "card.json")
    if card.get("schema") != SCHEMA:
        raise ValueError(f"{folder}/card.json: schema must be {SCHEMA}, got {card.get('schema')!r}.")
    try:
        return Artifact(folder.name, card, _families(folder, card))
    except (AttributeError, KeyError, TypeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise ValueError(
            f"{folder}/card.json is damaged ({what}); calibrate again with `headway calibrate`."
        ) from error


def _families(folder: Path, card: Mapping[str, Any]) -> dict[str, Fitted]:
    from flax.serialization import msgpack_restore

    for name in ("device", "families"):
        if name not in card:
            raise KeyError(name)
    found = {}
    for name, entry in card["families"].items():
        if name not in MODULES:
            raise ValueError(f"{folder}/card.json: family must be one of {', '.join(MODULES)}, got {name}.")
        path = folder / f"{name}.msgpack"
        if not path.is_file():
            raise ValueError(f"{path} is missing, {folder}/card.json describes it; calibrate again.")
        content = path.read_bytes()
        if sha256(content).hexdigest() != entry["sha256"]:
            raise ValueError(f"{path} is not the file that card.json describes (its sha256 differs); calibrate again.")
        wanted = family(name).VERSION
        if entry["version"] != wanted:
            raise ValueError(
                f"{path} was fitted with version {entry['version']} of the features, this code has {wanted}; "
                f"calibrate again with `headway calibrate`."
            )
        try:
            arrays = msgpack_restore(content)
        except Exception as error:
            raise ValueError(f"{path} cannot be read ({error}); calibrate again with `headway calibrate`.") from error
        found[name] = Fitted(name, wanted, arrays, tuple(entry["kernels"]), entry["facts"])
    return found


def shipped() -> dict[str, Path]:
    """Folders of the artifacts that come with Headway, by the full name of their device."""
    cards = sorted(SHIPPED.glob("*/card.json"))
    return {str(read_mapping(card)["device"]): card.parent for card in cards}


def _float32(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {str(key): _float32(value) for key, value in tree.items()}
    array = np.asarray(tree)
    return array.astype(np.float32) if array.dtype == np.float64 else array
