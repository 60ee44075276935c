"""The promise, on virtual time: storm, paste, chain, crowd and throughput, on a device like a CPU and on one like a
GPU.

Ratios compare with a solo stream on the same device, or with `peer`. The peer is a plain server that reads up to 2048
prompt tokens between two decode steps, in order of arrival, and has no costs but the device's.
"""

from __future__ import annotations

import functools
import itertools
import random
from dataclasses import replace
from typing import NamedTuple

import pytest

from perf.simulator import MS, Job, S, Sim, peer_makespan, percentile
from uma_core.engine.fake.cost import CPU_SHAPE, GPU_SHAPE, FakeCost
from uma_core.engine.fake.engine import FakeModel
from uma_core.policy.config import DEFAULT_STAGES, SchedulerConfig
from uma_core.types import Priority

BACK = Priority.BACKGROUND


class Device(NamedTuple):
    cost: FakeCost
    model: FakeModel
    scale: int  # multiplies all lengths
    hurry: int  # divides all arrival times


CPU = Device(CPU_SHAPE, FakeModel(), 1, 1)
GPU = Device(GPU_SHAPE, FakeModel(n_ctx=65536, kv_bytes_per_cell=131072, weight_bytes=8_500_000_000), 4, 4)
DEVICES = pytest.mark.parametrize("device", [CPU, GPU], ids=["cpu", "gpu"])
NOISE = pytest.mark.parametrize("noise", [0.0, 0.03], ids=["exact", "noisy"])


@functools.cache  # virtual time is exact, and nobody changes a job that has ended
def solo(device: Device, n_prompt: int = 32, n_tokens: int = 160, noise: float = 0.0) -> Job:
    sim = Sim(device.cost, device.model, noise=noise)
    job = sim.submit(Job(n_prompt, n_tokens * device.scale))
    sim.run()
    return job


def storm_jobs(device: Device, n: int = 6) -> list[Job]:
    return [Job(1200 * device.scale, 1, BACK, 2, at_ns=(500 + 400 * i) * MS // device.hurry) for i in range(n)]


@DEVICES
@NOISE
class TestStorm:
    @staticmethod
    @functools.cache
    def run(device, noise, n_chats=1, storm=True):
        sim = Sim(device.cost, device.model, noise=noise)
        chats = [
            sim.submit(Job(32, 160 * device.scale, client=10 + i, at_ns=100 * i * MS // device.hurry))
            for i in range(n_chats)
        ]
        prompts = [sim.submit(j) for j in storm_jobs(device)] if storm else []
        return sim.run(), chats, prompts

    def test_the_chat_hardly_notices(self, device, noise):
        base = percentile(solo(device, noise=noise).gaps, 0.5)
        _, (chat,), _ = self.run(device, noise)
        assert percentile(chat.gaps, 0.95) <= 1.2 * base
        assert max(chat.gaps) <= 2.0 * base
        assert sum(chat.gaps) <= 1.25 * base * len(chat.gaps)

    def test_nothing_is_lost_over_all(self, device, noise):
        sim, chats, prompts = self.run(device, noise)
        peer, _ = peer_makespan(device.cost, device.model, chats + prompts)
        slower = 1.0 + noise * 0.8  # the peer's device has no noise, so it gets the mean of ours
        assert sim.clock.now_ns() <= 1.05 * slower * peer

    def test_prompts_make_progress_within_the_bound_while_the_chat_streams(self, device, noise):
        _, (chat,), prompts = self.run(device, noise)
        bound = 64 * 1.25 * max(percentile(chat.gaps, 0.5), 1) * device.model.n_prefill_slots
        for job in prompts:
            seen = [t for t in job.pieces if t < chat.times[-1]]
            assert all(b - a <= bound for a, b in itertools.pairwise(seen))
        first = prompts[0]
        assert [t for t in first.pieces if t < chat.times[-1]], "the first prompt is read beside the chat"

    def test_two_chats_are_as_well_off_as_without_the_storm(self, device, noise):
        _, chats, _ = self.run(device, noise, 2)
        _, alone, _ = self.run(device, noise, 2, storm=False)
        for chat, quiet in zip(chats, alone, strict=True):
            base = percentile(quiet.gaps, 0.5)
            assert percentile(chat.gaps, 0.95) <= max(1.2 * base, 1.02 * percentile(quiet.gaps, 0.95))
            assert max(chat.gaps) <= max(2.0 * base, 1.05 * max(quiet.gaps))


@DEVICES
@NOISE
@pytest.mark.parametrize("overrated", [0.7, 1.4, 2.0])
def test_prompts_are_read_as_fast_however_the_engine_rates_its_progress(device, noise, overrated):
    """Before, a chunk seemed to take twice its real time. Pieces then seemed not to fit, and prompts were read at half
    the speed or less.
    """

    def n_read(rating: float) -> int:
        """Return how many prompt tokens were read beside one chat."""
        sim = Sim(device.cost, device.model, noise=noise, overrated=rating)
        chat = sim.submit(Job(32, 320 * device.scale, client=10))
        prompts = [sim.submit(j) for j in storm_jobs(device)]
        while not chat.times or chat in sim.jobs:
            sim.tick()
        return sum(j.n_past + j.pending_prompt + int(j.chunk * j.fraction * rating) for j in prompts)

    assert n_read(overrated) >= 0.75 * n_read(1.0)


@DEVICES
class TestPaste:
    def test_a_chat_starts_at_once_beside_a_paste(self, device):
        sim = Sim(device.cost, device.model)
        paste = sim.submit(Job(2400 * device.scale, 32, BACK, 2))
        chat = sim.submit(Job(24, 64 * device.scale, at_ns=500 * MS // device.hurry))
        sim.run()
        alone = solo(device, 24, 64)
        assert chat.ttft <= 2.0 * alone.ttft
        assert percentile(chat.gaps, 0.95) <= 1.2 * percentile(alone.gaps, 0.5)
        assert max(chat.gaps) <= 2.0 * percentile(alone.gaps, 0.5)
        # while the chat streams, the paste gets at most a fifth of the device, so it ends later by that much
        _, (peer_ttft, _) = peer_makespan(device.cost, device.model, [paste, chat])
        assert paste.ttft <= 1.05 * peer_ttft + (chat.times[-1] - chat.t_queued)


@DEVICES
def test_an_agent_chain_beside_three_background_decoders(device):
    def chain(n_background: int) -> tuple[Sim, list[Job]]:
        sim = Sim(device.cost, device.model)
        last = None
        for _ in range(4):
            last = Job(48, 24 * device.scale, client=1, then=last)
        for _ in range(n_background):
            sim.submit(Job(32, 400 * device.scale, BACK, 2))
        steps = [sim.submit(last, 1500 * MS // device.hurry)]
        while steps[-1].then is not None:
            steps.append(steps[-1].then)
        sim.run()
        return sim, steps

    (_, alone), (sim, loaded) = chain(0), chain(3)
    assert loaded[-1].times[-1] - loaded[0].t_queued <= 1.5 * (alone[-1].times[-1] - alone[0].t_queued)
    background_alone, _ = peer_makespan(device.cost, device.model, [Job(32, 400 * device.scale) for _ in range(3)])
    chain_alone = alone[-1].times[-1] - alone[0].t_queued
    assert sim.clock.now_ns() <= 1.1 * (background_alone + chain_alone), (
        "they wait for the chain, and lose nothing else"
    )
    background = [j for j in sim.done if j.priority is BACK]
    assert all(any(loaded[0].t_queued < t < loaded[-1].times[-1] for t in j.times) for j in background), (
        "they are slowed, not stopped"
    )


@pytest.mark.parametrize("n_background", [4, 8])
def test_each_background_stream_of_a_mixture_of_experts_gets_tokens_beside_a_chat(n_background):
    """Before, each tick considered two of them in turn, and the tick that forces one came round with the turn: the same
    two got all the tokens.
    """
    n_seq = n_background + 1
    experts = {"n_expert": 8, "n_expert_used": 2, "expert_bytes": 400_000_000}
    sim = Sim(CPU.cost, FakeModel(n_seq_max=n_seq, n_ctx=4096 * n_seq, **experts))
    background = [sim.submit(Job(8, 400, BACK, 2)) for _ in range(n_background)]
    chat = sim.submit(Job(16, 1200), at_ns=3 * S)
    sim.run()
    config = SchedulerConfig()
    bound = config.starvation_ticks * n_background * 1.25 * percentile(chat.gaps, 0.5)
    for job in background:
        seen = [t for t in job.times if chat.times[0] < t < chat.times[-1]]
        waits = [b - a for a, b in itertools.pairwise([chat.times[0], *seen, chat.times[-1]])]
        assert max(waits) <= bound


@pytest.mark.parametrize("pause_cap", [2.0, 5.0])
def test_a_background_stream_gets_its_tokens_while_a_late_prompt_lengthens_the_gaps(pause_cap):
    """Before, it was served every 64 gaps, however long the gaps were."""
    sim = Sim(CPU.cost, CPU.model, SchedulerConfig(pause_cap=pause_cap))
    background = sim.submit(Job(16, 400, BACK, 2))
    chat = sim.submit(Job(16, 400), at_ns=S)
    sim.submit(Job(2400, 8, client=3, slo_ttft_ns=MS), at_ns=2 * S)
    sim.run()
    seen = [t for t in background.times if chat.times[0] < t < chat.times[-1]]
    round_ns = CPU.cost.decode_ns([(1, 16 + 400)])
    most = SchedulerConfig().starvation_ticks * round_ns + 2 * pause_cap * round_ns
    assert max(b - a for a, b in itertools.pairwise(seen)) <= most


def test_a_chat_does_not_wait_long_for_a_background_chunk_in_the_only_prefill_slot():
    """Before, the chunk got only a forced piece now and then, and the chat's prompt waited seconds for its end."""
    sim = Sim(CPU.cost, FakeModel(n_prefill_slots=1, n_seq_max=8, n_ctx=8 * 4096))
    for _ in range(2):
        sim.submit(Job(16, 500, client=7))
    sim.submit(Job(1500, 8, BACK, 2), at_ns=S)
    late = [sim.submit(Job(60, 8, client=3), at_ns=at * MS) for at in (3500, 6000, 8000)]
    sim.run()
    assert all(job.ttft < 3 * S for job in late)


def test_a_chat_begins_beside_another_and_a_background_stream_whose_rows_exceed_the_bandwidth():
    """Before, the latency guard let the background row in and held the prompt back for it. Then the bandwidth's guard
    removed the row: neither got anything for as long as the first chat streamed.
    """
    slow = replace(CPU_SHAPE, decode=((1, 160 * MS), (2, 165 * MS), (4, 180 * MS)))
    experts = {"n_expert": 8, "n_expert_used": 2, "weight_bytes": 8_000_000_000, "expert_bytes": 6_400_000_000}
    sim = Sim(slow, FakeModel(**experts), SchedulerConfig(bmt_budget=-1.0))
    background = sim.submit(Job(8, 400, BACK, 2))
    chat = sim.submit(Job(16, 200), at_ns=3 * S)
    late = sim.submit(Job(60, 8, client=3), at_ns=5 * S)
    sim.run()
    assert late.times[0] < chat.times[-1]
    assert any(chat.times[0] < t < chat.times[-1] for t in background.times)


@DEVICES
@pytest.mark.parametrize(
    ("stages", "priority", "least"), [(DEFAULT_STAGES, Priority.INTERACTIVE, 0.92), (DEFAULT_STAGES, BACK, 0.97)]
)
def test_four_streams_are_as_fast_as_on_the_plain_server(device, stages, priority, least):
    sim = Sim(device.cost, device.model, SchedulerConfig(stages=stages))
    jobs = [sim.submit(Job(128 * device.scale, 96 * device.scale, priority)) for _ in range(4)]
    sim.run()
    assert peer_makespan(device.cost, device.model, jobs)[0] >= least * sim.clock.now_ns()


@DEVICES
def test_with_the_guard_off_interactive_streams_lose_nothing_either(device):
    sim = Sim(
        device.cost, device.model, SchedulerConfig(stages=tuple(s for s in DEFAULT_STAGES if s != "latency_guard"))
    )
    jobs = [sim.submit(Job(128 * device.scale, 96 * device.scale)) for _ in range(4)]
    sim.run()
    assert peer_makespan(device.cost, device.model, jobs)[0] >= 0.97 * sim.clock.now_ns()


@pytest.mark.parametrize("seed", [1, 2, 5])
def test_a_crowd_is_served_shortest_first(seed):
    """The median takes a quarter to a third of the makespan; a plain server's takes half."""
    rng = random.Random(seed)
    sim = Sim(CPU.cost, CPU.model)
    jobs = []
    for _ in range(24):
        n_prompt, n_max = rng.randint(16, 700), rng.randint(4, 48)
        jobs.append(sim.submit(Job(n_prompt, n_max, Priority(n_prompt > 512))))
    sim.run()
    makespan, ttfts = peer_makespan(CPU.cost, CPU.model, jobs)
    assert len(sim.done) == 24
    assert percentile([j.ttft for j in jobs], 0.5) <= 0.8 * percentile(ttfts, 0.5)
    assert sim.clock.now_ns() <= 1.1 * makespan


@DEVICES
def test_clients_share_the_device_whatever_they_ask_for(device):
    """One client floods, and another asks now and then: its requests wait for a few others, not for the whole flood."""
    sim = Sim(device.cost, device.model)
    flood = [sim.submit(Job(300, 40, BACK, 1)) for _ in range(40)]
    late = [sim.submit(Job(300, 40, BACK, 2, at_ns=(200 + 900 * i) * MS // device.hurry)) for i in range(4)]
    sim.run()
    done_before = [sum(f.times[-1] < j.times[-1] for f in flood) for j in late]
    assert max(done_before) <= 24
    assert max(j.ttft for j in late) < max(f.ttft for f in flood) / 3


def beside_an_endless_row(sim: Sim, ours: list[Job], others: list[Job], until_ns: int) -> list[Job]:
    """Whenever a request has ended, its like is submitted: one of ours by the same client, another by a new one.
    Returns all of ours.
    """
    asked = [*ours]
    n_clients = itertools.count(1000)
    for job in others:
        sim.submit(job)
    for job in ours:
        sim.submit(job)
    while sim.clock.now_ns() < until_ns:
        n_done = len(sim.done)
        if not sim.tick().items:
            sim.clock.advance(MS)
        for job in sim.done[n_done:]:
            is_ours = any(job is own for own in asked)
            client = job.client if is_ours else next(n_clients)
            again = sim.submit(Job(job.n_prompt, job.n_max, job.priority, client), sim.clock.now_ns())
            asked += [again] if is_ours else []
    return asked


def test_a_client_that_always_asks_is_served_beside_an_endless_row_of_clients_that_ask_once():
    """Each of these is charged less than it. Before, it was not served again as long as some of them waited."""
    sim = Sim(CPU.cost, CPU.model, SchedulerConfig(aging_ns=S))
    others = [Job(20, 8, client=client, at_ns=MS) for client in range(2, 2 + 2 * CPU.model.n_seq_max)]
    asked = beside_an_endless_row(sim, [Job(40, 20, client=1)], others, 15 * S)
    assert len(asked) >= 5
    assert max(job.ttft for job in asked if job.times) < 3 * S


def test_prompts_of_one_client_are_read_beside_an_endless_row_of_clients_that_ask_once():
    """Before, only a client's single sequence was not passed over: as long as it held four, none of them was read."""
    sim = Sim(CPU.cost, FakeModel(n_seq_max=16, n_ctx=16 * 4096), SchedulerConfig(aging_ns=S))
    others = [Job(150, 1, client=client) for client in range(2, 18)]
    asked = beside_an_endless_row(sim, [Job(200, 1, client=1) for _ in range(4)], others, 30 * S)
    assert len(asked) >= 10


def test_a_clients_chat_does_not_wait_for_its_own_background_prompt_beside_an_endless_row_of_chats():
    """Before, it was passed over as long as its client held a sequence, and that prompt kept one."""
    sim = Sim(CPU.cost, FakeModel(n_seq_max=2, n_ctx=2 * 4096), SchedulerConfig(aging_ns=S))
    others = [Job(20, 30, client=client, at_ns=3 * S) for client in range(2, 8)]
    ours = [Job(3000, 30, BACK, 1), Job(40, 20, client=1, at_ns=4 * S)]
    _, *chats = beside_an_endless_row(sim, ours, others, 25 * S)
    assert len(chats) >= 5
    assert max(chat.ttft for chat in chats if chat.times) < 5 * S


@pytest.mark.parametrize("n_most", [1, 2])
def test_a_background_stream_gets_its_turns_beside_an_endless_row_of_clients_that_ask_once(n_most):
    """Before, its client had been charged more than theirs, so it got no token for as long as some of them came."""
    sim = Sim(CPU.cost, CPU.model, SchedulerConfig(aging_ns=S, max_background_decoders=n_most))
    others = [Job(20, 8, BACK, client) for client in range(2, 6)]
    (stream, *_) = beside_an_endless_row(sim, [Job(40, 400, BACK, 1)], others, 15 * S)
    assert max(stream.gaps) < 2 * S
    assert len(stream.times) > 60


def test_a_background_request_that_was_parked_is_read_beside_an_endless_row_of_chats():
    """Before, it was parked again before any of it had been read: a tick may take as long as it may stay."""
    sim = Sim(CPU.cost, FakeModel(n_prefill_slots=0), SchedulerConfig(aging_ns=S))
    chats = [Job(300, 1, client=client) for client in range(2, 8)]
    (work, *_) = beside_an_endless_row(sim, [Job(300, 30, BACK, 1)], chats, 40 * S)
    assert work.times


def test_without_resumable_prefill_a_chat_still_streams_and_prompts_still_end():
    sim = Sim(GPU.cost, FakeModel(n_prefill_slots=0, kv_bytes_per_cell=131072))
    chat = sim.submit(Job(32, 300))
    prompts = [sim.submit(Job(600, 1, BACK, 2, at_ns=100 * MS * i)) for i in range(3)]
    sim.run()
    base = percentile(solo(GPU).gaps, 0.5)
    assert percentile(chat.gaps, 0.5) <= 1.05 * base
    assert max(chat.gaps) <= 3.0 * base, "the smallest chunk that pays, at the starvation bound"
    assert all(j.times for j in prompts)


@DEVICES
def test_without_resumable_prefill_a_chats_prompt_has_its_share_of_the_time_beside_background_streams(device):
    """Before, it got what was left of a tick of 50 ms: 600 tokens took fifteen times as long as alone on the CPU."""
    model = replace(device.model, n_prefill_slots=0)
    sim = Sim(device.cost, model)
    streams = [sim.submit(Job(16, 200, BACK, 2)) for _ in range(2)]
    chat = sim.submit(Job(600 * device.scale, 4), at_ns=S // device.hurry)
    sim.run()
    assert chat.ttft <= 1.3 * sim.cost.prompt_ns(chat.n_prompt, 0)
    assert any(chat.t_queued < t < chat.times[0] for t in streams[0].times), "they are slowed, not stopped"


def test_without_resumable_prefill_a_short_prompt_waits_no_longer_than_its_target_and_some_gaps():
    sim = Sim(CPU.cost, FakeModel(n_prefill_slots=0))
    chat = sim.submit(Job(32, 400))
    late = [sim.submit(Job(n, 4, client=2, at_ns=S * (1 + 3 * i))) for i, n in enumerate((9, 60))]
    sim.run()
    base = percentile(solo(CPU).gaps, 0.5)
    assert max(j.ttft for j in late) <= 3 * S, "30 steps are half a second"
    assert max(chat.gaps) <= 4.5 * base, "gaps of overdue prompts"


def test_a_hundred_clients_on_sixteen_sequences_all_end():
    rng = random.Random(4)
    sim = Sim(GPU.cost, FakeModel(n_seq_max=16, n_ctx=16 * 2048, is_unified=True))
    for i in range(100):
        sim.submit(
            Job(
                rng.randint(1, 900),
                rng.randint(1, 60),
                Priority(rng.random() < 0.5),
                client=i % 7,
                at_ns=rng.randint(0, 2 * S),
            )
        )
    assert len(sim.run().done) == 100


@pytest.mark.parametrize("is_unified", [False, True], ids=["prompts", "cells"])
def test_a_second_chat_of_a_client_begins_beside_background_requests_that_waited_long(is_unified):
    """Its client has had more than theirs, so those go first. Before, if as many as were considered could not come in,
    or one had too few cells, the chat waited until they could.
    """
    sim = Sim(CPU.cost, FakeModel(n_ctx=4096 if is_unified else 4 * 4096, is_unified=is_unified))
    sim.submit(Job(20, 1000, client=1))
    for i in range(1 if is_unified else 14):
        sim.submit(Job(3000, 400, BACK, 2 + i, at_ns=MS))
    late = [sim.submit(Job(20, 20, client=1, at_ns=at * S)) for at in (2, 11, 12)]
    while any(not job.times for job in late):
        sim.tick()
        assert sim.clock.now_ns() < 14 * S
    assert all(job.ttft < S for job in late)


def test_a_parked_stream_that_is_back_stays_for_a_while():
    """Before, it was parked at once and came back at once, because it had waited long: the chat never got the
    sequence.
    """
    sim = Sim(CPU.cost, FakeModel(n_seq_max=1, n_ctx=4096))
    work = sim.submit(Job(32, 300, BACK, 2))
    last = None
    for _ in range(30):
        last = Job(16, 30, then=last)
    sim.submit(last, at_ns=S)
    sim.run(max_ticks=20_000)
    away = [i for i, gap in enumerate(work.gaps) if gap > S]
    assert len(away) >= 2, "the case has a stream that comes back"
    assert all(work.times[b] - work.times[a + 1] >= S // 3 for a, b in itertools.pairwise(away))


def test_chats_do_not_wait_for_a_queue_of_background_requests_that_waited_long():
    """Before, each of them took the sequence from which another was parked for the chat, was parked itself before its
    text had been read again, and had waited long once more when its turn came: nobody ever got a token.
    """
    sim = Sim(CPU.cost, FakeModel(n_seq_max=1, n_ctx=4096, n_prefill_slots=0), SchedulerConfig(aging_ns=2 * S))
    work = [sim.submit(Job(188, 20, BACK)) for _ in range(8)]
    chats = [sim.submit(Job(40, 20), at_ns=3 * S + i * 800 * MS) for i in range(8)]
    sim.run(max_ticks=20_000)
    assert all(job.times for job in work)
    assert max(job.ttft for job in chats) < 2 * S


CHEAP_ROWS = replace(CPU_SHAPE, decode=((1, 25.0 * MS), (2, 25.5 * MS), (4, 26.0 * MS)), decode_cell_ns=800.0)


def test_a_long_documents_answer_does_not_seem_to_fit_beside_a_chat():
    """Its steps take twice as long as a chat's. Calibration saw a quarter of that, because its contexts are short."""
    sim = Sim(CHEAP_ROWS, FakeModel(n_seq_max=2, n_ctx=70_000))
    curve = sim.cost.decode._replace(slope=tuple(slope / 4 for slope in sim.cost.decode.slope))
    sim.cost = sim.cost._replace(decode=curve)
    document = sim.submit(Job(30_000, 96, BACK, 2))
    for _ in range(3_000):  # a piece is longer than a run here, but is computed all the same
        sim.tick()
        if len(document.times) == 2:
            break
    chat = sim.submit(Job(2_000, 48), at_ns=sim.clock.now_ns())
    sim.run()
    assert percentile(chat.gaps, 0.95) <= 1.3 * CHEAP_ROWS.decode_ns([(1, 2_000)])
    assert len(document.times) == 96
