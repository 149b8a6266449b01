"""Memory for one instruction table at a time: bytes in a dictionary, and every access on record."""

import numpy as np

from tensorwasm.errors import KernelFault


class FlatWarpMemory:
    """`WarpMemory` over one array of bytes per space."""

    def __init__(self, size_bytes=1 << 18):
        self.spaces = {space: np.zeros(size_bytes, np.uint8) for space in ("shared", "global", "generic")}

    def _places(self, addresses, dtype):
        assert addresses.dtype == np.uint64
        assert not (addresses % np.uint64(dtype.itemsize)).any(), "misaligned"
        return addresses[..., None].astype(np.int64) + np.arange(dtype.itemsize)

    def load(self, space, addresses, dtype):
        assert addresses.ndim >= 2
        assert addresses.shape[1] <= 32
        data = np.ascontiguousarray(self.spaces[space][self._places(addresses, dtype)])
        return data.view(dtype)[..., 0]

    def store(self, space, addresses, values):
        assert addresses.shape == values.shape
        data = np.ascontiguousarray(values)[..., None].view(np.uint8)
        self.spaces[space][self._places(addresses, values.dtype)] = data

    def fault(self, warp, lane, reason):
        raise KernelFault(f"warp {warp} lane {lane}: {reason}")


class FlatLaneMemory:
    """`LaneMemory` over a dictionary of bytes: initialisation, alignment, and races within an epoch.

    An epoch ends at `synchronize` and `barrier`. Two lanes that touch one byte in an epoch, one of them writing and not
    both atomically, race.
    """

    def __init__(self, block_lanes=32):
        self.block_lanes = block_lanes
        self.bytes = {}
        self.touched = {}
        self.queue = {}

    def blocks(self, lanes):
        return lanes // self.block_lanes

    def _place(self, space, lane, address):
        space = "shared" if space == "generic" else space
        return (space, lane // self.block_lanes if space == "shared" else None, address)

    def _touch(self, place, lane, kind):
        for other, earlier in self.touched.setdefault(place, set()):
            if (other != lane and {kind, earlier} - {"read", "atomic"}) or {kind, earlier} == {"read", "atomic"}:
                self.fault(lane, f"race on {place} with lane {other}")
        self.touched[place].add((lane, kind))

    def _runs(self, lanes, addresses, count, size_bytes):
        assert lanes.dtype == np.int64
        assert addresses.dtype == np.uint64
        assert len(lanes) == len(addresses)
        for lane, address in zip(lanes.tolist(), addresses.tolist(), strict=True):
            if address % (count * size_bytes):
                self.fault(lane, f"misaligned {address:#x}")
            yield lane, range(address, address + count * size_bytes)

    def load(self, space, lanes, addresses, dtype, count=1, *, atomic=False):
        rows = []
        for lane, run in self._runs(lanes, addresses, count, dtype.itemsize):
            row = bytearray()
            for address in run:
                place = self._place(space, lane, address)
                if place not in self.bytes:
                    self.fault(lane, f"uninitialised read of {place}")
                self._touch(place, lane, "atomic" if atomic else "read")
                row.append(self.bytes[place])
            rows.append(np.frombuffer(bytes(row), dtype))
        return np.array(rows, dtype).reshape(len(lanes), count)

    def store(self, space, lanes, addresses, values, *, atomic=False):
        assert values.ndim == 2
        assert len(values) == len(lanes)
        for index, (lane, run) in enumerate(self._runs(lanes, addresses, values.shape[1], values.dtype.itemsize)):
            for address, byte in zip(run, values[index].tobytes(), strict=True):
                place = self._place(space, lane, address)
                self._touch(place, lane, "atomic" if atomic else "write")
                self.bytes[place] = byte

    def unset(self, space, lanes, addresses, size_bytes):
        for lane, run in self._runs(lanes, addresses, 1, size_bytes):
            for address in run:
                place = self._place(space, lane, address)
                self._touch(place, lane, "write")
                self.bytes.pop(place, None)

    def synchronize(self, lanes):
        blocks = set(self.blocks(lanes).tolist())
        self.touched = {place: who for place, who in self.touched.items() if place[1] not in blocks}

    def barrier(self):
        """Let every lane pass a ``bar.sync``."""
        self.touched = {}

    def fault(self, lane, reason):
        raise KernelFault(f"lane {lane}: {reason}")
