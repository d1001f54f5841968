"""What both engines offer of states and pages that outlive a step (``actors/engine.py``)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ninfer.engine.lanes import Lane
from ninfer.engine.transfers import Transfers
from ninfer.step import Transfer


class KeepsStates:
    """An engine with `_lanes` and with `_transfers` over its cache. On a GPU only reading waits for the device."""

    _lanes: list[Lane]
    _transfers: Transfers

    @property
    def image_bytes(self) -> int:
        return self._transfers.image_bytes

    @property
    def page_bytes(self) -> int:
        return self._transfers.page_bytes

    @torch.inference_mode()
    def read_pages(self, pages: Sequence[int]) -> memoryview:
        """[n page_bytes]"""
        return self._transfers.read_pages(pages)

    @torch.inference_mode()
    def write_pages(self, pages: Sequence[int], data: memoryview) -> None:
        """data [n page_bytes]"""
        self._transfers.write_pages(pages, data)

    @torch.inference_mode()
    def read_places(self, places: Sequence[int]) -> memoryview:
        """[n page_bytes] of pages in host memory"""
        return self._transfers.read_places(places)

    @property
    def host_seconds(self) -> tuple[float, float]:
        return self._transfers.parking.seconds, self._transfers.loading.seconds

    def read_image(self, image: int) -> memoryview:
        """[image_bytes] of a stored image, until it is stored anew."""
        return self._transfers.read_image(image)

    def write_image(self, image: int, data: memoryview) -> None:
        """data [image_bytes]; the image belongs to the block start at which the chunk begins that restores it."""
        self._transfers.write_image(image, data)

    @torch.inference_mode()
    def transfer(self, transfers: Sequence[Transfer]) -> None:
        """Carry out transfers that belong to no step."""
        self._transfers.carry_out(transfers, self._lanes)

    @torch.inference_mode()
    def capture(self, lane: int, image: int) -> None:
        """Store a lane's state."""
        self._transfers.capture(lane, image, self._lanes[lane].state_block)
