"""AdapterControl: the engine process's answers to messages about adapters, on top of the pool."""

from loraplex.lora.residency.pool import AdapterPool

from ..protocol import AdapterSpec, Reply


class AdapterControl:
    """Loads are answered when they end; everything else at once. Errors are ValueError with words."""

    def __init__(self, pool: AdapterPool) -> None:
        self._pool = pool
        self._pending: list[tuple[int, str]] = []

    def register(self, spec: AdapterSpec) -> None:
        self._pool.register(spec.digest, spec.path, pinned=spec.pinned)

    def unregister(self, digest: str) -> None:
        self._pool.unregister(digest)

    def pin(self, digest: str, pinned: bool) -> None:
        self._pool.pin(digest, pinned)

    def evict(self, digest: str) -> None:
        self._pool.evict(digest)

    def load(self, call_id: int, digest: str) -> None:
        self._pool.load(digest)
        self._pending.append((call_id, digest))

    def poll(self) -> list[Reply]:
        """Publish finished loads; answers to those who waited for them."""
        self._pool.poll()
        answers: list[Reply] = []
        still_pending: list[tuple[int, str]] = []
        for call_id, digest in self._pending:
            error = self._pool.failure(digest)
            if error is not None or self._pool.resident(digest):
                unfit = error is not None and self._pool.is_unfit(digest)
                answers.append(Reply(call_id=call_id, error=error, unfit=unfit))
            else:
                still_pending.append((call_id, digest))
        self._pending = still_pending
        return answers

    def loading(self) -> bool:
        return self._pool.loading()
