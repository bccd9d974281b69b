"""The first document: a textbook chapter on the self-attention mechanism."""

SECTIONS = ("gradients",)
