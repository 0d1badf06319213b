"""The service's promises about speed and memory, at a size that CI has time for.

The bounds are wider than the benchmark's own: they catch what has become several times worse.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.service_parts import creates, fan_out, lists, uploads
from benchmarks.service_parts.installation import Installation, installation

from ..cpu_time import slowness

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("service")) as running:
        yield running


@pytest.mark.parametrize("way", [uploads.post_multipart, uploads.send_by_sdk, uploads.download])
def test_a_large_file_does_not_pass_through_memory(
    service: Installation, tmp_path: Path, way: uploads.Way
) -> None:
    path = tmp_path / "rows.jsonl"
    sha256 = uploads.write_rows(path, 64 * 1024**2 + 1)
    if way is uploads.download:
        uploads.post_multipart(service.url, service.api_key, path)
    figures = uploads.measure_on(service, way, path, sha256)
    assert figures["api_rss_growth_mb"] < 50, figures
    assert figures["client_rss_growth_mb"] < 50, figures


def test_every_watcher_gets_every_event_once_and_in_order(service: Installation) -> None:
    figures = fan_out.measure_on(
        service, watchers=100, reconnecting=20, events_per_second=20, seconds=3, join_seconds=1
    )
    assert figures["events"] > 60
    assert figures["delivered"] == 100 * figures["events"]
    assert figures["reconnected"] == 20
    assert figures["lost"] == figures["repeated_or_out_of_order"] == figures["without_done"] == 0
    assert figures["delivery_p99_ms"] < 3000 * max(1.0, slowness()), figures


@pytest.mark.timing
def test_the_last_page_of_a_list_is_as_quick_as_the_first(service: Installation) -> None:
    figures = lists.measure_on(service, rows=2000, limit=40)
    assert figures["jobs"]["items"] >= 2000
    assert figures["jobs_of_one_team"]["items"] == 200
    assert figures["events"]["items"] == 2000
    for name in ("jobs", "jobs_of_one_team", "jobs_oldest_first", "events"):
        assert max(figures[name]["over_first_by_fifth"]) < 3, figures


@pytest.mark.timing
def test_jobs_are_created_in_time(service: Installation) -> None:
    slow = max(1.0, slowness())  # a slower core gets fewer requests and more time for each
    figures = creates.measure_on(service, per_second=40 / slow, seconds=3 * slow)
    for name in ("alone", "beside_lists"):
        create = figures[name]["create"]
        assert create["requests"] == 120
        assert create["p50_ms"] < 60 * slow, figures
        assert create["p99_ms"] < 500 * slow, figures
