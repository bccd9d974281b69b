"""Other people's attention, as kernels that can be asked."""

from attnspec.adapters.call import Answer, CallFailed, call
from attnspec.adapters.kernel import Kernel, KernelError, kernel
from attnspec.adapters.load import LoadError, load, registered

__all__ = [
    "Answer",
    "CallFailed",
    "Kernel",
    "KernelError",
    "LoadError",
    "call",
    "kernel",
    "load",
    "registered",
]
