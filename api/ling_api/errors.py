"""The few errors that end a command or an attach. Each has the exit code that its command ends with.

The text of every error is one line for the person who reads it: what is wrong, where, what to write instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from ling_api.identity import FieldDifference


class LingError(Exception):
    """Any of ours. A command's main catches it, prints the one line and exits with `exit_code`."""

    exit_code: ClassVar[int] = 1


class BadInput(LingError):
    """A flag, file, manifest or identity makes no sense. The catcher reports it; trying again is of no use."""

    exit_code = 2


class Refused(LingError):
    """The agent said no: a revision that the slot does not name, or no room. The catcher reports and exits.

    `fields` are the identity's fields that differ from the nearest set, when that is the reason.
    """

    exit_code = 3

    def __init__(self, message: str, fields: tuple[FieldDifference, ...] = ()) -> None:
        super().__init__(message)
        self.fields = fields


class AgentUnreachable(LingError):
    """Nobody answers on the folder's sockets. The catcher tries again, or exits where nobody waits."""

    exit_code = 4


class AttachCheckFailed(LingError):
    """The attached weights are not what their manifest says. The catcher detaches, reports and exits."""

    exit_code = 5


class DeviceError(LingError):
    """The memory or the device failed. The catcher exits: a process whose device failed is of no use."""

    exit_code = 6


class FillFailed(LingError):
    """A set could not be filled. The catcher exits; the agent drops the set and the next in line fills."""

    exit_code = 7


class CheckpointChanged(FillFailed):
    """The checkpoint's files became others while they were read. The launcher exits too: it described the old ones."""

    exit_code = 9


class WriterLeft(FillFailed):
    """A region cannot be sealed because somebody still maps it writable. The catcher refuses the fill."""


class PluginMissing(LingError):
    """The runtime's plugin is not installed in this image. The catcher reports and exits."""

    exit_code = 8
