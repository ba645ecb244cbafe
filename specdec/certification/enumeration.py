"""Exact enumeration: run a computation once for every outcome of its random choices, and multiply the chances."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor


class Unfollowed(Exception):
    """A computation cannot be enumerated: it draws random numbers from elsewhere, or uses them in an unknown way."""


class Branches:
    """One run, of the chance `weight`: it follows a script of choices, then takes the first possible ones."""

    def __init__(self, script: Sequence[int] = ()) -> None:
        self.script, self.weight = script, 1.0
        self.trace: list[tuple[int, int]] = []

    def choose(self, chances: Sequence[float]) -> int:
        options = [index for index, chance in enumerate(chances) if chance > 0]
        step = len(self.trace)
        taken = self.script[step] if step < len(self.script) else 0
        self.trace.append((taken, len(options)))
        self.weight *= chances[options[taken]]
        return options[taken]


class Uniforms:
    """Replacement of the tensor that `torch.rand` returns: each number is known only to lie in an interval.

    A comparison splits the interval at its threshold and branches with the two chances, so any rule that
    compares (scaled) uniforms with numbers is enumerated exactly. Every other use raises: extend this class for it.
    """

    def __init__(self, branches: Branches, cells: list[list[float]], index: Tensor, scale: Tensor) -> None:
        self._branches, self._cells, self._index, self._scale = branches, cells, index, scale

    @property
    def shape(self) -> torch.Size:
        return self._index.shape

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, item: Any) -> "Uniforms":
        return Uniforms(self._branches, self._cells, self._index[item], self._scale[item])

    def __mul__(self, other: Any) -> "Uniforms":
        scale = self._scale * torch.as_tensor(other, dtype=torch.float64)
        return Uniforms(self._branches, self._cells, self._index.expand(scale.shape), scale)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> "Uniforms":
        return self * (1.0 / torch.as_tensor(other, dtype=torch.float64))

    def _below(self, other: Any) -> Tensor:
        bounds = torch.as_tensor(other, dtype=torch.float64)
        numbers = self * torch.ones(bounds.shape)  # one for each bound, of the same value
        return numbers._place(bounds.unsqueeze(-1)) == 0

    def _place(self, bounds: Tensor) -> Tensor:
        """Find the gap between ascending bounds [..., K] where each number lies, a branch per gap."""
        rows = bounds.double().expand(*self.shape, -1).reshape(-1, bounds.shape[-1]).tolist()
        places = []
        for index, scale, row in zip(self._index.flatten().tolist(), self._scale.flatten().tolist(), rows, strict=True):
            if scale == 0:
                places.append(sum(bound <= 0 for bound in row))
                continue
            low, high = self._cells[index]
            edges = [low, *(min(max(bound / scale, low), high) for bound in row), high]
            place = self._branches.choose([(b - a) / (high - low) for a, b in itertools.pairwise(edges)])
            self._cells[index] = [edges[place], edges[place + 1]]
            places.append(place)
        return torch.tensor(places).reshape(self.shape)

    # A single number has chance 0, so strict and weak comparisons are the same.
    __lt__ = __le__ = _below

    def __gt__(self, other: Any) -> Tensor:
        return ~self._below(other)

    __ge__ = __gt__

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Receive `tensor * uniforms` and `tensor > uniforms`, and call the operator with its sides swapped."""
        swapped = {
            "mul": cls.__mul__, "rmul": cls.__mul__,
            "gt": cls.__lt__, "ge": cls.__le__, "lt": cls.__gt__, "le": cls.__ge__,
        }  # fmt: skip
        name = function.__name__.strip("_")  # of a method or an operator
        if name == "searchsorted" and isinstance(args[1], cls):
            return args[1]._place(args[0].unsqueeze(-2))
        if name in swapped and len(args) == 2 and isinstance(args[1], cls) and not isinstance(args[0], cls):
            return swapped[name](args[1], args[0])
        raise Unfollowed(
            f"the enumeration cannot follow {name} of a uniform number: compare, scale or index it instead"
        )


class Enumeration:
    """Enumerates a computation: `outcomes(run)` calls `run` once per branch and yields (chance, result).

    The chances add up to 1. `run` may draw from `generator` only: `torch.rand` and `torch.multinomial` are replaced
    while it runs, and `Unfollowed` is raised if anything draws real random numbers. `runs` counts the outcomes so far.
    """

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(0)
        self.runs = 0

    def outcomes(self, run: Callable[[], Any]) -> Iterator[tuple[float, Any]]:
        """Yield the chance and the result of every outcome of `run`. Unfollowed: it draws in an unknown way."""
        before = self.generator.get_state(), torch.get_rng_state()
        script: list[int] | None = []
        while script is not None:
            branches = Branches(script)
            drawing = torch.rand, torch.multinomial
            torch.rand, torch.multinomial = self._replacements(branches)
            try:
                result = run()
            finally:
                torch.rand, torch.multinomial = drawing
            self.runs += 1
            yield branches.weight, result
            trace = branches.trace  # the next script in depth-first order goes on from the last choice that has another
            while trace and trace[-1][0] + 1 == trace[-1][1]:
                trace.pop()
            script = [*(taken for taken, _ in trace[:-1]), trace[-1][0] + 1] if trace else None
        after = self.generator.get_state(), torch.get_rng_state()
        if not (torch.equal(before[0], after[0]) and torch.equal(before[1], after[1])):
            raise Unfollowed("random numbers were drawn that the enumeration does not replace: use torch.rand")

    def law(self, run: Callable[[], Any]) -> dict[Any, float]:
        """Return the chance of every result of `run`. Unfollowed: they do not add up to 1, or see `outcomes`."""
        law: dict[Any, float] = {}
        for chance, result in self.outcomes(run):
            law[result] = law.get(result, 0.0) + chance
        if abs(sum(law.values()) - 1.0) > 1e-12:
            raise Unfollowed(f"the chances of all outcomes add up to {sum(law.values())}, not to 1")
        return law

    def _replacements(self, branches: Branches) -> tuple[Any, Any]:
        """Return what stands for `torch.rand` and `torch.multinomial` in one run."""

        def check(generator: torch.Generator | None) -> None:
            if generator is not self.generator:
                raise Unfollowed("randomness must come from the generator that was passed as an argument")

        def rand(*size: Any, generator: torch.Generator | None = None, **kwargs: Any) -> Uniforms:
            check(generator)
            shape = torch.Size(size[0] if len(size) == 1 and not isinstance(size[0], int) else size)
            index = torch.arange(shape.numel()).reshape(shape)
            return Uniforms(branches, [[0.0, 1.0] for _ in range(shape.numel())], index, torch.ones(shape).double())

        def multinomial(
            p: Tensor, num_samples: int, replacement: bool = False, *, generator: torch.Generator | None = None
        ) -> Tensor:
            check(generator)
            rows = []
            for law in p.reshape(-1, p.shape[-1]).tolist():
                drawn: list[int] = []
                for _ in range(num_samples):
                    chances = [0.0 if i in drawn and not replacement else chance for i, chance in enumerate(law)]
                    total = sum(chances)
                    drawn.append(branches.choose([chance / total for chance in chances]))
                rows.append(drawn)
            return torch.tensor(rows).reshape(*p.shape[:-1], num_samples)

        return rand, multinomial
