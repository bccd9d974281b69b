"""The first document: a textbook chapter on the self-attention mechanism."""

SECTIONS = ("sequences", "retrieval", "variance", "independence", "gradients")
