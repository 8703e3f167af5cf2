"""Whether `predictor=` names anything: checked with the configuration, also by commands that price nothing."""

from sim.documents import user_path


NAMES = ("auto", "kernels", "analytic")


def check_predictor(predictor: str) -> None:
    """**Raises:** ValueError unless it is one of `NAMES`, a folder with a card or a `.json` file that is there.

    What the folder or file holds, and whether it is of the device, is checked when it is read.
    """
    if predictor in NAMES:
        return
    path = user_path(predictor, "predictor")
    if not (path if path.suffix == ".json" else path / "card.json").is_file():
        raise ValueError(
            f"predictor must be {', '.join(NAMES)} or a folder or .json file that `headway calibrate` wrote, "
            f"got {predictor}."
        )
