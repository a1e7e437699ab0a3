"""Which slots and pages of a device are free."""

from __future__ import annotations

from statecell.device import ArrayFullError
from statecell.spec.commands import Status
from statecell.spec.geometry import Geometry


class Places:
    """Free slots and pages of a device with this geometry.

    Slots below ``geometry.states`` can hold a recurrent state; rows of tokens take the others first. One slot of a
    device with states is kept apart as ``through``: rows of a state that is restored pass through it. A state lies in a
    run of pages, taken from the array's end; other rows take pages from its beginning.
    """

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = g = geometry
        self.through = g.slots - 1
        free = range(g.slots - 1 if g.states else g.slots)
        self._slots = [*free[g.states:], *free[:g.states]]
        self._pages = [list(range(g.pages)) for _ in range(g.tiles)]

    def take_slots(self, count: int) -> list[int]:
        """Slots for rows of tokens. Raises ArrayFullError if fewer are free."""
        if count > len(self._slots):
            raise ArrayFullError(
                f"{count} slots were asked for and {len(self._slots)} of the device's {self.geometry.slots} are "
                "free; close other sequences, or use a configuration with more slots", Status.FULL)
        taken, self._slots = self._slots[:count], self._slots[count:]
        return taken

    def take_states(self, pages: list[int]) -> list[tuple[int, int]]:
        """For each state its slot and the first of so many pages. Raises ArrayFullError if they do not all fit."""
        free = [slot for slot in self._slots if slot < self.geometry.states]
        if len(pages) > len(free):
            raise ArrayFullError(
                f"{len(pages)} recurrent states were asked for and {len(free)} of the {self.geometry.states} that the "
                "device can hold are free; close other sequences, or use a configuration with more states", Status.FULL)
        before = list(self._pages[0])
        try:
            taken = [(slot, self._take_run(count)) for slot, count in zip(free, pages, strict=False)]
        except ArrayFullError:
            self._pages[0] = before
            raise
        for slot, _ in taken:
            self._slots.remove(slot)
        return taken

    def give_slots(self, slots: list[int]) -> None:
        """Take slots back."""
        states = self.geometry.states
        self._slots = sorted([*self._slots, *slots], key=lambda slot: (slot < states, slot))

    def free_pages(self, tile: int) -> int:
        """Free pages of a tile."""
        return len(self._pages[tile])

    def take_pages(self, tile: int, count: int) -> list[int]:
        """Pages of a tile, which has so many."""
        taken, self._pages[tile] = self._pages[tile][:count], self._pages[tile][count:]
        return taken

    def give_pages(self, tile: int, pages: list[int]) -> None:
        """Take pages back."""
        self._pages[tile] = sorted([*self._pages[tile], *pages])

    def _take_run(self, count: int) -> int:
        """First of ``count`` pages in a row, the last such ones of the array."""
        run: list[int] = []
        for page in reversed(self._pages[0]):
            run = [*run, page] if run and page == run[-1] - 1 else [page]
            if len(run) == count:
                self._pages[0] = [page for page in self._pages[0] if page not in run]
                return run[-1]
        raise ArrayFullError(
            f"the array is full: a recurrent state needs {count} pages in a row and there are none among the "
            f"{len(self._pages[0])} free ones; free other sequences, or use a configuration with more rows",
            Status.FULL)
