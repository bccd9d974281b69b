"""The claims: what is true of every attention, one record each."""
