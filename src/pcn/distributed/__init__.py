"""Several processes: statistics over all of them, one plan for all, and wrappers that follow the changed model."""

from pcn.distributed.agreement import state_hash
from pcn.distributed.sharded import gather_, shard_

__all__ = ["gather_", "shard_", "state_hash"]
