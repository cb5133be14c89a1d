"""What one waits for."""

import asyncio

import pytest

from lmj_operator.backend.flag import Flag


async def test_it_is_waited_for_and_has_happened_until_it_is_cleared() -> None:
    flag, woken = Flag(), []

    async def wait() -> None:
        await flag.wait()
        woken.append(True)

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    assert not woken
    flag.set()
    flag.set()
    await waiting
    await wait()
    flag.clear()
    again = asyncio.create_task(wait())
    await asyncio.sleep(0)
    assert woken == [True, True]
    again.cancel()
    await asyncio.gather(again, return_exceptions=True)
    flag.set()
    await wait()
    assert woken == [True, True, True]


async def test_one_alone_may_wait() -> None:
    flag = Flag()
    waiting = asyncio.create_task(flag.wait())
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="another waits"):
        await flag.wait()
    flag.set()
    await waiting
