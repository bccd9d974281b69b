"""Implementations that are right, each in its own arithmetic: `--impl=conforming:NAME`.

The suite may raise no alarm on them: `attnspec selftest --conforming`.
"""
