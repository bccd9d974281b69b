"""attnspec: a formal-spec conformance suite and certified reference oracle for attention.

The folders, in the order in which a newcomer reads them:

- `attnspec.oracle`: the question (`Problem`), its meaning and its certified value;
- `attnspec.spec`: the claims that hold for every attention implementation;
- `attnspec.adapters`: other people's implementations, as kernels that can be asked;
- `attnspec.conformance`: the pytest suite that judges them.
"""

__version__ = "0.1.0"
__all__ = ["__version__"]
