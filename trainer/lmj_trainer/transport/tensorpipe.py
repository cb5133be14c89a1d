"""Transport over ``torch.distributed.rpc``: TensorPipe agents built by hand, without a rendezvous or a collective.

All private calls to torch's RPC are here. What they rest on (torch 2.15):

* An agent listens as soon as it is built; its address is in its store under ``addrs/NAME``. Peers' addresses are put into the same
  (process-local) store, so the control plane, not a rendezvous, brings members together.
* Worker ids are local: a process calls a peer by whatever id and name *it* gave it. Pipes are keyed by the id, and one that broke stays
  broken, so every new link gets a new id. There are 32,767; a process that used them up refuses to join (and is then replaced).
* A call to a dead peer fails with EPIPE, a pending one with EOF, within milliseconds. A peer whose machine is silent is noticed by the kernel
  (see :mod:`~lmj_trainer.transport.silence`), one that is stopped by the time-out of a call.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from torch._C._distributed_autograd import _init as _init_autograd
from torch._C._distributed_c10d import HashStore
from torch._C._distributed_rpc import TensorPipeAgent, WorkerInfo
from torch.distributed import rpc
from torch.distributed.rpc import TensorPipeRpcBackendOptions
from torch.distributed.rpc import api as rpc_api

from lmj_trainer.transport.envelope import Envelope
from lmj_trainer.transport.inbox import Inbox
from lmj_trainer.transport.silence import SilenceWatch

log = logging.getLogger(__name__)

_LAST_ID = 32_767
_inbox: Inbox | None = None


def ping() -> None:
    """Runs at the receiver: nothing."""


def deliver(envelope: Envelope) -> bool:
    """Runs at the receiver, in a thread of its agent: only puts the message into the inbox."""
    assert _inbox is not None, "deliver runs where a TensorPipeTransport was built"
    return _inbox.put(envelope)


class TensorPipeTransport:
    """The port over RPC. At most one in a process: torch keeps the current agent in a global."""

    def __init__(self, timeout: float = 60.0, silence: float = 1.0) -> None:
        """``timeout``: seconds after which a peer that does not take a message is lost; ``silence``: the same for one whose machine does
        not acknowledge that it got anything.
        """
        global _inbox  # the RPC runtime calls `deliver` by name, without a place for an instance
        if _inbox is not None:
            raise RuntimeError("this process already has a TensorPipeTransport")
        self.inbox = _inbox = Inbox()
        self._store = HashStore()
        self._ids = itertools.count(1)
        self._links: dict[str, WorkerInfo] = {}
        self._peers: dict[int, str] = {}
        self._lock = threading.Lock()
        self._idle = threading.Condition()
        self._under_way = 0
        _init_autograd(0)
        options = TensorPipeRpcBackendOptions(num_worker_threads=4, rpc_timeout=timeout, _transports=["uv"], _channels=["basic"])
        self._agent = TensorPipeAgent(self._store, "self", 0, None, options, {}, [])
        rpc_api._init_rpc_states(self._agent)  # type: ignore[no-untyped-call]
        self.address = self._store.get("addrs/self").decode()
        self._watch = SilenceWatch(silence, self._beat)

    def join(self, view: int, rank: int, peers: Mapping[int, str]) -> None:
        """See :class:`~lmj_trainer.transport.port.Transport`."""
        for address in set(self._links) - set(peers.values()):
            self._retire(address)
        for address in peers.values():
            if address not in self._links:
                self._link(address)
        self._peers = dict(peers)
        self.inbox.open(view)

    def send(self, rank: int, envelope: Envelope) -> None:
        """See :class:`~lmj_trainer.transport.port.Transport`."""
        address = self._peers[rank]
        link = self._links.get(address)
        if link is None:
            self.inbox.fail(envelope.view, f"rank {rank} ({address}) is gone", rank)
            return
        self._count(1)
        self._call(rank, address, link, envelope.view, lambda: self._count(-1), deliver, envelope)

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

    def _beat(self) -> None:
        view = self.inbox.view
        for rank, address in list(self._peers.items()):
            link = self._links.get(address)
            if link is not None:
                self._call(rank, address, link, view, lambda: None, ping)

    def _call(
        self,
        rank: int,
        address: str,
        link: WorkerInfo,
        view: int,
        after: Callable[[], None],
        what: Callable[..., Any],
        *args: Any,
    ) -> None:
        """Have the peer run ``what``; when it cannot be reached ``view`` breaks. ``after`` is called in any case, at the end."""

        def lost(error: RuntimeError) -> None:
            # A link that failed once stays broken, also if the peer lives: the next join makes a new one.
            self._drop(address, link)
            self.inbox.fail(view, f"rank {rank} ({address}) is lost: {str(error).splitlines()[0][:160]}", rank)

        def done(future: Any) -> None:
            try:
                future.value()
            except RuntimeError as error:
                lost(error)
            finally:
                after()

        try:
            future = rpc.rpc_async(link, what, args=args)
        except RuntimeError as error:
            after()
            lost(error)
        else:
            future.add_done_callback(done)

    def _count(self, change: int) -> None:
        with self._idle:
            self._under_way += change
            self._idle.notify_all()

    def _link(self, address: str) -> None:
        number = next(self._ids)
        if number > _LAST_ID:
            raise RuntimeError(f"this process has joined {_LAST_ID} peers, more than an agent can name: start a new one")
        name = f"peer-{number}"
        self._store.set(f"addrs/{name}", address)
        info = WorkerInfo(name, number)
        self._agent._update_group_membership(info, [], {}, True)
        self._links[address] = info

    def _retire(self, address: str) -> None:
        # It leaves the table at once: if this peer is joined again, that is a new link, whatever becomes of the old one.
        with self._lock:
            link = self._links.pop(address, None)
        if link is None:
            return  # it was lost in the meantime

        # One last call before the link is dropped: without it a dead peer's descriptors stay open.
        def done(future: Any) -> None:
            try:
                future.value()
            except RuntimeError as error:
                log.debug("retired %s: %s", address, error)
            self._agent._update_group_membership(link, [], {}, False)

        try:
            rpc.rpc_async(link, ping, timeout=5.0).add_done_callback(done)
        except RuntimeError as error:
            log.debug("retired %s: %s", address, error)
            self._agent._update_group_membership(link, [], {}, False)

    def _drop(self, address: str, link: WorkerInfo) -> None:
        # Several calls over one link fail at once, each in a thread of its own: the first of them drops it.
        with self._lock:
            if self._links.get(address) is not link:
                return
            del self._links[address]
        self._agent._update_group_membership(link, [], {}, False)
