"""Measured kernels of one family on one device: what a predictor is fitted to and judged by."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float


LABELS = ("source", "engine", "engine_version", "kernel", "dtype", "model", "op", "timing")
"""What every row says of itself beside its numbers; "" where a table does not tell.

`kernel`, `dtype`: of the matrix product or of the attention's arithmetic; `model`: where the shape is one model's.
`timing`: "kernel" is the device's time alone (replayed as a graph, or read from a trace of the device), "launch" holds
what the host needs to launch it too, so that short kernels show the host.
"""

GROUP_LIMITED = "experts_group_limited"
"""`op` of experts whose tokens choose groups of experts first; see `predictors.moe.sampled`."""

LENGTH_COLUMNS = (
    "prefill_tokens",
    "prefill_chunks",
    "prefill_area",
    "prefill_kv_tokens",
    "prefill_max_tokens",
    "decodes",
    "decode_sum",
    "decode_max",
    "decode_sumsq",
)

FAMILIES: Mapping[str, tuple[str, ...]] = {
    "gemm": ("m", "n", "k"),
    "attention": (*LENGTH_COLUMNS, "q_heads", "kv_heads", "qk_dim", "v_dim", "kv_bytes_per_element", "window", "warm"),
    "moe": ("tokens", "experts", "top_k", "hidden", "inter", "tp", "ep", "matrices", "active", "max_load", "skew"),
    "elementwise": ("tokens", "bytes_per_token"),
    "sequence": ("rows", "vocab"),
    "recurrent": ("tokens", "sequences", "heads", "head_dim", "state_dim", "channels", "hidden"),
    "collective": ("bytes", "ranks", "nodes"),
    "exchange": ("tokens", "hidden", "top_k", "experts", "ranks", "nodes"),
}
"""Columns of each family, all float64 and in SI units, beside `seconds`.

- gemm: `[m, k] x [k, n]`.
- attention: one layer's kernel over a batch as in `sim.cost.stats.BatchStats`; heads of this rank; `window` infinite
  without one; `warm` 1 where the kernel ran alone and repeatedly, so that the last-level cache holds what fits.
- moe: one layer's routed experts on one rank: `tokens` of the whole expert-parallel group; `inter` before division by
  `tp`; `active` local experts that got rows, `max_load` rows of the busiest local expert over their mean (NaN where
  unknown); `skew`: exponent of the bounded power law that routes, 0 for even routing, NaN where unknown.
- elementwise: bytes read and written per token; label `op` names the kernel.
- sequence: what runs per emitting row (`op`: lm_head, sampler).
- recurrent: state layers; `channels` of the convolution; label `op`: context, decode.
- collective: `bytes` is the full buffer of one rank (the tensor of an all-reduce, the gathered output of an all-gather,
  the input of a reduce-scatter, all that a rank sends in an all-to-all, the message of a send); `op` names it.
- exchange: dispatch and combine of experts between ranks (`op`), kernel in `kernel` (deepep low latency, normal ...).
"""


@dataclass(frozen=True, eq=False)
class OperatorTable:
    """Rows of one family. `columns`: those of `FAMILIES[family]`; `labels`: those of `LABELS`, arrays of str."""

    family: str
    device: str
    columns: Mapping[str, Float[np.ndarray, " row"]]
    labels: Mapping[str, np.ndarray]
    seconds: Float[np.ndarray, " row"]

    def __len__(self) -> int:
        return len(self.seconds)

    def __getitem__(self, name: str) -> np.ndarray:
        """A column or label by name."""
        return self.columns[name] if name in self.columns else self.labels[name]

    def where(self, chosen: Bool[np.ndarray, " row"]) -> "OperatorTable":
        """The chosen rows."""
        return replace(
            self,
            columns={name: column[chosen] for name, column in self.columns.items()},
            labels={name: label[chosen] for name, label in self.labels.items()},
            seconds=self.seconds[chosen],
        )

    def groups(self, *names: str) -> Iterator[tuple[tuple, Bool[np.ndarray, " row"]]]:
        """Each combination of the named columns and labels, in sorted order, with its rows."""
        keys = list(zip(*(self[name].tolist() for name in names), strict=True))
        for key in sorted(set(keys)):
            yield key, np.fromiter((other == key for other in keys), bool, len(keys))


def concatenated(tables: list[OperatorTable]) -> OperatorTable:
    """Rows of several tables of one family and device, one after the other."""
    first = tables[0]
    return replace(
        first,
        columns={name: np.concatenate([table.columns[name] for table in tables]) for name in first.columns},
        labels={name: np.concatenate([table.labels[name] for table in tables]) for name in first.labels},
        seconds=np.concatenate([table.seconds for table in tables]),
    )
