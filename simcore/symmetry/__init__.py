"""Which ranks must behave alike, so that one of them can stand for all."""

from simcore.symmetry.partition import Partition, partition
from simcore.symmetry.quotient import Membership, Quotient
from simcore.symmetry.relations import Relation, relations_of

__all__ = ["Membership", "Partition", "Quotient", "Relation", "partition", "relations_of"]
