"""Systems that the documents name: each as a small exact model, and the property it stands on."""

SECTIONS = (
    "layers",
    "additive",
    "shared_heads",
    "caches",
    "tiles",
    "adaptation",
    "positions",
    "streams",
    "sharding",
    "features_and_masks",
    "scans",
    "sequential",
    "named",
)
