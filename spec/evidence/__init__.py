"""How one knows: the shape of a statement, its proofs, checks and figures, and what runs them."""
