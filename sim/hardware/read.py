"""Device files: the shipped catalogue, a user's own YAML file, and files that other packages ship.

A third package offers devices through the entry-point group `headway.devices`; each entry point names a package (or
module) in whose folder the YAML files lie:

```toml
[project.entry-points."headway.devices"]
acme = "acme_devices"
```
"""

from collections.abc import Mapping
from functools import cache
from importlib import metadata, resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from sim.documents import nearest, parse_yaml, user_path
from sim.hardware.check import device_from
from sim.hardware.spec import DeviceConf


ENTRY_POINTS = "headway.devices"
SUFFIXES = (".yaml", ".yml")
OTHER_SUFFIXES = (".json", ".csv", ".txt", ".toml", ".jsonl", ".gz", ".parquet")
"""Of files that are none of a device."""


def list_devices() -> list[str]:
    """Names that `load_device` knows: the catalogue and what plug-ins ship, sorted."""
    return sorted({*_catalogue(), *_plugins()})


def load_device(name_or_path: str | Path, key: str = "hardware") -> DeviceConf:
    """Reads one device by its catalogue name (case, `_` and spaces do not matter) or from a YAML file.

    **Arguments:**

    - `name_or_path`: `h100-sxm`, a plug-in's name, or a path that ends in `.yaml` or `.yml`.
    - `key`: the key that named it, for messages.

    **Raises:** `ValueError` with one sentence for an unknown name, a missing or broken file, or wrong content
    (see `sim.hardware.check.device_from`).
    """
    text = str(name_or_path)
    if text.lower().endswith(SUFFIXES):
        path = user_path(text, key)
        if not path.is_file():
            what = "this is a folder" if path.is_dir() else "there is no such file"
            raise ValueError(f"{key}={text}: {what}; give a device file or a name such as h100-sxm.")
        return device_from(_content(path, text), origin=text)
    name = text.strip().lower().replace("_", "-").replace(" ", "-")
    file = _catalogue().get(name) or _plugins().get(name)
    if file is not None:
        return device_from(_content(file, name), origin=name)
    known = list_devices()
    if "/" in text or Path(text).suffix in OTHER_SUFFIXES:
        raise ValueError(f"{key}={text}: a device file is wanted, whose name ends in .yaml (docs/add-a-device.md).")
    raise ValueError(
        f"{key}={text} is not a known device{nearest(name, known)}; `headway hardware` lists the "
        f"{len(known)} names, and a path ending in .yaml reads your own file."
    )


@cache
def _catalogue() -> dict[str, Traversable]:
    return _files(resources.files("conf") / "hardware")


def _plugins() -> dict[str, Traversable]:
    """Device files of installed plug-ins; two sources of one name are an error, not a race."""
    found: dict[str, Traversable] = {}
    for point in sorted(metadata.entry_points(group=ENTRY_POINTS), key=lambda point: point.name):
        try:
            files = _files(resources.files(point.value.split(":")[0]))
        except (ImportError, TypeError) as error:
            raise ValueError(
                f"Device plug-in {point.name} ({point.value}) cannot be read: {error}; "
                "reinstall or remove that package."
            ) from error
        for name, file in files.items():
            if name in _catalogue() or name in found:
                raise ValueError(
                    f"Device plug-in {point.name} ({point.value}) ships the device {name}, which exists already; "
                    f"rename its file {name}.yaml or remove that package."
                )
            found[name] = file
    return found


def _files(folder: Traversable) -> dict[str, Traversable]:
    return {Path(file.name).stem.lower(): file for file in folder.iterdir() if file.name.lower().endswith(SUFFIXES)}


def _content(file: Traversable, origin: str) -> Mapping[str, Any]:
    """A file's mapping, interpolations resolved."""
    where = f"Device file {origin}"
    try:
        with file.open("rb") as stream:
            text = stream.read().decode("utf-8-sig")
        content = parse_yaml(text, where) if text.strip() else {}
        container = OmegaConf.to_container(OmegaConf.create(content), resolve=True) if _tree(content) else content
    except OSError as error:
        raise ValueError(f"{where} cannot be read: {(error.strerror or str(error)).lower()}.") from None
    except (UnicodeDecodeError, OmegaConfBaseException) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{where} is not valid YAML: {reason}; correct the file.") from error
    if not isinstance(container, dict):
        raise ValueError(f"{where} must hold keys and values, got {type(container).__name__}; see a catalogue file.")
    return {str(key): value for key, value in container.items()}


def _tree(content: Any) -> bool:
    return isinstance(content, dict | list)
