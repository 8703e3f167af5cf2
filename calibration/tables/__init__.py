"""Operator tables in the formats people have -> `predictors.table.OperatorTable`, checked."""

from calibration.tables.check import quarantined as quarantined
from calibration.tables.find import all_parts as all_parts, tables_for as tables_for
