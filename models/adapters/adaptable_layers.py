"""Names, in adapter files, of all layers of a pipeline that adapters can change."""

from __future__ import annotations

from typing import Any

from flax import nnx

from models.adapters.files.name_table import Names
from models.adapters.layer_names import names


def names_of(pipeline: Any) -> Names:
    """Return the names of a pipeline's layers in adapter files.

    Args:
        pipeline: with `graphs`, `weights`, `spec` and `SPELLINGS`; its weights may be abstract.
    """
    networks = []
    for spelling in pipeline.SPELLINGS:
        graph = getattr(pipeline.graphs, spelling.network)
        if graph is not None:
            weights = getattr(pipeline.weights, spelling.network)
            networks.append(names(spelling, nnx.merge(graph, weights)))
    return Names(tuple(networks), pipeline.spec.embedding_sizes)
