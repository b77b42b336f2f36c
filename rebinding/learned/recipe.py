"""How an adapter is trained: everything that, with the base, decides what comes out."""

from __future__ import annotations

from dataclasses import dataclass

from rebinding.learned.lessons import BOXES, ORDERS, Order

WARM = 10
"""Steps over which the learning rate rises to its full value."""


@dataclass(frozen=True)
class Recipe:
    """Tried on SmolLM2-135M: with these values prompts without a swap are right after 100 steps and swaps are
    learned rather suddenly between 110 and 150; the rest is for what is still uncertain then."""

    order: Order = "all"
    seed: int = 0
    steps: int = 200
    stories: int = 4
    rank: int = 16
    alpha: int = 32
    rate: float = 1e-3
    clip: float = 1.0
    boxes: int = BOXES
    """The most boxes that a story has."""

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise ValueError(f"there is no order {self.order!r}; the orders are {', '.join(ORDERS)}")
        for name in ("steps", "stories", "rank", "alpha"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; give 1 or more")

        if self.boxes < BOXES:
            raise ValueError(f"boxes is {self.boxes}; a story has at least {BOXES}")

    def rate_at(self, step: int) -> float:
        """The learning rate: up over the first steps, level, and down to nothing over the second half."""
        return self.rate * min(1.0, (step + 1) / WARM, 2 * (1 - step / self.steps))
