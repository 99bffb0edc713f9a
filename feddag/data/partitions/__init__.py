"""Which samples each client trains on, is validated on and is tested on, with the true groups kept."""

from feddag.data.partitions.assignments import PARTITIONS
from feddag.data.partitions.make import make_partition, settings_of
from feddag.data.partitions.partition import Partition
from feddag.data.partitions.settings import PartitionSettings

__all__ = ["PARTITIONS", "Partition", "PartitionSettings", "make_partition", "settings_of"]
