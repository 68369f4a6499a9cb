"""Each role may say and hear what the grants list, and nothing else: the whole matrix."""

from __future__ import annotations

import pytest

from shared.bus.memory_broker import matches
from shared.errors import (
    BusError,
    NoResponder,
)
from shared.wire import subjects
from tests.contracts.wires import (
    CANCEL,
    PLAIN,
    Recorder,
    Wire,
)

ROLES = sorted(subjects.GRANTS)


def _examples(action: str) -> list[str]:
    """Every granted pattern of the tree, with a name for each wildcard."""
    patterns = {subject for grants in subjects.GRANTS.values() for subject in grants[action]}
    return sorted(pattern.replace("*", "x1") for pattern in patterns)


@pytest.mark.parametrize("role", ROLES)
async def test_a_role_can_say_what_is_granted_and_nothing_else(wire: Wire, role: str) -> None:
    speaker = await wire.join(role)
    own = subjects.GRANTS[role]["publish"]
    foreign = ["_INBOX_other.x.1", "$JS.API.INFO", "$JS.API.STREAM.LIST", "$SYS.REQ.SERVER.PING"]
    if role != "scheduler":
        foreign += ["$KV.baton-epochs.leader", "$JS.API.STREAM.DELETE.KV_baton-epochs"]
    for subject in _examples("publish") + foreign:
        granted = any(matches(pattern, subject) for pattern in own)
        with pytest.raises(BusError) as caught:
            await speaker.bus.request(subject, CANCEL, PLAIN, 2.0)
        assert (type(caught.value) is NoResponder) is granted, subject
        assert granted or type(caught.value) is BusError, subject


@pytest.mark.parametrize("role", ROLES)
async def test_a_role_can_hear_what_is_granted_and_nothing_else(wire: Wire, role: str) -> None:
    listener = await wire.join(role)
    own = subjects.GRANTS[role]["subscribe"]
    patterns = {s for grants in subjects.GRANTS.values() for s in grants["subscribe"]}
    foreign = {">", "baton.>", "$JS.>", "$KV.>", "$SYS.>", "_INBOX.>", "_INBOX_other.>"}
    for subject in sorted(patterns | foreign):
        if subject in own:
            await (await listener.bus.subscribe(subject, Recorder())).close()
            continue
        with pytest.raises(BusError) as caught:
            await listener.bus.subscribe(subject, Recorder())
        assert type(caught.value) is BusError, subject
