"""What a cache tier holds: chunks of KV by the hash of their content, the least recently used the first to go."""

from collections import OrderedDict


class Chunks:
    """At most `capacity` chunks. Those that are read are `pinned`, and stay. `most`: held at once so far."""

    def __init__(self, capacity: int):
        self.capacity = capacity
        self.most = 0
        self._pins: OrderedDict[int, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._pins)

    def __contains__(self, key: int) -> bool:
        return key in self._pins

    def use(self, key: int) -> None:
        """It is the most recently used."""
        self._pins.move_to_end(key)

    def pin(self, key: int) -> None:
        """One more reader."""
        self._pins[key] += 1
        self._pins.move_to_end(key)

    def unpin(self, key: int) -> None:
        """One reader less."""
        self._pins[key] -= 1

    def add(self, key: int) -> list[int] | None:
        """Put a chunk in; those that had to go for it. None, and nothing changed, where all that is held is read."""
        if key in self._pins:
            self.use(key)
            return []
        gone = []
        if len(self._pins) >= self.capacity:
            first = next((old for old, pins in self._pins.items() if not pins), None)
            if first is None:
                return None
            del self._pins[first]
            gone.append(first)
        self._pins[key] = 0
        self.most = max(self.most, len(self._pins))
        return gone
