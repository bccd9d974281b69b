"""The first document: a textbook chapter on the self-attention mechanism."""

SECTIONS = (
    "objectives",
    "sequences",
    "retrieval",
    "scores",
    "variance",
    "independence",
    "saturation",
    "random_scores",
    "scale",
    "softmax",
    "formula",
    "heads",
    "masks",
    "complexity",
    "memory",
    "gradients",
    "backpropagation",
    "examples",
    "pitfalls",
    "exercises",
)
