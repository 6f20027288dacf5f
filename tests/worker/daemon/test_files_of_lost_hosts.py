"""An engine host that is lost leaves no file in shared memory, whatever it was given, and whatever it had said."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from wire.errors import DeviceLost
from wire.system.shared_memory import SharedDir
from worker.daemon.device_work import DeviceWork
from worker.daemon.snapshot_writer import SnapshotWriter
from worker.engine import host_messages as hm
from worker.engine.host_messages import INLINE_TOTAL_BYTES_MAX
from worker.state import events as ev

SIZE = INLINE_TOTAL_BYTES_MAX * 2 // 3


@pytest.fixture
def shared(tmp_path: Path) -> SharedDir:
    return SharedDir.create(tmp_path)


def files(shared: SharedDir) -> list[str]:
    return [path.name for path in shared.path.iterdir() if path.name != "lock"]


def test_inputs_of_both_parts_that_it_had_go_with_it(shared: SharedDir) -> None:
    """A session's host has the part that follows as well, and may be lost before it reads the first."""
    told, events = list[hm.ToHost](), list[ev.Event]()
    hosts = SimpleNamespace(tell=lambda device, message: told.append(message))
    bridge, tuner = SimpleNamespace(directories=lambda prepared: ()), SimpleNamespace(give_way=lambda: None)
    snapshots = SimpleNamespace(lost=lambda device, error: None, begin=None)
    shell = SimpleNamespace(feed=events.append)
    work = cast(Any, DeviceWork)(shell, hosts, shared, None, bridge, snapshots, tuner, None, [])
    for run in (1, 2):
        inputs = tuple(
            ev.RunInput(slot, ev.Inline("u8", (SIZE,), bytes(SIZE)), True) for slot in range(2)
        )  # they do not fit into one message
        work.performers()[ev.Execute](ev.Execute(0, run, 1, inputs, (), 0))
    assert len(told) == len(files(shared)) == 2
    work.on_lost(cast(Any, SimpleNamespace(device=0)), DeviceLost("it hung"))
    assert not files(shared) and isinstance(events[-1], ev.HostLost)
    shared.close()


def test_a_copy_of_a_tensor_that_is_read_after_its_loss_goes(shared: SharedDir) -> None:
    made, asked = list[ev.Event](), list[hm.ToHost]()
    writer = SnapshotWriter(
        cast(Any, None), str(shared.path), lambda device, message: asked.append(message), made.append
    )
    writer.begin(ev.MakeBlob(5, ev.DeviceTensor("u8", (9,), 0, 3)))
    writer.lost(0, DeviceLost("it hung"))
    output = hm.Output("u8", (9,), None, (shared.write([bytes(9)]),))
    writer.exported(0, hm.Exported(5, output))
    assert not files(shared)
    assert [type(event) for event in made] == [ev.BlobNotMade] and len(asked) == 1
    shared.close()
