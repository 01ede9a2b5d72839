"""Decisions a second of `limits` on Redis: 20 a minute as a moving window, then 1,000 a day as a fixed one.

It has no check of two limits at once, so a decision is one call for each, the second only where the first admits.
"""

import asyncio
import itertools
import sys
import threading
import time

import limits.aio.storage
import limits.aio.strategies
import limits.storage
import limits.strategies

MINUTE, DAY = limits.RateLimitItemPerMinute(20), limits.RateLimitItemPerDay(1_000)


class Clock:
    """Hands out subjects until the time is over."""

    def __init__(self, count, lasts):
        self.count, self.numbers = count, itertools.count()
        self.start = time.monotonic()
        self.end = self.start + lasts

    def subjects(self):
        while time.monotonic() < self.end:
            yield f"user-{next(self.numbers) % self.count:011}"

    def rate(self):
        return next(self.numbers) / (time.monotonic() - self.start)


def with_threads(url, threads, clocks):
    storage = limits.storage.RedisStorage(url, max_connections=threads)
    moving = limits.strategies.MovingWindowRateLimiter(storage)
    fixed = limits.strategies.FixedWindowRateLimiter(storage)

    def work(clock):
        for subject in clock.subjects():
            moving.hit(MINUTE, subject) and fixed.hit(DAY, subject)

    for clock in clocks:
        workers = [threading.Thread(target=work, args=[clock]) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        yield clock.rate()


async def with_asyncio(url, tasks, clocks):
    storage = limits.aio.storage.RedisStorage("async+" + url, max_connections=tasks)
    moving = limits.aio.strategies.MovingWindowRateLimiter(storage)
    fixed = limits.aio.strategies.FixedWindowRateLimiter(storage)

    async def work(clock):
        for subject in clock.subjects():
            await moving.hit(MINUTE, subject) and await fixed.hit(DAY, subject)

    rates = []
    for clock in clocks:
        await asyncio.gather(*(work(clock) for _ in range(tasks)))
        rates.append(clock.rate())
    return rates


def main():
    url, way, tasks, count, lasts = sys.argv[1:]
    # The first round only opens the connections.
    clocks = (Clock(int(count), lasts) for lasts in (0.5, float(lasts)))
    if way == "asyncio":
        rates = asyncio.run(with_asyncio(url, int(tasks), clocks))
    else:
        rates = list(with_threads(url, int(tasks), clocks))
    print(rates[-1])


main()
