"""A few processes joined by gloo that stay alive for many checks (starting them is what costs)."""

from __future__ import annotations

import datetime
import itertools
import pickle
import traceback

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def _serve(rank, pipe):
    torch.set_num_threads(1)
    while (task := pipe.recv()) is not None:
        function, ranks, address, arguments = task
        timeout = datetime.timedelta(seconds=60)
        how = {"rank": rank, "world_size": ranks, "timeout": timeout}
        try:
            dist.init_process_group("gloo", init_method=address, **how)
            reply = function(dist.group.WORLD, *arguments), None
            dist.barrier()
        except BaseException:
            reply = None, traceback.format_exc()
        # By value: tensors sent by handle would need this process to wait for the reader.
        pipe.send_bytes(pickle.dumps(reply))
        dist.destroy_process_group()


class GlooPool:
    """Runs functions on the first so many of ``size`` ranks.

    A function must live at the top of a module and gets the process group of these ranks, which is
    the default one, as its first argument.
    """

    def __init__(self, size, folder):
        context = mp.get_context("forkserver")
        self.addresses = (f"file://{folder}/{number}" for number in itertools.count())
        self.processes, self.pipes = [], []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, theirs), daemon=True)
            process.start()
            self.processes.append(process)
            self.pipes.append(ours)

    def run(self, ranks, function, *arguments, each=None):
        """Return the results of ``function(group, *arguments)`` in rank order.

        ``each`` is a list of further arguments, one tuple for each rank.
        """
        address = next(self.addresses)
        for rank, pipe in enumerate(self.pipes[:ranks]):
            pipe.send((function, ranks, address, arguments + (each[rank] if each else ())))
        results = []
        for rank, pipe in enumerate(self.pipes[:ranks]):
            assert pipe.poll(90), f"rank {rank} does not answer"
            result, problem = pickle.loads(pipe.recv_bytes())
            assert problem is None, f"rank {rank}:\n{problem}"
            results.append(result)
        return results

    def close(self):
        for pipe in self.pipes:
            pipe.send(None)
        for process in self.processes:
            process.join(10)
            process.kill()
