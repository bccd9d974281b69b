"""Systems that the documents name: each as a small exact model, and the property it stands on."""

SECTIONS = (
    "layers",
    "shared_heads",
    "caches",
    "tiles",
    "adaptation",
    "positions",
    "streams",
    "sharding",
    "recurrences",
    "sequential",
    "named",
)
