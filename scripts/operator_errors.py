"""How well operators are predicted, as lines for a person."""

from collections.abc import Mapping

from scripts.table import table


HEAD = ("device", "family", "split", "kernel", "rows", "median %", "p95 %", "mean %", "bias %", "outside %")


def error_table(errors: Mapping[str, Mapping[str, Mapping[str, Mapping[str, Mapping[str, float]]]]]) -> str:
    """`errors[device][family][split][kernel]` as a table; kernel "" is all of them together."""
    rows = []
    for device, by_family in errors.items():
        for family, by_split in by_family.items():
            for split, by_kernel in by_split.items():
                for kernel, found in by_kernel.items():
                    share = [f"{100 * found[key]:.1f}" for key in ("median", "p95", "mean", "bias", "outside")]
                    rows.append((device, family, split, kernel or "all", f"{found['rows']:,}", *share))
    return table(HEAD, rows, left=4)
