"""The way users already think: an engine's own command lines, flags verbatim, as overrides of our configuration."""

from scripts.vllm_flags.load import bench as bench
from scripts.vllm_flags.serve import (
    choose_engine as choose_engine,
    engine_overrides as engine_overrides,
    serve as serve,
)
from scripts.vllm_flags.translation import Translation as Translation, literal as literal
