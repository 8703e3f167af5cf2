"""What a report says of drafts: by hand from a table of verified rows."""

from dataclasses import replace

import numpy as np
import pytest

from sim.report.console import console
from sim.report.metrics import measure
from sim.report.page.build import page
from sim.report.result import SpeculationTable
from sim.report.speculation import merged, speculation_fields
from sim.report.summary import summary


# of rows with two drafts, 3 had none right, 2 one, 5 both; 4 rows had one, right in 1; 6 rows none
VERIFIED = np.array([[0, 0, 0], [3, 1, 0], [3, 2, 5]])
TABLE = SpeculationTable("eagle", VERIFIED, rows=20, committed=32, cut=1)


def test_numbers_by_hand():
    found = speculation_fields(TABLE)
    assert (found["verifying_rows"], found["drafted_tokens"], found["accepted_tokens"]) == (14, 24, 13)
    assert found["acceptance_by_position"] == [8 / 14, 5 / 10]
    assert found["draft_acceptance_rate"] == 13 / 24
    assert found["mean_accepted_length"] == 1 + 13 / 14
    assert found["tokens_per_step"] == 32 / 20
    assert TABLE.rows + found["accepted_tokens"] - TABLE.cut == TABLE.committed


def test_without_drafts_there_is_nothing_to_tell(three):
    assert speculation_fields(None) is None
    assert summary(three())["speculation"] is None
    assert "Drafted" not in console(three(), measure(three()), None)


def test_nothing_drafted_is_no_rate():
    found = speculation_fields(SpeculationTable("ngram", np.zeros((3, 3), int), 5, 5, 0))
    assert found["acceptance_by_position"] == [None, None]
    assert found["mean_accepted_length"] is None and found["tokens_per_step"] == 1.0


def test_replicas_add_up():
    both = merged([TABLE, TABLE])
    assert (both.rows, both.committed, both.cut) == (40, 64, 2)
    assert both.verified.tolist() == (2 * VERIFIED).tolist()
    assert merged([]) is None


def test_console_and_page_tell_them(three):
    result = replace(three(), speculation=TABLE)
    text = console(result, measure(result), None)
    assert "Drafted / accepted tokens:               24 / 13" in text
    assert "Accepted by position (%):                57.1 / 50.0" in text
    assert "Tokens per row, all / with drafts:       1.60 / 1.93" in text
    html = page(result, measure(result), None)
    assert "<h3>Drafts</h3>" in html and "24 tokens drafted by eagle, 13 accepted, 32 tokens committed" in html
    assert summary(result)["speculation"]["committed_tokens"] == pytest.approx(32)
