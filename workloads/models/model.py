"""What every model has, whatever it is made of."""

from __future__ import annotations

from abc import abstractmethod

from workloads.models.frozen import Extensible


class AnyModel(Extensible):
    """A model by ``name``: stacks of equal layers (``spec.py``) or a list of blocks (``listed.py``)."""

    name: str = "model"

    @property
    @abstractmethod
    def num_layers(self) -> int:
        """Parts between the first and the last that a pipeline may deal out and FSDP gathers apart."""

    @property
    def ties_ends(self) -> bool:
        """Whether its first and its last part share a weight."""
        return False

    @property
    def usual_samples(self) -> int:
        """Samples that a GPU usually trains on at once; 0 where that is up to the build."""
        return 0

    @abstractmethod
    def sequence(self, seq: int) -> int:
        """Tokens of one sample where sequences have ``seq``; 1 where a sample is no sequence."""

    def sequences(self, seq: int, decoder_seq: int = 0) -> tuple[int, ...]:
        """Tokens of each sequence of a sample."""
        del decoder_seq
        return (self.sequence(seq),)
