"""How one job of a sweep failed: a status and a sentence, never the end of the sweep."""


def failure_status(error: Exception) -> str:
    """`infeasible`: well described but it cannot start; `error`: bad input; `bug`: anything else."""
    from sim.api import Infeasible

    if isinstance(error, Infeasible):
        return "infeasible"
    return "error" if isinstance(error, ValueError | OSError | MemoryError) else "bug"


def reason_of(error: Exception) -> str:
    """One line: the sentence of bad input, or the kind of the bug."""
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError):
        return out_of_memory(text)
    return text if failure_status(error) != "bug" else f"{type(error).__name__}: {text}"


def out_of_memory(text: str) -> str:
    """The sentence for a run that this machine has no memory for; `text` is what the library said."""
    said = f" ({text})" if text else ""
    return f"the run wants more memory than this machine has{said}: lower workload.num_requests or its token counts."
