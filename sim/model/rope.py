"""Rotary tables an engine builds next to the weights, and how far they let a model reach.

vLLM precomputes cos and sin for every position once per rank, `rows x rotary_dim` in the activation type. For a
long-context model that is gigabytes (Llama 4 Scout: 10,485,760 rows x 128), and its log counts them as weights.
"""

from collections.abc import Mapping
from typing import Any

from sim.model.config import Config
from sim.model.spec import RopeTable


UNSCALED = ("default", "llama3", "mrope", "proportional")


def rope_section(config: Config) -> tuple[Mapping[str, Any], ...]:
    """The rope settings, one for each kind of layer that has its own; empty if none are given."""
    found = config.mapping("rope_parameters", "rope_scaling", default=None)
    config.used.update(("rope_parameters", "rope_scaling"))
    if not found:
        return ()
    parts = tuple(value for value in found.values() if isinstance(value, Mapping))
    return parts or (found,)


def rope_type(section: Config) -> str:
    """`rope_type`, or its older name `type`; sections only for images are `mrope`."""
    kind = section.text("rope_type", "type", default="default")
    multimodal = "mrope_section" in section.values and kind in ("default", "mrope")
    return "mrope" if multimodal else {"su": "longrope", "deepseek_yarn": "yarn"}.get(kind, kind)


def rows_of(values: Mapping[str, Any], positions: int, where: str) -> int:
    """Rows of the table for one section: positions, stretched by the kinds that interpolate."""
    section = Config(values, f"{where}, rope_parameters")
    kind = rope_type(section)
    if kind == "mrope":
        # four times the positions: an image or video advances the index faster than the text
        return 4 * positions
    if kind == "longrope":
        return positions + section.integer("original_max_position_embeddings", default=0)
    if kind in UNSCALED:
        return positions
    factor = section.number("factor", default=1.0)
    if kind == "yarn":
        return round(section.integer("original_max_position_embeddings", default=positions) * factor)
    return round(positions * factor)


def rope_tables(config: Config, rotary_dim: int, positions: int) -> tuple[RopeTable, ...]:
    """Distinct tables of a model whose layers rotate `rotary_dim` of each head."""
    sections = rope_section(config)
    rows = [rows_of(section, positions, config.where) for section in sections] or [positions]
    return tuple(RopeTable(count, rotary_dim) for count in rows)


def reach(config: Config, positions: int) -> int:
    """The longest sequence: the trained positions, stretched by the kinds that extrapolate (yarn, linear, dynamic)."""
    sections = rope_section(config)
    if not sections:
        return positions
    kind = rope_type(Config(sections[0], config.where))
    stretched = kind not in (*UNSCALED, "longrope")
    return max(rows_of(sections[0], positions, config.where), 1) if stretched else positions


def partial_factor(config: Config, default: float = 1.0) -> float:
    """The share of each head that is rotated, from the config or its rope section."""
    for values in rope_section(config)[:1]:
        default = Config(values, f"{config.where}, rope_parameters").number("partial_rotary_factor", default=default)
    return float(config.number("partial_rotary_factor", "rotary_pct", default=default))
