from __future__ import annotations

import pytest

from bench.step.spans import Spans


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Worker:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def whole(self) -> str:
        self.clock.now += 1
        self.part()
        self.part()
        self.clock.now += 2
        return "done"

    def part(self) -> None:
        self.clock.now += 10

    def broken(self) -> None:
        self.clock.now += 5
        raise ZeroDivisionError


def measured() -> tuple[Worker, Spans]:
    clock = Clock()
    spans = Spans(clock=clock)
    worker = Worker(clock)
    for method in ("whole", "part", "broken"):
        spans.wrap(worker, method, method)
    return worker, spans


def test_a_part_does_not_count_the_parts_inside_it() -> None:
    worker, spans = measured()
    assert worker.whole() == "done"
    assert spans.take() == {"whole": 3, "part": 20}


def test_time_outside_all_spans_counts_nowhere() -> None:
    worker, spans = measured()
    worker.clock.now += 100
    worker.part()
    worker.clock.now += 100
    assert spans.take() == {"part": 10}


def test_taking_starts_anew() -> None:
    worker, spans = measured()
    worker.part()
    spans.take()
    worker.part()
    assert spans.take() == {"part": 10}


def test_a_part_that_raises_is_counted_and_closed() -> None:
    worker, spans = measured()
    with pytest.raises(ZeroDivisionError):
        worker.broken()
    worker.clock.now += 7
    assert spans.take() == {"broken": 5}


def test_device_is_waited_for_at_every_border() -> None:
    borders: list[float] = []
    clock = Clock()
    worker = Worker(clock)
    spans = Spans(synchronize=lambda: borders.append(clock.now), clock=clock)
    spans.wrap(worker, "part", "a")
    worker.part()
    assert borders == [0, 10]


def test_methods_of_a_class_and_static_ones_can_be_wrapped_and_are_put_back() -> None:
    class Base:
        @staticmethod
        def static(value: int) -> int:
            return value

        def __call__(self) -> int:
            return 7

    class Derived(Base):
        pass

    spans = Spans()
    before = dict(vars(Base)), dict(vars(Derived))
    spans.wrap(Base, "static", "static")
    spans.wrap(Base, "__call__", "call")
    spans.wrap(Derived, "__call__", "derived")
    instance = Derived()
    assert (Base.static(3), instance.static(4), instance(), Base()()) == (3, 4, 7, 7)
    assert spans.take().keys() == {"static", "call", "derived"}
    spans.unwrap()
    assert (dict(vars(Base)), dict(vars(Derived))) == before


def test_a_part_that_is_not_there_is_an_error() -> None:
    with pytest.raises(AttributeError):
        Spans().wrap(object(), "attend", "attention")
