"""The third document: a lesson with listings, on self-attention in transformers."""

SECTIONS = (
    "roles",
    "projections",
    "formula",
    "example",
    "attention_code",
    "mask_code",
    "layer_code",
    "causal_code",
    "torch_code",
    "complexity",
    "misconceptions",
    "sinks",
    "production",
    "flash",
    "flash_notes",
    "flash_figures",
    "takeaways",
)
