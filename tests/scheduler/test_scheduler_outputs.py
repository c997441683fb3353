"""What requests get, on an executor that answers at once and on one that answers one step late."""

import pytest
from scheduler_fakes import PAGE_SIZE, Harness, reference


@pytest.fixture(params=[0, 1], ids=["plain", "overlapped"])
def max_in_flight(request: pytest.FixtureRequest) -> int:
    return request.param


def test_one_request_gives_what_sequential_decoding_gives(max_in_flight: int) -> None:
    harness = Harness(max_in_flight)
    params = harness.submit("a", [1, 2, 3], max_tokens=20)
    harness.run()
    assert harness.tokens("a") == reference([1, 2, 3], params)
    assert harness.finish("a").reason == "length"
    assert harness.finish("a").usage.completion_tokens == 20
    harness.check_nothing_leaked()
