"""What is stuck is said on /livez and /readyz, and the watchdog has patience, but not for ever."""

from __future__ import annotations

import aiohttp
import pytest

from shared.errors import StartupError
from shared.runtime.liveness import Liveness, Watchdog
from shared.runtime.probes import Probes
from shared.telemetry.metrics import Metrics


class App:
    def ready(self) -> bool:
        return True

    def accounting(self) -> dict[str, object]:
        return {}


class Ages:
    engine_s = 0.0
    loop_s = 0.0


@pytest.fixture
def ages() -> Ages:
    return Ages()


@pytest.fixture
def liveness(ages: Ages) -> Liveness:
    watched = Liveness()
    watched.watch("event loop", lambda: ages.loop_s, 60.0)
    watched.watch("engine", lambda: ages.engine_s, 10.0)
    return watched


def test_an_age_above_its_bound_is_an_obstacle(ages: Ages, liveness: Liveness) -> None:
    assert liveness.obstacle == ""
    ages.engine_s = 10.0
    assert liveness.obstacle == ""
    ages.engine_s = 10.5
    assert liveness.obstacle == "engine without progress for 10.5 s (bound 10 s)"
    ages.engine_s = 0.0
    assert liveness.obstacle == ""


@pytest.mark.parametrize("bound", [0.0, -1.0, float("inf"), float("nan")])
def test_a_bound_is_finite(bound: float) -> None:
    with pytest.raises(StartupError, match="bound of engine"):
        Liveness().watch("engine", lambda: 0.0, bound)


async def test_probes_tell_who_is_stuck_and_recover(ages: Ages, liveness: Liveness) -> None:
    probes = Probes(Metrics(), liveness)
    await probes.start(0)
    probes.show(App())
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{probes.port}") as http:

            async def said(path: str) -> tuple[int, str]:
                async with http.get(path) as answer:
                    return answer.status, await answer.text()

            assert await said("/livez") == (200, "alive\n")
            assert await said("/readyz") == (200, "ready\n")
            ages.engine_s = 12.0
            reason = "stuck: engine without progress for 12.0 s (bound 10 s)\n"
            assert await said("/livez") == (503, reason)
            assert await said("/readyz") == (503, "stuck\n")
            ages.engine_s = 0.0
            assert await said("/livez") == (200, "alive\n")
            assert await said("/readyz") == (200, "ready\n")
    finally:
        await probes.close()


def test_the_watchdog_ends_what_stays_stuck(ages: Ages, liveness: Liveness) -> None:
    """Half the bound, in looks of a quarter second."""
    watchdog = Watchdog(liveness, lambda _: None)
    assert not any(watchdog.look() for _ in range(100))
    ages.engine_s = 11.0
    assert [watchdog.look() for _ in range(20)] == [False] * 19 + [True]


def test_a_process_that_was_stopped_and_goes_on_gets_its_time(
    ages: Ages, liveness: Liveness
) -> None:
    """Stopped for an hour: every age is an hour at the first look, and small again soon."""
    watchdog = Watchdog(liveness, lambda _: None)
    ages.engine_s = ages.loop_s = 3600.0
    assert not any(watchdog.look() for _ in range(10))
    ages.engine_s = ages.loop_s = 0.0
    assert not watchdog.look()
    ages.engine_s = 11.0
    assert not any(watchdog.look() for _ in range(19))
