"""What a file's mode forbids, for processes of root as well."""

import ctypes

_VERSION_3 = 0x20080522


def be_bound_by_modes() -> None:
    """Give up what root may do beyond others; it owns its files still, and nothing gives it back to this process."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, nothing = (ctypes.c_uint32 * 2)(_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    assert libc.capset(header, nothing) == 0, ctypes.get_errno()
