"""Progress where nobody watches: lines, of long commands that ask for them."""

from scripts.progress import progress


def test_a_line_for_each_tenth(capsys):
    with progress(30, "simulating", wanted=True, lines=True) as tell:
        for done in range(1, 31):
            tell(done)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 10
    assert (lines[0], lines[-1]) == ("headway: simulating, 3 of 30", "headway: simulating, 30 of 30")


def test_a_tenth_that_is_less_than_one_is_no_line_of_its_own(capsys):
    with progress(2, "simulating", wanted=True, lines=True) as tell:
        tell(1)
        tell(1)
        tell(2)
    assert capsys.readouterr().err.count("\n") == 2


def test_nothing_without_a_terminal_unless_asked_for(capsys):
    for wanted, lines in ((True, False), (False, True)):
        with progress(2, "jobs", wanted, lines) as tell:
            assert tell is None
    assert capsys.readouterr().err == ""
