"""What becomes of requests between two instances when one of these fails, or their client gives them up.

**A prefill instance fails.** What it was computing is over; if somebody sends requests again (`retry`), they begin
again at another. KV that it held is gone: a decode instance that reads it, or asks for it later, has a load that
fails, if its engine knows such (then it computes the prompt, or ends the request with an error); otherwise the request
is over too. What has been received stays.

**A decode instance fails.** Requests in it are over. What was to be handed over to it goes to another, or waits for the
next one in service; where KV of it has been sent already (layer by layer) it is over. The prefill instance frees what
it holds for a reader that is gone: at once where it writes to it, for a transfer then breaks; otherwise, nobody telling
it, when the lease has run out, which counts from the end of the prefill, or where the reader renews it from the
failure.

**A client gives up.** Where the request waits or runs it is taken out. A transfer that was asked for goes on to its
end, and both sides keep their blocks until then; where pieces are sent, to the end of the piece under way. A decode
instance that has not asked yet tells the prefill instance that nobody will. Between the two nobody knows the request:
its blocks are held for the lease.

Source: NIXL connector of vLLM (pull requests 20139, 25897, 41383: what is held and for how long; aborted loads as in
the recorded schedules); SGLang pull requests 8352, 28236, 35049, 38961 (an abort on the decode side is told to
the other, the transfer under way is not cancelled); TensorRT-LLM pull requests 12249, 12314 (transfers under way are
not cancelled, held blocks time out). When somebody notices a failure is not modelled: everybody else does at once.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from sim.event.handover.base import HandOver
from sim.event.handover.passage import Passage
from sim.event.handover.ports import DecodePort, PrefillPort
from sim.event.handover.push import Push
from sim.units import to_ns


class Lease(NamedTuple):
    """How long blocks are held for a reader: 0 s is not at all. `renewed`: as long as a decode instance lives."""

    seconds: float = 0.0
    renewed: bool = False


class Interruptions:
    """Ends passages before their end. `leases`: of each prefill instance, by number.

    `again(i, now_ns)`: request i is over, though its client waits for it.
    """

    def __init__(self, hand_over: HandOver, leases: Sequence[Lease], again: Callable[[int, int], None]):
        self._hand_over = hand_over
        self._leases = leases
        self._again = again
        hand_over.on_strand = self._stranded

    def failed(self, index: int, now_ns: int) -> list[int]:
        """Instance `index` is gone: the requests that are over with it, by number, in the order they came."""
        hand_over = self._hand_over
        port = hand_over.replicas[index].port
        gone = []
        for passage in list(hand_over.passages.values()):
            if passage.source == index and isinstance(port, PrefillPort):
                over = self._source_failed(passage, now_ns)
            elif passage.target == index and isinstance(port, DecodePort):
                over = self._target_failed(passage, now_ns)
            else:
                continue
            if over:
                gone.append(passage.i)
        if isinstance(port, PrefillPort | DecodePort):
            port.fail()
        return gone

    def given_up(self, i: int, now_ns: int) -> bool:
        """The client has left; False if the request is nowhere between instances."""
        hand_over = self._hand_over
        passage = hand_over.passages.get(i)
        if passage is None:
            return False
        if not hand_over.asked(passage):
            self._end(passage, now_ns)
            return True
        if isinstance(hand_over, Push) and not hand_over.moves(passage):
            self._end(passage, now_ns)
            return True
        passage.given_up = True
        self._take_out(passage.source, i, now_ns)
        self._take_out(passage.target, i, now_ns)
        return True

    def give_up_stranded(self, now_ns: int) -> list[int]:
        """No decode instance will ever come: the requests that waited for one are over."""
        stranded, self._hand_over.stranded = self._hand_over.stranded, []
        left = [passage for passage in stranded if not passage.over]
        for passage in left:
            self._end(passage, now_ns, told=True)
        return [passage.i for passage in left]

    def _source_failed(self, passage: Passage, now_ns: int) -> bool:
        """Whether the request is over with its prefill instance."""
        hand_over, times = self._hand_over, self._hand_over.times
        if times.get(passage.i, "received_ns") >= 0:
            return False
        if passage.given_up:
            hand_over.stop(passage, now_ns)
            hand_over.came(passage, now_ns)
            hand_over.close(passage)
            return False
        prefilled = times.get(passage.i, "prefilled_ns") >= 0
        if prefilled and passage.target >= 0 and not hand_over.decode_first and hand_over.failures is not None:
            hand_over.failed_at_source(passage, now_ns)
            return False
        self._end(passage, now_ns)
        return True

    def _target_failed(self, passage: Passage, now_ns: int) -> bool:
        """Whether the request is over with its decode instance."""
        hand_over = self._hand_over
        if passage.decode is None and not hand_over.binds:
            hand_over.uncount(passage)
            passage.target = -1
            return False
        given_up = passage.given_up
        self._end(passage, now_ns, reader_failed=True)
        return not given_up

    def _end(self, passage: Passage, now_ns: int, *, told: bool = False, reader_failed: bool = False) -> None:
        """The request is over on both sides, and on its way."""
        hand_over, i = self._hand_over, passage.i
        asked = hand_over.asked(passage)
        received = hand_over.times.get(i, "received_ns") >= 0
        hand_over.uncount(passage)
        hand_over.close(passage)
        if not received:
            hand_over.stop(passage, now_ns)
        if passage.decode is not None:
            self._take_out(passage.target, i, now_ns)
            if asked:
                hand_over.came(passage, now_ns)
        if not received and not self._take_out(passage.source, i, now_ns):
            self._let_go(passage, now_ns, told, reader_failed)

    def _let_go(self, passage: Passage, now_ns: int, told: bool, reader_failed: bool) -> None:
        """The prefill instance frees what it holds for a reader that is gone, if it has it."""
        hand_over = self._hand_over
        lease_s, renewed = self._leases[passage.source]
        spoken = passage.decode is not None and not reader_failed
        if told or hand_over.decode_first or not lease_s or spoken:
            hand_over.read(passage, now_ns)
            return
        prefilled_ns = hand_over.times.get(passage.i, "prefilled_ns")
        last_ns = now_ns if renewed and passage.decode is not None else prefilled_ns
        hand_over.read_at(passage, max(now_ns, last_ns + to_ns(lease_s)))

    def _take_out(self, index: int, i: int, now_ns: int) -> bool:
        """Request i leaves an instance; whether it was there."""
        hand_over = self._hand_over
        replica = hand_over.replicas[index]
        if isinstance(replica.port, DecodePort):
            replica.port.forget(i)
        if replica.cancel(i) is None:
            return False
        hand_over.nudge(index, now_ns)
        return True

    def _stranded(self, passage: Passage, now_ns: int) -> None:
        """Without a reader that renews it, the lease of what was prefilled runs out."""
        lease_s, _ = self._leases[passage.source]
        if not lease_s or self._hand_over.decode_first:
            return
        over_ns = self._hand_over.times.get(passage.i, "prefilled_ns") + to_ns(lease_s)
        self._hand_over.later(passage, max(now_ns, over_ns), lambda at: self._expired(passage, at))

    def _expired(self, passage: Passage, now_ns: int) -> None:
        if passage.target >= 0:
            return
        self._end(passage, now_ns, told=True)
        self._again(passage.i, now_ns)
