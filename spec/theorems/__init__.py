"""Theorems beside the documents: what follows from softmax and products alone."""

SECTIONS = (
    "orders",
    "shifts",
    "maps",
    "weights",
    "jacobian",
    "spectrum",
    "log_sum_exp",
    "backward",
    "responses",
    "online",
    "keys",
    "extra_keys",
    "weight_matrices",
    "limits",
    "largest_score",
    "kernels",
    "variance",
    "consequences",
    "cost",
)
