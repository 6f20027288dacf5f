"""Object files: kept, checked, bounded, and freed."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from wire.limits import MIB
from wire.system.atomic_files import Disk
from wire.system.malloc import give_back
from worker.native import objects
from worker.native.llvm import I64, Loaded, Processor, index, ir, new_module, this_processor
from worker.native.objects import ENDING, Objects

POSIX = pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")


def returning(number: int) -> Callable[[], ir.Module]:
    """A module whose function returns a number."""

    def make() -> ir.Module:
        module = new_module("returning")
        function = ir.Function(module, ir.FunctionType(I64, []), "number")
        ir.IRBuilder(function.append_basic_block("entry")).ret(index(number))
        return module

    return make


def called(loaded: Loaded) -> int:
    return ctypes.CFUNCTYPE(ctypes.c_int64)(loaded.address("number"))()


def kept(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{ENDING}"))


def test_another_process_finds_what_one_compiled(tmp_path: Path) -> None:
    first, second = Objects(tmp_path / "made" / "here"), Objects(tmp_path / "made" / "here")
    assert called(first.loaded("a", returning(7))) == 7
    assert first.compiled == 1
    assert called(second.loaded("a", returning(8))) == 7  # the name says what it is
    assert called(second.loaded("b", returning(9))) == 9
    assert second.compiled == 1
    assert len(kept(tmp_path / "made" / "here")) == 2


def test_two_that_keep_the_same_object_at_once_both_do(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Interrupted(Disk):
        def replace(self, old: str | Path, new: str | Path) -> None:
            """Another worker begins and ends while this one writes."""
            assert called(Objects(tmp_path).loaded("a", returning(7))) == 7
            super().replace(old, new)

    assert called(Objects(tmp_path, disk=Interrupted()).loaded("a", returning(7))) == 7
    assert caplog.messages == []
    assert called(Objects(tmp_path).loaded("a", returning(8))) == 7
    assert len(list(tmp_path.iterdir())) == 1, "nothing half written is left"


def test_nobody_waits_for_the_disk_to_have_an_object(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Slow(Disk):
        def sync(self, fd: int) -> None:
            raise OSError("this takes as long as the disk's other work")

    assert called(Objects(tmp_path, disk=Slow()).loaded("a", returning(7))) == 7
    assert caplog.messages == []
    assert called(Objects(tmp_path).loaded("a", returning(8))) == 7, "it is kept"


@POSIX
def test_files_are_this_users_alone(tmp_path: Path) -> None:
    Objects(tmp_path / "objects").loaded("a", returning(7))
    assert stat.S_IMODE((tmp_path / "objects").stat().st_mode) == 0o700
    (file,) = kept(tmp_path / "objects")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_name_says_what_an_object_was_made_from() -> None:
    here = this_processor()
    others = (
        Processor(here.triple, here.name, f"{here.features},+other"),
        Processor(here.triple, "other", here.features),
    )
    made_from = [("a", here, "1", "1"), ("b", here, "1", "1"), ("a", here, "2", "1"), ("a", here, "1", "2")]
    made_from += [("a", each, "1", "1") for each in others]
    assert len({objects.object_name(*each) for each in made_from}) == len(made_from)


def damaged(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def emptied(file: Path) -> None:
    file.write_bytes(b"")


def of_another_name(file: Path) -> None:
    other = Objects(file.parent.parent / "other")
    other.loaded("b", returning(8))
    (source,) = kept(file.parent.parent / "other")
    file.write_bytes(source.read_bytes())


def writable_by_others(file: Path) -> None:
    of_another_name(file)
    file.chmod(0o620)


def linked(file: Path) -> None:
    other = file.parent.parent / "elsewhere"
    file.rename(other)
    file.symlink_to(other)


WRONGS = [damaged, cut_short, emptied, of_another_name]
ON_POSIX = [writable_by_others, linked]


@pytest.mark.parametrize("wrong", [*WRONGS, *(pytest.param(each, marks=POSIX) for each in ON_POSIX)])
def test_an_object_that_is_not_whole_is_made_anew(tmp_path: Path, wrong: Callable[[Path], None]) -> None:
    folder = tmp_path / "objects"
    Objects(folder).loaded("a", returning(7))
    (file,) = kept(folder)
    whole = file.read_bytes()
    wrong(file)
    again = Objects(folder)
    assert called(again.loaded("a", returning(7))) == 7
    assert again.compiled == 1
    assert not file.is_symlink() and file.read_bytes() == whole
    assert Objects(folder).loaded("a", returning(7)) and stat.S_IMODE(file.stat().st_mode) & 0o077 == 0


@POSIX
@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_a_folder_that_others_can_write_is_not_used(
    tmp_path: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "objects"
    Objects(folder).loaded("a", returning(8))
    folder.chmod(mode)
    with caplog.at_level(logging.WARNING):
        made = Objects(folder)
    assert "others can write it" in caplog.text
    assert called(made.loaded("a", returning(7))) == 7
    assert len(kept(folder)) == 1


@POSIX
def test_a_folder_that_others_can_replace_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    folder = tmp_path / "open" / "objects"
    Objects(folder).loaded("a", returning(8))
    assert not kept(folder)
    (tmp_path / "open").chmod(0o1777)
    Objects(folder).loaded("a", returning(8))
    assert len(kept(folder)) == 1


def test_a_folder_that_cannot_be_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert called(Objects(tmp_path / "file" / "objects").loaded("a", returning(7))) == 7


def test_the_oldest_objects_go(tmp_path: Path) -> None:
    made = Objects(tmp_path, live_max=0)
    made.loaded("0", returning(0))
    size = kept(tmp_path)[0].stat().st_size
    made = Objects(tmp_path, bytes_max=3 * size, live_max=0)
    for number in range(1, 6):
        for age, file in enumerate(sorted(kept(tmp_path), key=lambda file: file.stat().st_mtime_ns, reverse=True)):
            os.utime(file, ns=(0, 10**18 - age))
        made.loaded("0", returning(0))  # used again, so it is not old
        made.loaded(str(number), returning(number))
    again = Objects(tmp_path)
    for number in (0, 4, 5):
        assert called(again.loaded(str(number), returning(-1))) == number
    assert again.compiled == 0
    assert len(kept(tmp_path)) == 3


def test_objects_nobody_uses_are_freed() -> None:
    made = Objects(live_max=2)
    used = made.loaded("used", returning(5))
    for number in range(4):
        made.loaded(str(number), returning(number))
    assert len(made._in_use) == 3  # the one that is used, and the last two
    assert made.loaded("used", returning(6)) is used
    assert called(used) == 5


def compile_and_drop(count: int, first: int = 0) -> None:
    made = Objects(live_max=4)
    for number in range(first, first + count):
        assert called(made.loaded(str(number), returning(number))) == number


def grown_bytes(count: int) -> int:
    """What a process has more after so many modules than after the first."""
    compile_and_drop(100)
    gc.collect()
    give_back()
    before = psutil.Process().memory_info().rss
    compile_and_drop(count, 100)
    gc.collect()
    give_back()
    return int(psutil.Process().memory_info().rss) - before


def test_memory_is_flat_over_modules_that_come_and_go() -> None:
    assert grown_bytes(300) < 3 * MIB  # a machine for code is 100 KiB and more, a page of code 4 KiB


@pytest.mark.long
def test_memory_is_flat_over_a_thousand_modules() -> None:
    assert grown_bytes(1000) < 3 * MIB


def test_a_function_that_is_not_there_is_a_key_error() -> None:
    loaded = Objects().loaded("a", returning(7))
    with pytest.raises(KeyError):
        loaded.address("another")


# A filter of system calls that answers EPERM to mprotect and mmap where they ask for PROT_EXEC, as systemd's
# MemoryDenyWriteExecute does.  Numbers of calls are those of x86-64; instructions are linux/filter.h's.
FORBIDDING = """
import ctypes, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def forbid_by_filter():
    LOAD, EQUAL, ANY, RETURN = 0x20, 0x15, 0x45, 0x06
    rows = [(LOAD, 0, 0, 0), (EQUAL, 1, 0, 9), (EQUAL, 0, 3, 10),  # the call's number: mmap, mprotect
            (LOAD, 0, 0, 32), (ANY, 0, 1, 4), (RETURN, 0, 0, 0x00050001), (RETURN, 0, 0, 0x7FFF0000)]
    code = b"".join(struct.pack("HBBI", *row) for row in rows)
    held = ctypes.create_string_buffer(code)
    program = struct.pack("HxxxxxxQ", len(rows), ctypes.addressof(held))
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # no new privileges
    assert libc.prctl(22, 2, program, 0, 0) == 0, ctypes.get_errno()
def forbid_by_kernel():
    if libc.prctl(65, 1, 0, 0, 0):  # PR_SET_MDWE, Linux 6.3
        print("not there"); sys.exit()
from worker.native.llvm import executable_memory
assert executable_memory() == "", executable_memory()
{}()
print(executable_memory())
"""


@pytest.mark.skipif(sys.platform != "linux" or this_processor().is_arm, reason="the filter is written for x86-64 Linux")
@pytest.mark.parametrize("how", ["forbid_by_filter", "forbid_by_kernel"])
def test_a_system_that_forbids_new_code_is_noticed(how: str) -> None:
    said = subprocess.run([sys.executable, "-c", FORBIDDING.format(how)], capture_output=True, text=True, timeout=60)
    assert said.returncode == 0, said.stderr
    if said.stdout.strip() == "not there":
        pytest.skip("this kernel has no PR_SET_MDWE")
    assert "forbids memory that is executable" in said.stdout
