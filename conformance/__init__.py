"""The pytest suite and plugin that judge an implementation."""
