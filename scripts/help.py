"""The help texts. `keys.yaml` describes the keys of a configuration; defaults are read from the schema."""

import dataclasses
import importlib
import textwrap
from pathlib import Path
from typing import Any

from scripts.commands import COMMANDS, Command


HEAD = "Headway simulates LLM inference serving: what a deployment would measure, without the hardware."


def overview() -> str:
    """`headway --help`: one screen."""
    width = max(map(len, COMMANDS))
    rows = "\n".join(f"  {command.name:<{width}} {command.summary}" for command in COMMANDS.values())
    return f"""{HEAD}

usage: headway COMMAND [KEY=VALUE ...] [options]

{rows}

Every command takes --json (one JSON object, nothing else) and --help (its keys, units, defaults).

examples:
  headway simulate model=llama-3.1-8b hardware=h100-sxm workload=sharegpt workload.rate=10
  headway simulate --serve "vllm serve Qwen/Qwen3-32B --tensor-parallel-size 2" \\
                   --bench "--request-rate 10 --num-prompts 300"
  headway simulate -m workload.rate=1,2,4,8          # one run per rate, then: headway collect DIR
  headway memory model=llama-3.3-70b hardware=h100-sxm deployment=tp4"""


def command_help(command: Command) -> str:
    """`headway COMMAND --help`."""
    lines = [f"headway {command.name}: {command.summary}", "", f"usage: headway {command.name} {command.usage}"]
    lines += ["", "example:", f"  {command.example}", "", "options:"]
    for option in command.all_options:
        name = ", ".join(filter(None, (option.short, option.name))) + (f" {option.value}" if option.value else "")
        lines.append(f"  {name:<22} {option.text}")
    if command.names:
        module, _, mapping = command.names.partition(":")
        names = "NAME: " + ", ".join(getattr(importlib.import_module(module), mapping))
        lines += ["", *textwrap.wrap(names, 110, subsequent_indent="  ", break_on_hyphens=False)]
    if command.more:
        lines += ["", command.more]
    if command.keys:
        lines += key_table(command.keys)
    return "\n".join(lines)


def key_table(groups: tuple[str, ...]) -> list[str]:
    """The keys of these groups with default and description, the groups themselves first ("": all without a group)."""
    import yaml

    from conf.files import choices
    from sim.report.collect import natural

    described: dict[str, dict[str, str]] = yaml.safe_load(Path(__file__).with_name("keys.yaml").read_text())
    lines = []
    for group in groups if "" in groups else ("", *groups):
        lines += ["", f"{group or 'general'}:"]
        if group in ("workload", "engine", "deployment"):
            names = f"{group}=NAME, one of {', '.join(sorted(choices(group), key=natural))}, or a file"
            lines += textwrap.wrap(names, 110, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
        for key, text in described[group or "general"].items():
            if not group and "" not in groups and key not in groups:
                continue
            shown = f"{group}.{key}" if group else key
            lines.append(f"  {shown:<36} {default_of(group, key):<14} {text}")
    return lines


def default_of(group: str, key: str) -> str:
    """The default of a key, as one would write it; `-` where there is none or the chosen file decides."""
    import yaml

    import conf
    from conf.schema import GROUPS, SCHEMAS, SimulateConf

    schema = SCHEMAS[group] if group else SimulateConf
    field = next(field for field in dataclasses.fields(schema) if field.name == key)
    value: Any = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    if not group and key in GROUPS:
        chosen = yaml.safe_load((Path(conf.__file__).parent / "config.yaml").read_text())["defaults"]
        return next(entry[key] for entry in chosen if isinstance(entry, dict) and key in entry)
    if (
        group in ("model", "hardware")
        or value in (dataclasses.MISSING, None, "", [], {})
        or dataclasses.is_dataclass(value)
    ):
        return "-"
    if isinstance(value, list):
        return f"[{','.join(f'{item:g}' for item in value)}]"
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
