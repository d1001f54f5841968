"""The disk cache: what goes there, what comes back, and what is read in full all the same."""

from __future__ import annotations

import pytest

from ninfer.errors import IllegalTransition
from ninfer.scheduler import commands as cmd
from ninfer.scheduler import events as ev
from ninfer.scheduler.disk import DiskIndex, Entry
from ninfer.scheduler.images import ImageKind
from ninfer.scheduler.statistics import KeptView
from ninfer.scheduler.transitions import LaneState
from ninfer.types import Marks
from tests.scheduler.driving import Driver, blocks, text

# --- the index -----------------------------------------------------------------------------------------------------


def entry(file: str, *names: str, states: tuple[int, ...] = (), size: int = 10) -> Entry:
    return Entry(file, names, (*states, len(names)), size)


def test_a_longer_file_of_a_conversation_replaces_the_shorter_one() -> None:
    index = DiskIndex(100, 64, "kv")
    assert index.add(entry("1", "a", "b")) == []
    assert index.add(entry("2", "a", "b", "c")) == ["1"]
    assert index.add(entry("3", "a", "b", "d")) == []  # another branch
    assert (len(index), index.used) == (2, 20)


def test_the_file_used_longest_ago_makes_room() -> None:
    index = DiskIndex(25, 64, "kv")
    index.add(entry("1", "a"))
    index.add(entry("2", "b"))
    index.touch("1")
    assert index.add(entry("3", "c")) == ["2"]
    assert index.add(entry("4", "d", size=26)) == ["1", "3", "4"]
    assert (len(index), index.used) == (0, 0)


def test_the_deepest_state_of_any_file_is_found() -> None:
    index = DiskIndex(100, 64, "kv")
    first, second = entry("1", "a", "b", "c", "d", states=(2,)), entry("2", "a", "b", "x", states=(1, 2))
    index.add(first)
    index.add(second)
    assert index.deepest(("a", "b", "c", "d", "e"), 1, 9) == (first, 4)
    assert index.deepest(("a", "b", "c", "d"), 1, 3) == (second, 2)  # of equal ones the newest
    assert index.deepest(("a", "q"), 1, 2) == (second, 1)
    assert index.deepest(("a", "b", "q"), 3, 3) is None
    index.drop("2")
    assert index.deepest(("a", "b", "q"), 0, 3) == (first, 2)
    assert not index.drop("2")
    assert [index.has_state(block) for block in "abcdx"] == [False, True, False, True, False]


def test_names_are_never_given_twice() -> None:
    index = DiskIndex(100, 64, "kv-7")
    assert [index.new_name(), index.new_name()] == ["kv-7-1", "kv-7-2"]


# --- the scheduler -------------------------------------------------------------------------------------------------

A, B = text(200, 1), text(210, 2)


def server(**settings: object) -> Driver:
    """Two conversations do not fit."""
    defaults = {"lanes": 1, "pages": 6, "max_context_tokens": 384, "disk_bytes": 1000, "disk_least_tokens": 64}
    return Driver(**{**defaults, "disk_name": "kv", **settings})  # type: ignore[arg-type]


def kept(driver: Driver) -> KeptView:
    return driver.machine.statistics().kept


def the(driver: Driver, kind: type[cmd.Command]) -> list[cmd.Command]:
    return [command for command in driver.out if isinstance(command, kind)]


def save(driver: Driver, *, read: bool = True, written: bool = True, size: int = 100) -> cmd.SaveEvicted:
    """The newest session that is being displaced is read and written."""
    order = the(driver, cmd.SaveEvicted)[-1]
    assert isinstance(order, cmd.SaveEvicted)
    driver.send(ev.SlotDone(order.read.ticket, order.read.lane, read))
    driver.send(ev.SlotWritten(order.read.ticket, written, size))
    return order


def displaced(**settings: object) -> Driver:
    """A server that has A on disk and B in its lane."""
    driver = server(**settings)
    driver.say(A)
    driver.ask(B)
    assert save(driver).to_disk
    driver.run()
    return driver


def fetch(driver: Driver, *, read: bool = True) -> cmd.ReadDisk:
    order = the(driver, cmd.ReadDisk)[-1]
    assert isinstance(order, cmd.ReadDisk)
    driver.send(ev.DiskRead(order.ticket, read))
    return order


def filled(driver: Driver, history: bytes, *, ok: bool = True) -> cmd.WriteDisk:
    """The pages and the image of the newest order hold a history."""
    order = the(driver, cmd.WriteDisk)[-1]
    assert isinstance(order, cmd.WriteDisk)
    for transfer in order.before:
        driver.memory.transfer(transfer)
    for block, page in enumerate(order.pages, order.skipped + 1):
        driver.memory.pages[page] = history[: 64 * block]
    driver.memory.images[order.image] = history[: 64 * (order.skipped + len(order.pages))]
    driver.send(ev.DiskDone(order.ticket, ok))
    return order


def test_a_session_that_is_displaced_goes_to_disk_and_comes_back() -> None:
    driver = displaced()
    (saved,) = the(driver, cmd.SaveEvicted)
    assert isinstance(saved, cmd.SaveEvicted)
    assert (saved.file, saved.read.tokens, saved.read.executed, saved.read.state) == ("kv-1", 192, 192, 192)
    request = driver.ask(A + text(30, 3))
    save(driver)
    assert not driver.chunks(request)
    order = fetch(driver)
    assert (order.file, order.depth, order.block) == ("kv-1", 3, blocks(A)[2])
    assert not driver.chunks(request)
    filled(driver, A)
    driver.run()
    assert driver.reused(request)[1:] == ("restore_disk", 192)
    assert driver.machine.statistics().totals.reuse[-1] == ("restore_disk", 1)
    counts = kept(driver)
    assert (counts.disk_saves, counts.disk_hits, counts.disk_misses) == (2, 1, 2)
    assert (counts.disk_files, counts.disk_used) == (2, 200)


def test_what_has_grown_replaces_its_file() -> None:
    driver = displaced()
    driver.ask(A + text(80, 3))
    save(driver)
    fetch(driver)
    filled(driver, A)
    driver.run()
    driver.ask(B + text(80, 4))
    save(driver)
    assert [c.file for c in the(driver, cmd.DropFile) if isinstance(c, cmd.DropFile)] == ["kv-1"]


def test_what_is_on_disk_is_not_written_again() -> None:
    driver = displaced()
    driver.ask(A)
    save(driver)
    fetch(driver)
    filled(driver, A)
    driver.run()
    request = driver.ask(text(100, 5))
    driver.run()
    assert driver.chunks(request)
    assert len(the(driver, cmd.SaveEvicted)) == 2


def test_a_short_session_is_not_worth_a_file() -> None:
    driver = server(disk_least_tokens=1024)
    driver.say(A)
    driver.say(B)
    assert not the(driver, cmd.SaveEvicted)
    assert kept(driver).disk_misses == 0


def test_without_a_place_for_states_nothing_goes_to_disk() -> None:
    driver = server(images=0)
    driver.say(A)
    driver.say(B)
    assert not the(driver, cmd.SaveEvicted)
    driver = server(disk_bytes=0)
    driver.say(A)
    driver.say(B)
    assert not the(driver, cmd.SaveEvicted)


def test_no_room_is_made_for_a_file_while_a_session_is_being_read() -> None:
    driver = server(lanes=3, pages=10, max_context_tokens=640)
    for seed in (1, 2):
        driver.say(text(300, seed))
    driver.send(ev.DiskFound("kv-0", 100, blocks(text(192, 3)), (3,)))
    request = driver.ask(text(200, 3))
    assert save(driver).read.lane == 0
    (reading,) = driver.slot(1, "save")  # that session goes to no disk, and could go for the file next
    assert isinstance(reading, cmd.ReadSession)
    fetch(driver)
    assert the(driver, cmd.DropRead)
    assert not driver.chunks(request)
    driver.send(ev.SlotDone(reading.ticket, 1, True))
    driver.run()
    assert driver.reused(request)[1:] == ("full_reset", 0)


@pytest.mark.parametrize("gone", [False, True])
def test_a_file_that_cannot_be_read_is_a_miss_and_goes(gone: bool) -> None:
    driver = displaced()
    request = driver.ask(A)
    save(driver, size=950 if gone else 100)
    assert len(the(driver, cmd.DropFile)) == gone  # the other file has taken its room meanwhile
    fetch(driver, read=False)
    driver.run()
    assert driver.reused(request)[1:] == ("full_reset", 0)
    assert [c.file for c in the(driver, cmd.DropFile) if isinstance(c, cmd.DropFile)] == ["kv-1"]
    assert kept(driver).disk_read_failures == (not gone)


def test_what_cannot_be_put_on_the_device_is_a_miss() -> None:
    driver = displaced()
    request = driver.ask(A)
    save(driver)
    fetch(driver)
    filled(driver, A, ok=False)
    driver.run()
    assert driver.reused(request)[1:] == ("full_reset", 0)
    assert kept(driver).disk_hits == 0
    assert driver.machine.pages.available == 6 - len(driver.machine.pages.kept)


def test_a_session_that_cannot_be_read_makes_way_and_is_not_tried_again() -> None:
    driver = server()
    driver.say(A)
    request = driver.ask(B)
    save(driver, read=False, written=False)
    driver.run()
    assert driver.chunks(request)
    assert (kept(driver).disk_save_failures, kept(driver).disk_files) == (1, 0)


def test_a_full_disk_loses_the_session_only() -> None:
    driver = server()
    driver.say(A)
    driver.ask(B)
    save(driver, written=False)
    driver.run()
    request = driver.ask(A)
    save(driver)
    driver.run()
    assert driver.reused(request)[1:] == ("full_reset", 0)


def test_every_image_being_promised_a_session_makes_way_unread() -> None:
    driver = server(images=1)
    driver.say(A)
    image = driver.machine.holdings.images.take(ImageKind.ANCHOR, None)
    assert image is not None
    image.users = 1
    request = driver.ask(B)
    driver.run()
    assert driver.chunks(request)
    assert kept(driver).disk_save_failures == 1
    image.users = 0
    driver.machine.holdings.images.drop(image)


def test_a_client_that_leaves_while_its_file_is_read_leaves_nothing() -> None:
    driver = displaced()
    request = driver.ask(A)
    save(driver)
    driver.send(ev.Released(request))
    fetch(driver)
    assert len(the(driver, cmd.DropRead)) == 1
    assert not the(driver, cmd.WriteDisk)
    with pytest.raises(IllegalTransition, match="nobody waits for"):
        fetch(driver)


def test_another_head_waits_for_the_file_before_its_own() -> None:
    driver = displaced()
    first = driver.ask(A)
    save(driver)
    driver.send(ev.Released(first))
    second = driver.ask(A + text(20, 3))
    assert len(the(driver, cmd.ReadDisk)) == 1
    fetch(driver)
    assert len(the(driver, cmd.ReadDisk)) == 2
    fetch(driver)
    filled(driver, A)
    driver.run()
    assert driver.reused(second)[1:] == ("restore_disk", 192)


def test_others_go_on_while_a_file_is_read_if_a_lane_stays_free() -> None:
    driver = server(lanes=3, pages=18)
    driver.send(ev.DiskFound("old", 200, blocks(A), (3,)))
    waiting = driver.ask(A)
    other = driver.ask(text(70, 6), limit=3)
    assert driver.chunks(other)
    assert not driver.chunks(waiting)
    third = driver.ask(text(70, 7))
    assert not driver.chunks(third)  # the last idle lane is for the one that waits
    fetch(driver)
    filled(driver, A)
    driver.run()
    assert driver.reused(waiting)[1:] == ("restore_disk", 192)


def test_a_state_in_the_middle_of_a_file_is_enough() -> None:
    driver = server()
    driver.send(ev.DiskFound("old", 200, blocks(A), (2, 3)))
    request = driver.ask(A[:150] + text(40, 8))
    assert fetch(driver).depth == 2
    filled(driver, A)
    driver.run()
    assert driver.reused(request)[1:] == ("restore_disk", 128)


def test_a_file_that_is_larger_than_the_disk_goes() -> None:
    driver = server()
    assert driver.send(ev.DiskFound("old", 1001, blocks(A), (3,))) == [cmd.DropFile("old")]


def test_what_others_have_read_meanwhile_is_not_written() -> None:
    driver = server(lanes=2, pages=18)
    driver.send(ev.DiskFound("old", 200, blocks(A), (3,)))
    waiting = driver.ask(A + text(30, 3))
    slot = driver.slot(1, "restore", A)
    write = slot[-1]
    assert isinstance(write, cmd.WriteSession)
    for block, page in enumerate(write.pages, 1):
        driver.memory.pages[page] = A[: 64 * block]
    driver.memory.images.update({image: A[:at] for at, image in write.images})
    driver.send(ev.SlotDone(write.ticket, 1, True))
    fetch(driver)
    assert the(driver, cmd.DropRead)
    driver.run()
    assert driver.reused(waiting)[2] == 192


def test_a_file_for_which_there_is_no_room_is_not_waited_for() -> None:
    driver = server(lanes=2, pages=6, images=1)
    driver.send(ev.DiskFound("old", 200, blocks(A), (3,)))
    waiting = driver.ask(A)
    image = driver.machine.holdings.images.take(ImageKind.ANCHOR, None)
    assert image is not None
    image.users = 1
    fetch(driver)
    assert the(driver, cmd.DropRead)
    image.users = 0
    driver.machine.holdings.images.drop(image)
    driver.run()
    assert driver.reused(waiting)[1:] == ("full_reset", 0)


def test_a_fault_while_pages_are_filled_leaves_nothing() -> None:
    driver = server(lanes=2, pages=12)
    driver.send(ev.DiskFound("old", 200, blocks(A), (3,)))
    running = driver.ask(text(70, 6), limit=9)
    waiting = driver.ask(A)
    fetch(driver)
    assert len(driver.chunks(running)) == 1
    driver.send(ev.StepFailed(driver.machine.flight.steps[0].number, "device fault"))
    while driver.machine.flight.steps:
        driver.send(ev.StepFailed(driver.machine.flight.steps[0].number, "device fault"))
    driver.memory.lose()
    filled(driver, A)
    driver.send(ev.EngineReset())
    driver.run()
    assert driver.reused(waiting)[1:] == ("full_reset", 0)
    assert kept(driver).disk_hits == 0


def test_erasing_a_session_erases_its_file_also_if_that_is_being_written() -> None:
    driver = displaced(lanes=1)
    driver.slot(0, "erase")
    assert not the(driver, cmd.DropFile)  # the file is that of another session
    request = driver.ask(A)
    fetch(driver)
    filled(driver, A)
    driver.run()
    driver.send(ev.Released(request))
    driver.slot(0, "erase")
    assert the(driver, cmd.DropFile) == [cmd.DropFile("kv-1")]
    driver.say(B)
    waiting = driver.ask(A)
    order = the(driver, cmd.SaveEvicted)[-1]
    assert isinstance(order, cmd.SaveEvicted)
    driver.send(ev.Released(waiting))
    driver.send(ev.SlotDone(order.read.ticket, 0, True))
    driver.slot(0, "erase")
    assert driver.machine.lanes == [LaneState.EMPTY]
    assert driver.send(ev.SlotWritten(order.read.ticket, True, 100)) == [cmd.DropFile(order.file)]
    assert kept(driver).disk_files == 0


def test_a_session_with_a_slot_file_goes_to_both() -> None:
    driver = server(auto_save=True)
    first = driver.say(A, limit=2)
    (order,) = driver.slot(0, "save")
    assert isinstance(order, cmd.ReadSession)
    driver.send(ev.SlotDone(order.ticket, 0, True))
    session = driver.machine.holdings.sessions[0]
    assert session is not None
    session.file = "a.bin"
    driver.say(driver.histories[first][:201] + text(20, 3), limit=2)
    driver.ask(B)
    assert not save(driver).to_disk
    assert save(driver).to_disk
    driver.run()
    assert (kept(driver).auto_saves, kept(driver).disk_saves) == (1, 1)


def test_a_restore_waits_until_the_session_in_its_slot_is_on_disk() -> None:
    driver = server()
    driver.say(A)
    out = driver.slot(0, "restore", B)
    assert [type(command) for command in out] == [cmd.SaveEvicted]
    save(driver)
    assert the(driver, cmd.WriteSession)


def test_turn_checkpoints_go_with_the_session() -> None:
    driver = server(turn_checkpoints=2)
    driver.say(A, marks=Marks(turn=128))
    driver.ask(B)
    assert save(driver).read.checkpoints[0][0] == 128
    assert driver.machine.holdings.disk.has_state(blocks(A)[1])


def test_no_session_is_pushed_out_unsaved_for_a_file() -> None:
    driver = server(lanes=2, pages=4, max_context_tokens=256)
    driver.say(text(130, 6))
    driver.send(ev.DiskFound("old", 200, blocks(A), (3,)))
    waiting = driver.ask(A)
    (first,) = the(driver, cmd.SaveEvicted)
    assert isinstance(first, cmd.SaveEvicted)
    driver.send(ev.SlotDone(first.read.ticket, first.read.lane, True))
    driver.ask(text(130, 7), priority=-1)  # it is more urgent, and cannot be saved while the first is being written
    driver.run()
    fetch(driver)
    assert the(driver, cmd.DropRead)
    assert len(the(driver, cmd.SaveEvicted)) == 1
    driver.send(ev.SlotWritten(first.read.ticket, True, 100))
    save(driver)
    driver.run()
    assert driver.reused(waiting)[1:] == ("full_reset", 0)
