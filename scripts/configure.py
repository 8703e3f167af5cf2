"""From a command's arguments to a configuration: flags of other programs first, then the user's own `KEY=VALUE`."""

import shlex
from dataclasses import dataclass, field

from conf.compose import compose
from conf.schema import SimulateConf
from scripts.arguments import Arguments
from scripts.vllm_flags import Translation, bench, choose_engine, serve


@dataclass
class Request:
    """What was asked for: overrides in order, which flags were left out and why, and remarks."""

    overrides: list[str] = field(default_factory=list)
    ignored: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    config_dirs: list[str] = field(default_factory=list)
    translated: bool = False

    def config(self) -> SimulateConf:
        """The checked configuration."""
        return compose(self.overrides, self.config_dirs)

    def remarks(self) -> list[str]:
        """Lines for a person: what the foreign flags became and which were left out."""
        lines = [f"the same as: headway simulate {shlex.join(self.overrides)}"] if self.translated else []
        lines += [f"not used: {flag} ({why})" for flag, why in self.ignored]
        return [*lines, *(f"note: {note}" for note in self.notes)]


def key_of(override: str) -> str:
    """`++engine.version=1` -> `engine.version`."""
    return override.lstrip("+").partition("=")[0]


def request(arguments: Arguments) -> Request:
    """Read `--serve`, `--bench`, `--engine`, `--config-dir` and the overrides. `ValueError` for what cannot be read."""
    own = arguments.words
    if arguments.value("--cfg") not in (None, "job"):
        raise ValueError(f"--cfg wants job, got {arguments.value('--cfg')!r}.")
    serving, loading = arguments.value("--serve"), arguments.value("--bench")
    wanted = arguments.value("--engine")
    parts: list[Translation] = []
    if serving is not None:
        parts.append(serve(serving, wanted))
    elif wanted is not None:
        if not wanted.strip():
            raise ValueError("--engine wants NAME-VERSION, for example vllm-0.33.0, got nothing.")
        parts.append(Translation(choose_engine(wanted.replace("@", "-").partition("-")[0], wanted)))
    if loading is not None:
        parts.append(bench(loading, alone=serving is None))
    said = {key_of(override) for override in own}
    translated = [override for part in parts for override in part.overrides]
    # A user's own choice replaces the translated one, with the keys that belonged to it.
    kept = [override for override in translated if key_of(override) not in said]
    if "workload" in said:
        kept = [override for override in kept if key_of(override) not in BELONGS_TO_DATASET]
    notes = [row for part in parts for row in part.notes]
    if serving is not None and "hardware" not in said:
        notes.append("a server's command names no device: the default is taken, hardware=NAME changes it")
    return Request(
        [*sorted(kept, key=lambda override: "." in key_of(override)), *own],
        [row for part in parts for row in part.ignored],
        notes,
        arguments.values("--config-dir"),
        translated=serving is not None or loading is not None,
    )


BELONGS_TO_DATASET = {
    f"workload.{key}"
    for key in ("name", "lengths", "input_tokens", "output_tokens", "prefix_tokens", "range_ratio", "format")
}


def as_yaml(config: SimulateConf) -> str:
    """The whole configuration, resolved."""
    import dataclasses

    import yaml

    return yaml.safe_dump(dataclasses.asdict(config), sort_keys=False, allow_unicode=True).rstrip()
