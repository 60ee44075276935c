"""Ray Serve's part of routing: a call goes to the replica that its first argument names.

router.py has already chosen the replica. Serve's own hooks are called too late for that: the router needs the hashes of
a prompt, and keeps requests waiting. A gateway also learns here which replicas there are, without calling Serve's
controller.
"""

from __future__ import annotations

from typing import Any

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica


class Pinned(RequestRouter):
    """See the module's docstring."""

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        from uma_gateway.cluster.replicas import told  # imported here because this class is sent by value

        super().update_replicas(replicas)
        told(self._deployment_id.name, {each.replica_id.unique_id: each.node_id for each in replicas})

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Choose the named replica. If it is absent, choose any, which will answer that the named replica is lost."""
        args: Any = pending_request.args if pending_request is not None else ()
        found = [each for each in candidate_replicas if args and each.replica_id.unique_id == args[0]]
        return [found or list(candidate_replicas)]
