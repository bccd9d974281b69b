"""The second document: a lesson of a course on language models, on self-attention."""

SECTIONS = (
    "recap",
    "definitions",
    "rows",
    "example",
    "scaling",
    "jacobian",
    "masks",
    "heads",
    "complexity",
    "state",
    "conclusion",
)
