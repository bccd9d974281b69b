"""Which class of fault the failures speak of, where no known fault explains their numbers.

Two things have a say: what failed and what did not (`RULES`, each a sentence about the verdicts
and what it speaks for), and the classes of the faults that come nearest. No weight depends on the
catalogue, so that a new fault has its vote from the day it is registered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from attnspec.conformance.localisation import Failed, Separation, common_options, separation
from attnspec.conformance.verdict import UNJUDGED, Verdict
from attnspec.oracle.problem import OUTPUTS

__all__ = ["REPEATS", "RULES", "Evidence", "Rule", "reasons", "tally"]

GRADIENTS = frozenset(OUTPUTS) - {"out", "lse"}
REPEATS = ("same-bits-again", "eleven-calls", "forward-after-backward", "freed-memory")
"""Claims on what ran before; each has a second one for the gradients."""
EXTREME = ("large", "huge", "offset", "abyss", "saturated")
"""Families of inputs in which scores, or values, are far from 1."""
MEMORY = "memory-grows-as-declared"
HIDING = ("mask", "bias", "alibi", "key_lengths")
HIDES = ("hiding-is-masking", "wide-window-hides-nothing", "hidden-keys-have-no-gradient")
FEW = 0.15
"""Share of the questions that failed, below which a fault needs something rare."""
MANY = 0.3
"""Share from which on it needs nothing but a call."""
ALL = 0.9
"""Share from which on nothing is right, and a claim that fails says nothing by that."""
VOTES = 2.0
"""What the nearest faults have together; a rule has from 0.5 to 4."""


@dataclass(frozen=True)
class Evidence:
    """The verdicts on one implementation, and what was found out beside them.

    places: where the wrong numbers are.
    """

    verdicts: Sequence[Verdict]
    places: tuple[str, ...] = ()

    @cached_property
    def judged(self) -> list[Verdict]:
        """The verdicts that say something."""
        return [v for v in self.verdicts if v.status not in UNJUDGED]

    @cached_property
    def failed(self) -> list[Verdict]:
        """Those that are failures."""
        return [v for v in self.judged if v.status in Failed]

    @cached_property
    def claims(self) -> frozenset[str]:
        """The claims that failed."""
        return frozenset(v.claim for v in self.failed)

    @cached_property
    def outputs(self) -> frozenset[str]:
        """The outputs that are wrong where they are compared."""
        return self.claims & frozenset(OUTPUTS)

    @cached_property
    def share(self) -> float:
        """Of the questions, how many failed."""
        return len(self.failed) / max(1, len(self.judged))

    @cached_property
    def separation(self) -> Separation | None:
        """What the failures share and the passes do not."""
        return separation(self.verdicts)

    @property
    def separated(self) -> str:
        """The same in words."""
        return "" if self.separation is None else self.separation.words

    @cached_property
    def options(self) -> frozenset[str]:
        """The options that the failures share."""
        shared = set(common_options(self.judged))
        return frozenset(shared | (shared_words(self.separated) & KNOWN))

    def fails(self, *claims: str) -> bool:
        """Whether one of these claims failed, or its second one for the gradients."""
        return any(name in self.claims or f"{name}-gradients" in self.claims for name in claims)

    def rate(self, *words: str) -> float:
        """Of the questions of the claims that begin so, how many failed."""
        asked = [v for v in self.judged if v.claim.startswith(words)]
        return sum(v.status in Failed for v in asked) / max(1, len(asked))

    def begins(self, *words: str) -> int:
        """How many claims failed that begin so."""
        return sum(claim.startswith(words) for claim in self.claims)

    def reads(self, *words: str) -> float:
        """Of the failures, how many have a message with one of these words."""
        found = sum(any(word in v.message for word in words) for v in self.failed)
        return found / max(1, len(self.failed))

    @property
    def writes(self) -> bool:
        """Whether inputs change; not where no call comes back in order."""
        return self.begins("inputs-unchanged") > 0 and self.share < ALL

    @property
    def is_no_rounding(self) -> bool:
        """Whether wrong numbers are exact ones: times a factor, moved, or of another row."""
        return any("the exact result" in words for words in self.places)

    @cached_property
    def gradients_alone(self) -> bool:
        """Whether the forward pass is right wherever it is compared, and no gradient is."""
        return bool(self.outputs) and self.outputs <= GRADIENTS

    @cached_property
    def anywhere(self) -> bool:
        """Whether plain calls fail, with no option and no length that they share."""
        return self.share >= MANY and not self.separated and not self.options


KNOWN = frozenset(
    ("window", "causal", "mask", "bias", "alibi", "sinks", "softcap", "gqa", "return_lse")
) | {"key_lengths", "query_lengths"}


def shared_words(text: str) -> set[str]:
    """The words of a separation; `fewer key heads than query heads` is the option `gqa`."""
    text = text.replace("fewer key heads than query heads", "gqa")
    return {word.partition(":")[0] for word in text.split()}


@dataclass(frozen=True)
class Rule:
    """A sentence about the evidence, the class that it speaks for, and how loud."""

    words: str
    speaks_for: str
    weight: float
    holds: Callable[[Evidence], bool]


def _needs(*options: str) -> Callable[[Evidence], bool]:
    return lambda e: bool(e.options & set(options))


def _stands(*words: str) -> Callable[[Evidence], bool]:
    return lambda e: any(word in place for place in e.places for word in words)


def _raised(e: Evidence) -> float:
    return sum(v.status == "error" for v in e.failed) / max(1, len(e.failed))


def _remembers(e: Evidence) -> bool:
    """What is not finite is so in every call, and does not equal itself."""
    return e.begins(*REPEATS) > 0 and e.share < ALL and e.reads("nan", "inf") < 0.5


def _blind(e: Evidence) -> bool:
    rare = e.share < FEW and e.begins("row-without-keys") > 0 and not e.options
    return rare or _stands("see no key")(e)


def _lse_alone(e: Evidence) -> bool:
    return e.outputs == {"lse"} and not e.options & {"causal", "window", "mask"}


def _lse_alone_right(e: Evidence) -> bool:
    return e.anywhere and "out" in e.outputs and "lse" not in e.outputs


def _extreme(e: Evidence) -> bool:
    found = sum(v.case.partition("/")[0] in EXTREME for v in e.failed)
    return found > 0.5 * len(e.failed) or "inputs " in e.separated


def _layouts(e: Evidence) -> bool:
    """They fail more often than other questions do."""
    return e.rate("layout-") > 2 * e.share


def _poison(e: Evidence) -> bool:
    return all(claim.startswith(("hidden-", "padding-")) for claim in e.claims)


def _within(*words: str) -> Callable[[Evidence], bool]:
    return lambda e: any(word in e.separated for word in words)


def _unscaled(e: Evidence) -> bool:
    """As where sums of earlier tiles are not rescaled when the maximum grows."""
    return "Nk >" in e.separated and {"out", "lse"} <= e.outputs


RULES = (
    Rule("memory grows otherwise than declared", "memory", 4, lambda e: e.fails(MEMORY)),
    Rule("inputs are written to", "state", 4, lambda e: e.writes),
    Rule("it matters what ran before", "state", 4, _remembers),
    Rule("most failures are exceptions", "state", 3, lambda e: _raised(e) > 0.5),
    Rule("shapes or types are wrong", "state", 3, lambda e: e.reads("shape", "dtype") > 0.5),
    Rule("every question fails", "state", 2, lambda e: e.share >= ALL),
    Rule("only fewer key heads fail", "heads", 3, _needs("gqa")),
    Rule("some heads are wrong", "heads", 3, _stands("head")),
    Rule("only sinks fail", "lse, splits, sinks", 3, _needs("sinks")),
    Rule("only the lse is wrong", "lse, splits, sinks", 3.5, _lse_alone),
    Rule("only calls with lse fail", "lse, splits, sinks", 3, _needs("return_lse")),
    Rule("only softcap fails", "arithmetic", 2, _needs("softcap")),
    Rule("only windows fail", "visible set", 3, _needs("window")),
    Rule("only causal calls fail", "visible set", 3, _needs("causal")),
    Rule("only masks, biases or lengths fail", "visible set", 1.5, _needs(*HIDING)),
    Rule("only query lengths fail", "tails", 1.5, _needs("query_lengths")),
    Rule("hiding is not masking", "visible set", 1, lambda e: e.share < MANY and e.fails(*HIDES)),
    Rule("only extreme values fail", "arithmetic", 2, _extreme),
    Rule("only gradients are wrong", "backward alone", 2, lambda e: e.gradients_alone),
    Rule("rows that see no key are wrong", "empty rows", 3, _blind),
    Rule("few results are NaN", "empty rows", 2, lambda e: e.share < FEW and e.reads("nan") > 0.5),
    Rule("only poison in hidden slots fails", "empty rows", 2, _poison),
    Rule("it depends on a remainder", "tails", 3, _within(" mod ", " multiple ")),
    Rule("it depends on a size", "tails", 1, _within("Nk >", "Nq >", "D >", "Dv ")),
    Rule("beyond some keys all is wrong", "empty rows", 1.5, _unscaled),
    Rule("a last tile is wrong", "tails", 2, _stands("incomplete tile")),
    Rule("layouts fail", "layout", 4, _layouts),
    Rule("what is broadcast fails", "layout", 2, lambda e: e.fails("broadcast-is-expanded")),
    Rule("only several entries fail", "batches, pages", 2, _within("batch entry")),
    Rule("the lse is right and nothing else", "cheats", 2, _lse_alone_right),
    Rule("plain calls fail by more than rounding", "cheats", 0.5, lambda e: e.anywhere),
)


def tally(evidence: Evidence, nearest: Sequence[tuple[str, float]]) -> Mapping[str, float]:
    """By class, what speaks for it; the first speaks loudest.

    nearest: the classes of the faults that come nearest, and how near each is.
    """
    found: dict[str, float] = {}
    for rule in RULES:
        if rule.holds(evidence):
            found[rule.speaks_for] = found.get(rule.speaks_for, 0.0) + rule.weight
    nearer = [(name, max(0.0, near) ** 2) for name, near in nearest]
    total = sum(weight for _, weight in nearer) or 1.0
    for name, weight in nearer:
        found[name] = found.get(name, 0.0) + VOTES * weight / total
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def reasons(evidence: Evidence, name: str) -> tuple[str, ...]:
    """What speaks for a class, the loudest first."""
    holding = [rule for rule in RULES if rule.speaks_for == name and rule.holds(evidence)]
    return tuple(rule.words for rule in sorted(holding, key=lambda rule: -rule.weight))
