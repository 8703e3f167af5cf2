"""Whether `predictor=` names anything: checked with the configuration, also by commands that price nothing."""

from sim.documents import nearest, user_path


NAMES = ("auto", "kernels", "analytic")


def check_predictor(predictor: str) -> None:
    """**Raises:** ValueError unless it is one of `NAMES`, a folder with a card or a `.json` file that is there.

    What the folder or file holds, and whether it is of the device, is checked when it is read.
    """
    if predictor in NAMES:
        return
    path = user_path(predictor, "predictor")
    wanted = path if path.suffix == ".json" else path / "card.json"
    if wanted.is_file():
        return
    if path.is_dir():
        what = f"{predictor}, a folder without the card.json that it writes"
    elif path.suffix == ".json" or len(path.parts) > 1:
        what = f"{predictor}, and there is no such {'file' if path.suffix == '.json' else 'folder'}"
    else:
        what = f"{predictor}{nearest(predictor, NAMES)}"
    raise ValueError(
        f"predictor must be {', '.join(NAMES)} or a folder or .json file that `headway calibrate` wrote, got {what}."
    )
