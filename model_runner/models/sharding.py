"""What each rank of a tensor-parallel group holds of a decoder.

Attention is cut by heads, an MLP by its inner width, and so is each expert: the ranks' work is then equal whatever the
router chooses, as it would not be with whole experts on different ranks, and one sum ends an MLP of either kind. The
embedding and the head are cut by token ids, the last rank's part filled up where the vocabulary does not divide. Norms,
the router and the gate of a shared expert are on every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from model_runner.errors import ModelLoadError
from model_runner.spec import DecoderSpec


@dataclass(frozen=True)
class Share:
    """One rank's part of everything that is cut."""

    rank: int = 0
    size: int = 1

    def of(self, total: int) -> slice:
        """An equal part of ``total``, which :func:`check_divisible` has found to divide."""
        part = total // self.size
        return slice(self.rank * part, (self.rank + 1) * part)

    def of_heads(self, num_heads: int, head_dim: int) -> slice:
        """The rows of this rank's heads; where there are fewer key-value heads than ranks, several have the same."""
        first = self.rank * num_heads // self.size
        return slice(first * head_dim, (first + max(1, num_heads // self.size)) * head_dim)

    def of_vocabulary(self, vocab_size: int) -> slice:
        """The ids whose rows this rank has; fewer than :meth:`padded_width` at the end of the vocabulary."""
        width = self.padded_width(vocab_size)
        return slice(min(self.rank * width, vocab_size), min((self.rank + 1) * width, vocab_size))

    def padded_width(self, total: int) -> int:
        """A part of what need not divide, such as a vocabulary: filled up on the last ranks."""
        return -(-total // self.size)

    def of_spec(self, spec: DecoderSpec) -> DecoderSpec:
        """The model as this rank's attention sees it."""
        return replace(
            spec,
            num_heads=spec.num_heads // self.size,
            num_kv_heads=max(1, spec.num_kv_heads // self.size),
        )


def check_divisible(spec: DecoderSpec, size: int) -> None:
    """
    Refuse a number of ranks that a model cannot be cut into.

    Raises
    ------
    ModelLoadError
        Naming the sizes that do not divide, and the numbers of ranks that do.
    """
    refuse_indivisible(lambda number: _obstacles(spec, number), size, limit=spec.num_heads)


def refuse_indivisible(find_obstacles: Callable[[int], Sequence[str]], size: int, *, limit: int) -> None:
    """
    Refuse ``size`` ranks if they do not divide something.

    Parameters
    ----------
    find_obstacles : callable
        From a number of ranks to the sizes that it does not divide.
    limit : int
        Most ranks that could.

    Raises
    ------
    ModelLoadError
        Naming the sizes, and the numbers of ranks that do.
    """
    obstacles = find_obstacles(size)
    if obstacles:
        possible = [number for number in range(1, limit + 1) if not find_obstacles(number)]
        raise ModelLoadError(
            f"{size} tensor-parallel ranks do not divide the model's {', '.join(obstacles)}; "
            f"--tp can be {_enumerate(possible)}"
        )


def _obstacles(spec: DecoderSpec, size: int) -> list[str]:
    widths = {}
    for layer in spec.layers:
        if layer.moe is None:
            widths["intermediate size"] = spec.intermediate_size
        else:
            widths["expert intermediate size"] = layer.moe.intermediate_size
            widths["shared expert intermediate size"] = layer.moe.shared_intermediate_size or 0
    obstacles = []
    if spec.num_heads % size:
        obstacles.append(f"{spec.num_heads} attention heads")
    if spec.num_kv_heads % size and size % spec.num_kv_heads:
        obstacles.append(f"{spec.num_kv_heads} key-value heads")
    return obstacles + [f"{name} of {width}" for name, width in widths.items() if width % size]


def _enumerate(numbers: list[int]) -> str:
    *first, last = map(str, numbers)
    return f"{', '.join(first)} or {last}" if first else last
