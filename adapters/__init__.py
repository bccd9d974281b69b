"""Other people's attention, as kernels that can be asked."""
