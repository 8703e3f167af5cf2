"""Progress where nobody watches: a line now and then, or for each tenth."""

import time

from scripts.progress import EVERY_S, now_and_then, progress, until_first


def test_a_line_for_each_tenth(capsys):
    with progress(30, "simulating", bar=True, tenths=True) as tell:
        for done in range(1, 31):
            tell(done)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 10
    assert (lines[0], lines[-1]) == ("headway: simulating, 3 of 30", "headway: simulating, 30 of 30")


def test_a_tenth_that_is_less_than_one_is_no_line_of_its_own(capsys):
    with progress(2, "simulating", bar=True, tenths=True) as tell:
        tell(1)
        tell(1)
        tell(2)
    assert capsys.readouterr().err.count("\n") == 2


def test_what_is_soon_done_says_nothing(capsys):
    for bar in (True, False):
        with progress(2, "jobs", bar) as tell:
            tell(1)
            tell(2)
    assert capsys.readouterr().err == ""


def test_a_long_run_says_now_and_then_how_far_it_is(capsys):
    now = 100.0
    tell = now_and_then(1000, "requests ended", lambda: now)
    for second in range(1, 36):
        now = 100.0 + second
        tell(10 * second, f"{2 * second} s simulated")
    assert EVERY_S == 10.0
    assert capsys.readouterr().err.splitlines() == [
        f"headway: requests ended, {10 * second} of 1,000, {2 * second} s simulated" for second in (10, 20, 30)
    ]


def test_what_takes_long_before_it_begins_says_so_until_it_does(capsys):
    with until_first("requests ended", 0.01) as first:
        time.sleep(0.2)
        first()
        time.sleep(0.05)
        said = capsys.readouterr().err.splitlines()
        time.sleep(0.1)
    assert said and all(line.startswith("headway: requests ended: preparing") for line in said)
    assert capsys.readouterr().err == ""


def test_a_long_simulation_says_how_far_it_is(headway, monkeypatch):
    """Every line is due at once: those of a run count requests that have ended, and the time simulated."""
    monkeypatch.setattr("scripts.progress.EVERY_S", 0.0)
    words = ["model=llama-3.2-1b", "hardware=h100-sxm", "workload=fixed-1024-128", "workload.num_requests=400"]
    for extra in ([], ["--json"]):
        found = headway("simulate", *words, "workload.rate=50", *extra)
        lines = [line for line in found.err.splitlines() if "requests ended, " in line]
        assert lines and all(" of 400, " in line and line.endswith(" s simulated") for line in lines)
        counts = [int(line.split(", ")[1].split()[0].replace(",", "")) for line in lines]
        assert counts == sorted(counts) and 0 < counts[-1] <= 400
