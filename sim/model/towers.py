"""The size of a vision tower beside the language model, from the shape in `vision_config`.

Only its weights are counted (an engine divides them over the tensor-parallel ranks); images and their tokens
are not modelled.
"""

from collections.abc import Mapping
from typing import Any

from sim.model.config import Config


def tower_params(section: Mapping[str, Any], hidden: int, where: str) -> int | None:
    """Parameters of a transformer over patches, or None if the section has no such shape.

    Layers of attention, MLP, biases and layer norms; patch and position embeddings; one projection to `hidden`.
    """
    shape = Config(section, f"{where}, vision_config")
    layers = shape.integer("num_hidden_layers", "depth", "vt_num_hidden_layers", default=None)
    width = shape.integer("hidden_size", "vt_hidden_size", "embed_dim", default=None)
    inter = shape.integer("intermediate_size", "vt_intermediate_size", default=None)
    if layers is None or width is None or inter is None:
        return None
    matrices = 3 if shape.text("hidden_act", default="gelu") == "silu" else 2
    layer = 4 * (width * width + width) + matrices * width * inter + inter + width + 4 * width
    patch = shape.integer("patch_size", default=14)
    image = shape.integer("image_size", default=None)
    rows = (image // patch) ** 2 if image else 0
    embedding = 3 * patch * patch * width + width + rows * width
    out = shape.integer("vision_output_dim", "out_hidden_size", default=width)
    return int(layers * layer + embedding + out * hidden)
