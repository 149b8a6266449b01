"""Keys and sealed files that are not taken."""

from __future__ import annotations

from tensorwasm.errors.base import CallerError


class InvalidKey(CallerError):
    """No such key: it has the wrong length, is of another kind, or is not written as one. The message never has it."""

    kind = "invalid_key"


class SealRefused(CallerError):
    """A sealed file is not taken. Nothing in it was decompressed or parsed."""

    kind = "snapshot_refused"


class NotSealed(SealRefused):
    """This is no sealed file, or its header contradicts itself."""

    kind = "snapshot_malformed"


class UnknownVersion(SealRefused):
    """The file is of a version that this release does not read."""

    kind = "snapshot_version_unknown"


class Unsigned(SealRefused):
    """The file has no signature, and nobody asked for files without."""

    kind = "snapshot_unsigned"
    http_status = 403


class UnknownKey(SealRefused):
    """The file is signed or encrypted under a key that is not on the ring; the message has its id."""

    kind = "snapshot_key_unknown"
    http_status = 403


class WrongKeyKind(SealRefused):
    """The file names a key of the ring, and another way of signing than that key's."""

    kind = "snapshot_key_kind"
    http_status = 403


class SignatureInvalid(SealRefused):
    """The signature is not that of the key that the file names."""

    kind = "snapshot_signature_invalid"
    http_status = 403


class Damaged(SealRefused):
    """The file was cut, lengthened or changed after it had been signed."""

    kind = "snapshot_damaged"


class WrongContent(SealRefused):
    """The file holds another kind of content."""

    kind = "snapshot_content_kind"


class WrongModule(SealRefused):
    """The file belongs to another module."""

    kind = "snapshot_module_mismatch"
    http_status = 409


class WrongParent(SealRefused):
    """The snapshot adds to another one, which is not there, is not that one, or is too far down a chain."""

    kind = "snapshot_parent_mismatch"
    http_status = 409
