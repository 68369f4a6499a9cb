"""Ports for servers that start later."""

from __future__ import annotations

import itertools
import os
import socket
from pathlib import Path

import pytest

from shared import ports
from shared.errors import StartupError
from shared.ports import free_port, is_free


def test_no_port_is_one_that_an_outgoing_connection_may_take() -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(10_000 <= free_port() < lowest for _ in range(20))


def test_each_call_gives_another_port_though_nobody_has_bound_the_last() -> None:
    assert len({free_port() for _ in range(50)}) == 50


def test_a_port_where_somebody_listens_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_turns", itertools.count(5))
    with socket.create_server(("127.0.0.1", free_port())) as held:
        taken = held.getsockname()[1]
        assert not is_free(taken)
        monkeypatch.setattr(ports, "_turns", itertools.count(5))
        assert free_port() != taken


def test_processes_that_look_at_the_same_time_choose_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = set[int]()
    for process in range(1_000, 1_004):
        monkeypatch.setattr(os, "getpid", lambda number=process: number)
        monkeypatch.setattr(ports, "_turns", itertools.count())
        chosen |= {free_port() for _ in range(100)}
    assert len(chosen) == 400


def test_none_left_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "is_free", lambda port: False)
    monkeypatch.setattr(ports, "_turns", itertools.count())
    with pytest.raises(StartupError, match="no free port from 10000"):
        free_port()
