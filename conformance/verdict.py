"""What the suite says about one claim on one case: the verdict, and its line of JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["SCHEMA_VERSION", "STATUSES", "UNJUDGED", "Verdict"]

SCHEMA_VERSION = 1

STATUSES = ("pass", "fail", "error", "crash", "timeout", "not claimed", "vacuous", "xfail", "xpass")
"""`pass` conforms; `fail` is a number, shape or choice that the declaration excludes; `error` is
an exception; `not claimed` is an option, type or output that the kernel does not offer;
`vacuous` is a question that could not have failed on its case: neither a pass nor a fail. `crash`
and `timeout` are for kernels run in a process of their own, `xfail` and `xpass` for expected
failures: a reader of reports must know them, though this version sets none of the four."""


UNJUDGED = ("not claimed", "vacuous")
"""What says nothing about the kernel."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One verdict. Its fields are described in `verdict.schema.json` beside this file."""

    impl: str
    claim: str
    dtype: str
    case: str
    generic: bool
    status: str
    fraction: float = 0.0
    rule: str = ""
    where: tuple[int, ...] = ()
    message: str = ""
    tightest: str = ""
    tier: str = ""
    reproduce: str = ""
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """As a JSON object; an infinite fraction is written as the string `inf`."""
        record: dict[str, Any] = {"schema": SCHEMA_VERSION, **asdict(self)}
        record["where"] = list(self.where)
        if self.fraction == float("inf"):
            record["fraction"] = "inf"
        return record

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Verdict:
        """The inverse of `to_json`."""
        fields = {name: value for name, value in record.items() if name != "schema"}
        fields |= {"where": tuple(record["where"]), "fraction": float(record["fraction"])}
        return cls(**fields)
