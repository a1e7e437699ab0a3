"""What a model gets in the place of tensors that lie in the engine."""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn

from statecell.runtime.errors import UnsupportedError


class Handle:
    """Stands for what a cache layer stores, on its way through the model to the function that knows the layer.

    A model that computes on it would need the tensors, which the host does not have: any use raises UnsupportedError.
    ``REFUSAL`` is the sentence, with ``{what}`` for the attribute or function.
    """

    __slots__ = ("layer",)
    REFUSAL: ClassVar[str]

    def __init__(self, layer: Any) -> None:
        self.layer = layer

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse tensor attributes and methods."""
        raise self._refused(name)

    def __getitem__(self, _: object) -> NoReturn:
        """Refuse indexing."""
        raise self._refused("indexing")

    @classmethod
    def __torch_function__(cls, function: Any, *_: Any, **__: Any) -> NoReturn:
        """Refuse torch functions."""
        raise cls._refused(getattr(function, "__name__", str(function)))

    @classmethod
    def _refused(cls, what: str) -> UnsupportedError:
        return UnsupportedError(cls.REFUSAL.format(what=what))
