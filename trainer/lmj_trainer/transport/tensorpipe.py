"""Transport over ``torch.distributed.rpc``: TensorPipe agents built by hand, without a rendezvous or a collective.

All private calls to torch's RPC are here. What they rest on (torch 2.15):

* An agent listens as soon as it is built; its address is in its store under ``addrs/NAME``. Peers' addresses are put into the same
  (process-local) store, so the control plane, not a rendezvous, brings members together.
* Worker ids are local: a process calls a peer by whatever id and name *it* gave it. Pipes are keyed by the id, and one that broke stays
  broken, so every new link gets a new id. There are 32,767; a process that used them up refuses to join (and is then replaced).
* No connection to a peer that lives is ever closed, so one link to it is used as long as it does; one to a dead peer, when a call fails.
* A connection that ends before the agents have greeted each other (a peer that is killed right then, anybody who looks whether the port is
  there) ends the listener for good; links that there are go on. Who comes later is refused, so a worker looks whether it still listens.
* A call to a dead peer fails with EPIPE, a pending one with EOF, within milliseconds. A peer whose machine is silent is noticed by the kernel
  (see :mod:`~lmj_trainer.transport.silence`), one that is stopped by the time-out of a call.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch._C._distributed_autograd import _init as _init_autograd
from torch._C._distributed_c10d import HashStore
from torch._C._distributed_rpc import TensorPipeAgent, WorkerInfo
from torch.distributed import rpc
from torch.distributed.rpc import TensorPipeRpcBackendOptions
from torch.distributed.rpc import api as rpc_api
from torch.distributed.rpc.constants import UNSET_RPC_TIMEOUT
from torch.futures import Future

from lmj_trainer.transport.envelope import Envelope
from lmj_trainer.transport.feed import Done, Feed
from lmj_trainer.transport.gateway import Gateway
from lmj_trainer.transport.heartbeats import Heartbeats, Pulse, host_of
from lmj_trainer.transport.inbox import Inbox
from lmj_trainer.transport.listening import listens
from lmj_trainer.transport.parts import BEGIN_SECONDS, Begin, Part
from lmj_trainer.transport.silence import SilenceWatch, milliseconds

log = logging.getLogger(__name__)

_LAST_ID = 32_767
_CALLS = 8
"""To a peer that has nothing else to answer, within the time-out of one."""
_inbox: Inbox | None = None
_feed: Feed | None = None
_heartbeats: Heartbeats | None = None


def ping() -> int:
    """Runs at the receiver: where it takes heartbeats; 0: nowhere."""
    return 0 if _heartbeats is None else _heartbeats.port


def deliver(envelope: Envelope) -> bool:
    """Runs at the receiver, in a thread of its agent: only puts the message into the inbox."""
    assert _inbox is not None, "deliver runs where a TensorPipeTransport was built"
    return _inbox.put(envelope)


@rpc.functions.async_execution  # type: ignore[untyped-decorator]
def take(part: Part) -> Future[tuple[str | None, int]]:
    """Runs at a follower, in a thread of its agent: the answer goes out when the compute thread has taken ``part``."""
    assert _feed is not None, "take runs where a TensorPipeTransport was built"
    future: Future[tuple[str | None, int]] = Future()
    _feed.put(part, lambda problem, step: future.set_result((problem, step)))
    return future


class TensorPipeTransport:
    """The port over RPC. At most one in a process: torch keeps the current agent in a global."""

    def __init__(self, timeout: float = 60.0, silence: float = 0.5, gateway: Gateway | None = None) -> None:
        """``timeout``: seconds after which a peer that does not take a message is lost; ``silence``: the same for one whose machine does
        not acknowledge that it got anything. ``gateway``: what alone reaches peers, and is reached by them; it keeps its own deadlines.
        Raises ConnectionError: it does not.
        """
        global _inbox, _feed, _heartbeats  # the RPC runtime calls functions by name, without a place for an instance
        if _inbox is not None:
            raise RuntimeError("this process already has a TensorPipeTransport")
        self.inbox = _inbox = Inbox()
        self.feed = _feed = Feed()
        self._store = HashStore()
        self._ids = itertools.count(1)
        self._links: dict[str, WorkerInfo] = {}
        self._peers: dict[int, str] = {}
        self._kept: dict[str, Callable[[str], None]] = {}
        self._met: set[str] = set()
        """Addresses of all that were ever linked."""
        self._patience = timeout / _CALLS
        self._due: dict[str, float] = {}
        """When a peer with heartbeats is called again, on the monotonic clock."""
        self._lock = threading.Lock()
        self._idle = threading.Condition()
        self._under_way = 0
        _init_autograd(0)
        options = TensorPipeRpcBackendOptions(num_worker_threads=4, rpc_timeout=timeout, _transports=["uv"], _channels=["basic"])
        self._agent = TensorPipeAgent(self._store, "self", 0, None, options, {}, [])
        rpc_api._init_rpc_states(self._agent)  # type: ignore[no-untyped-call]
        self._own = self._store.get("addrs/self").decode()
        """Where the agent listens."""
        self._gateway = gateway
        self.address = self._own if gateway is None else gateway.publish(_loopback_port(self._own))
        if sys.platform == "linux":
            _heartbeats = Heartbeats(host_of(self.address), milliseconds(silence))
        self._heartbeats = _heartbeats
        self._watch = SilenceWatch(silence, self._beat, self._is_link, self._heartbeats)

    def listens(self) -> bool:
        """See :class:`~lmj_trainer.transport.port.Transport`."""
        return listens(_port(self._own))

    def join(self, view: int, rank: int, peers: Mapping[int, str]) -> None:
        """See :class:`~lmj_trainer.transport.port.Transport`."""
        with self._lock:
            self._admit(*peers.values())
            for address in peers.values():
                if address not in self._links:
                    self._link(address)
            self._peers = dict(peers)
        self._sweep()
        self.inbox.open(view)

    def send(self, rank: int, envelope: Envelope) -> None:
        """See :class:`~lmj_trainer.transport.port.Transport`."""
        # A checkpoint of a view that is over may still be under way: the next view may lack a rank that waits for its end.
        address = self._peers.get(rank)
        link = self._links.get(address) if address is not None else None
        if address is None or link is None:
            self.inbox.fail(envelope.view, f"rank {rank} ({address or 'not in the view'}) is gone", rank)
            return
        self._count(1)
        self._call(address, link, self._breaks(rank, address, envelope.view), lambda _: self._count(-1), deliver, envelope)

    def keep(self, address: str, lost: Callable[[str], None]) -> None:
        """See :class:`~lmj_trainer.transport.port.Transport`."""
        with self._lock:
            self._kept[address] = lost
            self._admit(*self._peers.values())
            there = address in self._links or self._link(address)
        if not there:
            # Who is told may hold what the caller holds.
            threading.Thread(target=lost, args=("there is no way to it",), daemon=True).start()
        self._sweep()

    def drop(self, address: str) -> None:
        """See :class:`~lmj_trainer.transport.port.Transport`."""
        with self._lock:
            self._kept.pop(address, None)

    def tell(self, address: str, part: Part, done: Done) -> None:
        """See :class:`~lmj_trainer.transport.port.Transport`."""
        link = self._links.get(address)
        if link is None:
            done(f"{address} is gone", -1)
            return

        def lost(error: str) -> None:
            done(error, -1)

        # It is answered when the follower is ready, or its source gives it up.
        timeout = BEGIN_SECONDS + 5 if isinstance(part.body, Begin) else UNSET_RPC_TIMEOUT
        self._call(address, link, lost, lambda answer: done(*answer) if answer is not None else None, take, part, timeout=timeout)

    def flush(self, timeout: float) -> None:
        """See :class:`~lmj_trainer.transport.port.Transport`."""
        deadline = time.monotonic() + timeout
        with self._idle:
            while self._under_way and (left := deadline - time.monotonic()) > 0:
                self._idle.wait(left)

    def close(self) -> None:
        """See :class:`~lmj_trainer.transport.port.Transport`. Agents are not shut down: the process ends, and peers see EOF."""
        self._watch.close()
        for address, link in list(self._links.items()):
            self._drop(address, link)

    def _beat(self) -> bool:
        """In the thread of the watch. Whether all peers have heartbeats: the others are called over their links."""
        heartbeats = self._heartbeats
        assert heartbeats is not None, "there is a watch where there are heartbeats"
        view = self.inbox.view
        breaks = {address: self._breaks(rank, address, view) for rank, address in list(self._peers.items())}
        wanted, now = {*breaks, *self._kept}, time.monotonic()
        self._due = {address: due for address, due in self._due.items() if address in wanted}
        heartbeats.hear()
        # Nobody asks for the heartbeats of one without a link; they would be kept after they have ended, and end each wait.
        heartbeats.keep({address for address in wanted if address in self._links})
        settled, silent = True, list[tuple[str, WorkerInfo, Callable[[str], None]]]()
        nobody: Callable[[str], None] = lambda _: None  # noqa: E731
        for address in wanted:
            link, lost = self._links.get(address), breaks.get(address, nobody)
            if link is None:
                lost("the link broke before the view began")
                continue
            pulse = heartbeats.beat(address)
            if pulse is Pulse.BEATS and now < self._due.get(address, 0.0):
                continue
            settled = settled and pulse is Pulse.BEATS
            self._due[address] = now + self._patience
            # A peer that is gone fails it; what the peer had sent before is taken first. One that is stopped lets it time out.
            self._call(address, link, lost, partial(heartbeats.meet, address), ping)
            if pulse is Pulse.SILENT:
                silent.append((address, link, lost))
        # Whoever is told may take its time; the other peers have had their beat by then.
        for address, link, lost in silent:
            self._lose(address, link, lost, "its machine is silent")
        return settled

    def _is_link(self, local: str, remote: str) -> bool:
        """Peers connect to this agent's address, and this agent to theirs."""
        if self._gateway is not None:
            return False
        return f"uv://{local}" == self._own or f"uv://{remote}" in self._met

    def _breaks(self, rank: int, address: str, view: int) -> Callable[[str], None]:
        """What the loss of a peer does: ``view`` breaks."""
        return lambda error: self.inbox.fail(view, f"rank {rank} ({address}) is lost: {error}", rank)

    def _call(
        self,
        address: str,
        link: WorkerInfo,
        lost: Callable[[str], None],
        after: Callable[[Any], None],
        what: Callable[..., Any],
        *args: Any,
        timeout: float = UNSET_RPC_TIMEOUT,
    ) -> None:
        """Have the peer run ``what``; ``lost`` is told when it cannot be reached. ``after`` is called in any case, with the answer or None.

        ``timeout``: seconds for the answer, if it is not to be the transport's own.
        """

        def failed(error: RuntimeError) -> None:
            self._lose(address, link, lost, str(error).splitlines()[0][:160])

        def done(future: Any) -> None:
            answer = None
            try:
                answer = future.value()
            except RuntimeError as error:
                failed(error)
            finally:
                after(answer)

        try:
            future = rpc.rpc_async(link, what, args=args, timeout=timeout)
        except RuntimeError as error:
            after(None)
            failed(error)
        else:
            future.add_done_callback(done)

    def _lose(self, address: str, link: WorkerInfo, lost: Callable[[str], None], reason: str) -> None:
        # A link that failed once stays broken, also if the peer lives: the next join makes a new one.
        current = self._drop(address, link)
        lost(reason)
        kept = self._kept.get(address) if current else None
        if kept is not None:
            kept(reason)

    def _count(self, change: int) -> None:
        with self._idle:
            self._under_way += change
            self._idle.notify_all()

    def _admit(self, *addresses: str) -> None:
        """Let those at ``addresses`` connect, and those that are kept."""
        if self._gateway is None:
            return
        try:
            self._gateway.admit({*addresses, *self._kept})
        except ConnectionError as error:
            log.warning("peers cannot be let in: %s", error)

    def _link(self, address: str) -> bool:
        """Make a link to ``address``; whether there is one."""
        try:
            place = address if self._gateway is None else f"uv://{self._gateway.reach(address)}"
        except ConnectionError as error:
            log.warning("%s cannot be linked: %s", address, error)
            return False
        number = next(self._ids)
        if number > _LAST_ID:
            raise RuntimeError(f"this process has joined {_LAST_ID} peers, more than an agent can name: start a new one")
        name = f"peer-{number}"
        self._store.set(f"addrs/{name}", place)
        info = WorkerInfo(name, number)
        self._agent._update_group_membership(info, [], {}, True)
        self._met.add(address)
        self._links[address] = info
        return True

    def _sweep(self) -> None:
        """Look whether the peers that nobody needs any more are there.

        torch closes no connection of a peer that lives: its link stays, and is used again, where another would be one more. Those of a dead
        one are closed when a call to it has failed.
        """
        with self._lock:
            idle = {address: link for address, link in self._links.items() if address not in {*self._peers.values(), *self._kept}}
        for address, link in idle.items():
            self._call(address, link, lambda _: None, lambda _: None, ping)

    def _drop(self, address: str, link: WorkerInfo) -> bool:
        """Whether it was the link to ``address``."""
        # Several calls over one link fail at once, each in a thread of its own: the first of them drops it.
        with self._lock:
            if self._links.get(address) is not link:
                return False
            del self._links[address]
            if self._gateway is not None:
                with contextlib.suppress(ConnectionError):  # it is gone, and this process will be
                    self._gateway.forget(address)
        self._agent._update_group_membership(link, [], {}, False)
        return True


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


def _loopback_port(address: str) -> int:
    """Raises RuntimeError: it is an address at which others reach this process, whatever the gateway lets in."""
    if host_of(address) != "127.0.0.1":
        raise RuntimeError(
            f"RPC listens at {address}: with a relay it is to listen on the loopback interface (TP_SOCKET_IFNAME=lo)"
        )
    return _port(address)
