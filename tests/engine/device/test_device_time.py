from typing import NamedTuple

import pytest

from loraplex.engine.device.device_time import DeviceTime


class Device:
    """Reaches marks when the test says so."""

    def __init__(self) -> None:
        self.now, self.marks = 0.0, list[Mark]()

    def mark(self) -> "Mark":
        self.marks.append(Mark(self, len(self.marks)))
        return self.marks[-1]


class Mark(NamedTuple):
    device: Device
    place: int

    def reached(self) -> bool:
        return self.place < self.device.now

    def seconds_until(self, later: "Mark") -> float:
        assert self.reached() and later.reached(), "that would wait for the device"
        return 0.5 * (later.place - self.place)


def test_spans_count_once_when_the_device_has_ended_them() -> None:
    device = Device()
    time = DeviceTime(device.mark)
    for _ in range(3):
        with time.span():
            device.mark()
    assert time.take() == 0.0
    device.now = 5
    assert time.take() == 1.0, "the second has begun"
    device.now = 9
    assert time.take() == 2.0 and time.take() == 0.0


def test_a_step_that_fails_does_not_count() -> None:
    device = Device()
    time = DeviceTime(device.mark)
    with pytest.raises(ValueError, match="broken"), time.span():
        raise ValueError("broken")
    device.now = 9
    assert time.take() == 0.0
