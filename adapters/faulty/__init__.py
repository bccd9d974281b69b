"""Implementations that are wrong on purpose, by what is wrong: `--impl=faulty:NAME`.

Each re-creates a fault that a real kernel had, or that a test suite let pass, as one step of
`Pipeline` gone wrong. The suite is tested on them: `attnspec selftest`.
"""
