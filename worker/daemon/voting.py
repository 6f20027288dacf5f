"""Voting: this worker's word on which coordinator serves its mesh, and what it keeps of that in its state folder."""

from __future__ import annotations

from pathlib import Path

from wire.errors import NotDurable
from wire.link.link import Link
from wire.protocol.messages import Message, Vote
from wire.standby.in_messages import asked_of, voted_of
from wire.standby.standby_file import StandbyFile
from wire.standby.voter import Answered, Say, Voter
from wire.system.atomic_files import Disk
from wire.system.steady_log import steady_logger

from ..state import events as ev
from .link_handler import Answer
from .machine_shell import MachineShell, Performers

log = steady_logger("graph_mesh.worker")


class Voting:
    """The voter whose state folder this is.  `node` is the id of this worker."""

    def __init__(self, shell: MachineShell, node: str, folder: Path, disk: Disk | None = None) -> None:
        self._shell = shell
        self._file = StandbyFile(folder, disk)
        self._logged_error = ""  # of the disk's refusals
        self._voter = Voter(node, self._file.remembered.record)

    @property
    def served_epoch(self) -> int:
        """The epoch of the coordinator with a standby that this worker served last; 0 for none."""
        return max(self._file.remembered.epochs, default=0)

    def requests(self) -> dict[type[Message], Answer]:
        return {Vote: self._vote}

    def performers(self) -> Performers:
        return {ev.KeepServed: lambda action: self._shell.begin(action, self._keep(action))}

    async def _keep(self, action: ev.KeepServed) -> None:
        try:
            await self._file.change(epochs=(action.epoch,))
        except NotDurable as error:
            if str(error) != self._logged_error:  # it comes again as often as the coordinator asks
                self._logged_error = str(error)
                log.error("a coordinator that asks for this worker is refused: %s", error)
            raise
        self._logged_error = ""
        self._shell.feed(ev.ServedKept(action.epoch))

    async def _vote(self, link: Link, body: Vote) -> Message:
        peer, machine = link.peer, self._shell.machine
        hears = machine.owner.node if machine is not None and machine.owner is not None and machine.served else ""
        actions = self._voter.asked(asked_of(body, peer.node_id), hears)
        await self._file.change(record=self._voter.record)  # also what could not be written before
        (answer,) = (action.message for action in actions if isinstance(action, Say))
        assert isinstance(answer, Answered)
        return voted_of(answer)
